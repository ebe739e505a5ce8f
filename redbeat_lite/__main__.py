"""``python -m redbeat_lite``: the demo, and a probe that is quick because it loads neither Celery nor an app."""

from __future__ import annotations

from typing import Any

import click

from ._version import __version__
from .durations import seconds_of
from .errors import ConfigurationError


@click.group()
@click.version_option(__version__, prog_name="redbeat_lite")
def main() -> None:
    """A Celery beat scheduler that keeps its schedule in Redis."""


@main.command()
@click.option("--seconds", type=click.FloatRange(min=1), help="End after so many seconds; else on Ctrl-C.")
def demo(seconds: float | None) -> None:
    """Start a private server, a worker, two beats and the page, and watch."""
    from .demo.run import run

    try:
        run(seconds)
    except ConfigurationError as exc:
        raise click.ClickException(str(exc)) from exc


class Probe(click.Command):
    """A command that exits with 1 when its words are wrong: 2, click's own code for that, is reserved where Docker asks
    for a container's health."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as exc:
            exc.show()
            raise SystemExit(1) from exc


def _length(ctx: click.Context, param: click.Parameter, value: str) -> float:
    seconds = seconds_of(value)
    if seconds is None or seconds < 1:
        expected = "a length of time such as 30s or 5m, at least 1 s"
        raise click.BadParameter(f"expected {expected}, got {value!r}", ctx, param)
    return seconds


@main.command(cls=Probe)
@click.argument("file")
@click.option("--limit", callback=_length, default="30s", show_default=True, help="How long it may be silent.")
def health(file: str, limit: float) -> None:
    """Judge a beat by its heartbeat FILE, without Redis and without the app; exit 0 if it is well, else 1."""
    from .beat.heartbeat import judge
    from .cli.output import say

    verdict = judge(file, limit)
    say(verdict.reason)
    raise SystemExit(0 if verdict.healthy else 1)


if __name__ == "__main__":
    main(prog_name="python -m redbeat_lite")
