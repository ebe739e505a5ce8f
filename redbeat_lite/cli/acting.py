"""``pause``, ``resume`` and ``run``: what operators do to an entry without changing its definition."""

from __future__ import annotations

import click

from . import entries
from .commands import Command, json_option, name_argument, schedules_of
from .output import echo_json


@click.command(cls=Command)
@name_argument
@click.option("--note", default="", help="Why, for those who come after.")
@click.pass_context
def pause(ctx: click.Context, name: str, note: str) -> None:
    """Stop an entry from firing. It keeps its history, and stays paused over restarts.

    \b
    Example:
      celery -A proj redbeat pause nightly --note "until the disk is replaced"
    """
    schedules_of(ctx).pause(name, note)
    click.echo(f"paused {name!r}")


@click.command(cls=Command)
@name_argument
@click.option("--catch-up", is_flag=True, help="Treat what the pause held back as missed; its misfire policy decides.")
@click.pass_context
def resume(ctx: click.Context, name: str, catch_up: bool) -> None:
    """Let a paused entry fire again, from its next instant on.

    \b
    Examples:
      celery -A proj redbeat resume nightly
      celery -A proj redbeat resume nightly --catch-up
    """
    entry = schedules_of(ctx).resume(name, catch_up=catch_up)
    click.echo(f"resumed {name!r}; next run: {entries.next_run(entry, ctx.obj.app.timezone)}")


@click.command(cls=Command)
@name_argument
@json_option
@click.pass_context
def run(ctx: click.Context, name: str, as_json: bool) -> None:
    """Send one extra task now, with the entry's arguments and options. Its plan is untouched.

    \b
    Example:
      celery -A proj redbeat run nightly
    """
    task_id = schedules_of(ctx).run_now(name)
    if as_json:
        echo_json({"name": name, "task_id": task_id})
    else:
        click.echo(f"sent {name!r} as task {task_id}")
