"""``pause``, ``resume`` and ``run``: what operators do to an entry without changing its definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from kombu.exceptions import OperationalError

from ..beat.dispatch.broker import broker_connection, publish_timeouts
from ..entries.selection import Selection
from ..errors import RedbeatError, text_of
from ..settings import Settings
from ..storage.connections import FAULTS
from .command import Command, json_option, name_argument, schedules_of
from .entry_options import ARRAY, OBJECT
from .entry_output import tell
from .exit_codes import ServerFailure
from .freezes import froze
from .output import echo_json, say

if TYPE_CHECKING:
    from celery import Celery

#: Of these, kombu raises the last for what is wrong with its settings, such as Sentinel without a master.
_UNSENT: tuple[type[Exception], ...] = (OperationalError, *FAULTS, ValueError)


@click.command(cls=Command)
@name_argument
@click.option("--note", default="", help="Why, for those who come after.")
@click.option("--for", "length", metavar="LENGTH", help="For so long, by a freeze of this one: 30m, 2h, 2d.")
@click.pass_context
def pause(ctx: click.Context, name: str, note: str, length: str | None) -> None:
    """Stop an entry from firing. It keeps its history, and stays paused over restarts.

    \b
    Examples:
      celery -A proj redbeat pause nightly --note "until the disk is replaced"
      celery -A proj redbeat pause nightly --for 2h
    """
    if length is None:
        schedules_of(ctx).pause(name, note)
        say(f"paused {name!r}")
        return
    _ = schedules_of(ctx)[name]
    froze(ctx, Selection.one(name).name, length=length, note=note)


@click.command(cls=Command)
@name_argument
@click.option("--catch-up", is_flag=True, help="Treat what the pause held back as missed; its misfire policy decides.")
@json_option
@click.pass_context
def resume(ctx: click.Context, name: str, catch_up: bool, as_json: bool) -> None:
    """Let a paused entry fire again, from its next instant on.

    \b
    Examples:
      celery -A proj redbeat resume nightly
      celery -A proj redbeat resume nightly --catch-up
    """
    schedules = schedules_of(ctx)
    done = "not paused:" if schedules[name].paused_note is None else "resumed"
    tell(ctx, schedules.resume(name, catch_up=catch_up), done, as_json)


@click.command(cls=Command)
@name_argument
@click.option("--args", type=ARRAY, metavar="JSON", help="Other arguments, for this run alone: '[1, \"two\"]'.")
@click.option("--kwargs", type=OBJECT, metavar="JSON", help="The same by name: '{\"x\": 1}'.")
@click.option("--note", default="", help="Why, for the record of changes.")
@json_option
@click.pass_context
def run(ctx: click.Context, /, name: str, as_json: bool, **given: Any) -> None:
    """Send one extra task now, with the entry's options, and its arguments if none are given. Its plan is untouched.

    \b
    Examples:
      celery -A proj redbeat run nightly
      celery -A proj redbeat run nightly --kwargs '{"x": 1}' --note "once more"
    """
    schedules = schedules_of(ctx)
    _ = schedules[name]  # so that what fails from here on is the broker's affair
    _hurry(ctx.obj.app)
    try:
        task_id = schedules.run_now(name, **given)
    except RedbeatError:
        raise
    except _UNSENT as exc:
        raise ServerFailure(f"cannot send {name!r}: {text_of(exc)}") from exc
    if as_json:
        echo_json({"name": name, "task_id": task_id})
    else:
        say(f"sent {name!r} as task {task_id}")


def _hurry(app: Celery) -> None:
    """Have a publish of this process given up soon, after two tries: a worker may wait, a person may not."""
    conf, connection = app.conf, broker_connection(app)
    limits = publish_timeouts(connection, Settings.from_app(app).publish_timeout)
    at_once = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    conf.broker_transport_options = {**conf.broker_transport_options, **limits, **at_once}
    conf.task_publish_retry = False
