"""``python -m redbeat_lite demo``: see the scheduler at work, with nothing but the wheel and its ``embedded`` extra."""

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


if __name__ == "__main__":
    main(prog_name="python -m redbeat_lite")
