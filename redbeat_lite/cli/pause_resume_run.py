"""``pause``, ``resume`` and ``run``: what operators do to an entry without changing its definition."""

from __future__ import annotations

from typing import Any

import click
from kombu.exceptions import OperationalError

from ..broker import given_up_soon
from ..entries.selection import Selection
from ..errors import RedbeatError, text_of
from ..settings import Settings
from ..storage.connections import FAULTS
from .backfills import begin
from .command import Command, Length, json_option, schedules_of
from .entry_options import fields_of, since_of
from .entry_output import tell
from .exit_codes import Failure, ServerFailure
from .freezes import froze
from .output import echo_json, say
from .selected import changing, tell_names, to_change

#: Of these, kombu raises the last for what is wrong with its settings, such as Sentinel without a master.
_UNSENT: tuple[type[Exception], ...] = (OperationalError, *FAULTS, ValueError)


@click.command(cls=Command)
@changing
@click.option("--note", default="", help="Why, for those who come after.")
@click.option("--for", "length", type=Length(), help="For so long, by a freeze of them: 30m, 2h, 2d.")
def pause(ctx: click.Context, /, note: str, length: float | None, **meant: Any) -> None:
    """Stop entries from firing. They keep their history, and stay paused over restarts.

    Of several, those that are paused already are left alone, with their notes.

    \b
    Examples:
      celery -A proj redbeat pause nightly --note "until the disk is replaced"
      celery -A proj redbeat pause nightly --for 2h
      celery -A proj redbeat pause 'report-*' --tag billing
    """
    found = to_change(ctx, "pause", **meant)
    if length is not None:
        selection = Selection.one(schedules_of(ctx)[found].name) if isinstance(found, str) else found.selection
        froze(ctx, **selection._asdict(), length=length, note=note)
    elif isinstance(found, str):
        schedules_of(ctx).pause(found, note)
        say(f"paused {found!r}")
    else:
        tell_names("paused", found.pause(note))


@click.command(cls=Command)
@changing
@click.option("--catch-up", is_flag=True, help="Treat what the pause held back as missed; its misfire policy decides.")
@json_option
def resume(ctx: click.Context, /, catch_up: bool, **meant: Any) -> None:
    """Let paused entries fire again, from their next instant on.

    \b
    Examples:
      celery -A proj redbeat resume nightly
      celery -A proj redbeat resume --tag billing --catch-up
    """
    schedules, found = schedules_of(ctx), to_change(ctx, "resume", **meant)
    if not isinstance(found, str):
        tell_names("resumed", found.resume(catch_up))
        return
    done = "not paused:" if schedules[found].paused_note is None else "resumed"
    tell(ctx, schedules.resume(found, catch_up=catch_up), done)


@click.command(cls=Command)
@changing
@click.option("--args", metavar="JSON", help="Other arguments, for this run alone: '[1, \"two\"]'.")
@click.option("--kwargs", metavar="JSON", help="The same by name: '{\"x\": 1}'.")
@click.option("--at", metavar="INSTANT", help="As the run of this nominal time, of the past: a backfill of one.")
@click.option("--note", default="", help="Why, for the record of changes.")
@json_option
def run(ctx: click.Context, /, args: Any, kwargs: Any, at: str | None, note: str, **meant: Any) -> None:
    """Send one extra task now, with the entry's options, and its arguments if none are given. Its plan is untouched.

    \b
    Examples:
      celery -A proj redbeat run nightly
      celery -A proj redbeat run nightly --kwargs '{"x": 1}' --note "once more"
      celery -A proj redbeat run nightly --at 2026-11-14T02:30
    """
    given = fields_of({"args": args, "kwargs": kwargs, "note": note}, ctx.obj.app.timezone)
    schedules, found = schedules_of(ctx), to_change(ctx, "run", **meant)
    if (at is not None or not isinstance(found, str)) and (args is not None or kwargs is not None):
        raise Failure("--args and --kwargs go with the NAME of one entry, without --at")
    if at is not None:
        if not isinstance(found, str):
            raise Failure("--at goes with the NAME of one entry")
        instant = since_of("at", at, ctx.obj.app.timezone)
        begin(ctx, found, instant, instant, max_active=None, note=note)
        return
    if isinstance(found, str):
        _ = schedules[found]  # so that what fails from here on is the broker's affair
    app = ctx.obj.app
    try:
        with given_up_soon(app, Settings.from_app(app).publish_timeout):
            sent = {found: schedules.run_now(found, **given)} if isinstance(found, str) else found.run_now(note)
    except RedbeatError:
        raise
    except _UNSENT as exc:
        what = repr(found) if isinstance(found, str) else found.selection
        raise ServerFailure(f"cannot send {what}: {text_of(exc)}") from exc
    told = [{"name": name, "task_id": task_id} for name, task_id in sent.items()]
    echo_json(told[0] if isinstance(found, str) else told)
    for name, task_id in sent.items():
        say(f"sent {name!r} as task {task_id}")
