"""``python -m redbeat_lite``: the demo, and a health probe.

The probe is quick, because it imports neither Celery nor an app.
"""

from __future__ import annotations

import click

from ._base.errors import ConfigurationError
from ._version import __version__
from .cli.command import Length, say
from .cli.group import Group


# `Group` replaces click's exit code 2 for wrong arguments, because Docker reserves 2 for its health
# checks.
@click.group(cls=Group)
@click.version_option(__version__, prog_name="redbeat_lite")
def main() -> None:
    """A Celery beat scheduler that keeps its schedule in Redis."""


@main.command()
@click.option(
    "--seconds", type=click.FloatRange(min=1), help="End after this many seconds; else on Ctrl-C."
)
def demo(seconds: float | None) -> None:
    """Start a private server, a worker, two beats and the page, and watch."""
    from .demo.run import run

    try:
        run(seconds)
    except ConfigurationError as exc:
        raise click.ClickException(str(exc)) from exc


@main.command()
@click.argument("file")
@click.option(
    "--limit", type=Length(1.0), default="30s", show_default=True, help="How long it may be silent."
)
def health(file: str, limit: float) -> None:
    """Judge a beat by its heartbeat FILE, without Redis and without the app.

    Exit with 0 if the beat is well, else with 1.
    """
    from .beat.heartbeat import judge

    verdict = judge(file, limit)
    say(verdict.reason)
    raise SystemExit(0 if verdict.healthy else 1)


if __name__ == "__main__":
    main(prog_name="python -m redbeat_lite")
