"""``python -m redbeat_lite``: the demo, and a probe that is quick because it loads neither Celery nor an app."""

from __future__ import annotations

import click

from ._version import __version__
from .errors import ConfigurationError


@click.group()
@click.version_option(__version__, prog_name="redbeat_lite")
def main() -> None:
    """A Celery beat scheduler that keeps its schedule in Redis."""


@main.command()
@click.option("--seconds", type=click.FloatRange(min=1), help="End after so many seconds; else on Ctrl-C.")
def demo(seconds: float | None) -> None:
    """Start a private server, a worker and two beats, and watch."""
    from .demo.run import run

    try:
        run(seconds)
    except ConfigurationError as exc:
        raise click.ClickException(str(exc)) from exc


@main.command()
@click.argument("file")
@click.option("--limit", type=click.FloatRange(min=1), default=30, show_default=True, help="Seconds of silence.")
def health(file: str, limit: float) -> None:
    """Judge a beat by its heartbeat FILE, without Redis and without the app; exit 0 if it is well, else 1."""
    from .health_file import judge

    verdict = judge(file, limit)
    click.echo(verdict.reason)
    raise SystemExit(0 if verdict.healthy else 1)


if __name__ == "__main__":
    main(prog_name="python -m redbeat_lite")
