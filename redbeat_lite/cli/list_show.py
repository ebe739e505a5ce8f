"""``list`` and ``show``: the entries as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import click
from redis.exceptions import ResponseError

from ..api.schedules import Schedules
from ..entries.as_read import STATUSES
from ..entries.change_words import change_words
from ..entries.entry import Entry
from ..entries.schedule_text import schedule_text
from ..entries.selection import matches
from ..errors import describe
from ..once.canvas import CANVAS, sent
from ..runs.run import Run
from ..settings import Settings
from .command import Command, entry_names, json_option, name_argument, schedules_of
from .entry_output import as_fields, next_run, nothing_listed
from .outcomes import last_outcomes, marks
from .output import echo_fields, echo_json, echo_table, in_json, say
from .runs import told
from .selected import selected, selecting

#: Runs that ``show`` tells of.
_RUNS_SHOWN = 5


@click.command("list", cls=Command)
@click.argument("name", metavar="[PATTERN]", required=False, shell_complete=entry_names)
@selecting
@click.option("--source", help='Only entries from here: "runtime", "config" or "config:OWNER".')
@click.option(
    "--status",
    "doing",
    type=click.Choice([*STATUSES, "failing"]),
    help="Only entries that are this; failing: whose last publish failed.",
)
@click.option("--failed", is_flag=True, help="Only entries whose last run that ended did not do its work.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many to show at most.")
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True, help="How many to leave out first.")
@click.option("--plain", is_flag=True, help="Letters for the outcomes: s is succeeded, f failed.")
@json_option
def list_(ctx: click.Context, /, limit: int, offset: int, plain: bool, **wanted: Any) -> None:
    """List the entries, next to run first. PATTERN is for names and knows * and ?.

    LAST is what became of the last runs, as workers have recorded it, the newest right: ✓ succeeded, ✗ did not do its
    work, ▸ runs, ↻ is tried again, - was not to run, · nobody has told yet.

    Entries of beat_schedule that the beat refuses follow, unless other options than PATTERN filter.

    \b
    Examples:
      celery -A proj redbeat list
      celery -A proj redbeat list 'report-*' --status paused
      celery -A proj redbeat list --limit 1000 --json
    """
    schedules = schedules_of(ctx)
    if any(wanted.values()):
        found = _matching(ctx, **wanted)
        page = [*islice(found, offset, offset + limit)]
        more = next(found, None) is not None
    else:
        page = [*schedules.freezes.marked(schedules.list(offset, limit))]
        more = offset + limit < len(schedules)
    history = Settings.from_app(ctx.obj.app).history
    if in_json():
        echo_json([_json(entry, history) for entry in page])
        return
    zone = ctx.obj.app.timezone
    rows = [
        (
            each.name,
            _tasks(each),
            schedule_text(each.schedule, zone),
            marks(each, history, plain=plain),
            next_run(each, zone),
        )
        for each in page
    ]
    headers = ("NAME", "TASK", "SCHEDULE", "LAST", "NEXT RUN")
    empty = None if rows else nothing_listed(len(schedules), wanted["doing"])
    echo_table(headers, rows, empty=empty, rigid=("LAST", "NEXT RUN"))
    if more:
        say(f"There are more: --offset {offset + limit}")
    pattern = wanted.pop("name") or "*"
    if not any(wanted.values()):
        _say_refused(schedules.refused(), pattern)


def _tasks(entry: Entry) -> str:
    """Return the task of an entry, or the tasks of its canvas, whose arguments may be private."""
    members = sent(entry.task, entry.args) - {CANVAS}
    return ", ".join(sorted(members)) or entry.task


def _json(entry: Entry, history: int) -> dict[str, Any]:
    """Everything about an entry, with what became of its last runs."""
    return {**entry.as_dict(), "last_outcomes": last_outcomes(entry, history)}


def _say_refused(errors: Mapping[str, str], pattern: str) -> None:
    """The entries of ``beat_schedule`` that the beat refuses, which may be in no list of those that are stored."""
    rows = [(name, error) for name, error in errors.items() if matches(name, pattern)]
    if rows:
        say()
        echo_fields([("REFUSED", "WHY"), *rows])  # not a table, which would cut what is wrong


def _matching(ctx: click.Context, source: str | None, doing: str | None, failed: bool, **meant: Any) -> Iterator[Entry]:
    for entry in schedules_of(ctx).freezes.marked(selected(ctx, **meant)):
        if failed and not entry.failures_in_a_row:
            continue
        if source and source not in (entry.source, entry.source.split(":")[0]):
            continue
        if doing and not (entry.last_error is not None if doing == "failing" else entry.status == doing):
            continue
        yield entry


@click.command(cls=Command)
@name_argument
@json_option
def show(ctx: click.Context, name: str) -> None:
    """Show everything about one entry, with its last runs. Its schedule is shown as the options that make it.

    REFUSED is what is wrong with the entry as beat_schedule has it now; what is shown is what it was before.

    \b
    Examples:
      celery -A proj redbeat show nightly
      celery -A proj redbeat show nightly --json
    """
    schedules = schedules_of(ctx)
    entry, refused = schedules[name], schedules.refused().get(name)
    runs, unreadable = _last_runs(schedules, name)
    if in_json():
        told_of = {"runs": runs, "last_change": entry.last_change, "refused": refused}
        echo_json({**_json(entry, Settings.from_app(ctx.obj.app).history), **told_of})
        return
    zone = ctx.obj.app.timezone
    lines = "\n".join(told(run, zone) for run in runs) or unreadable
    changed = None if entry.last_change is None else change_words(entry.last_change, zone)
    echo_fields([*as_fields(entry, zone), ("last runs", lines), ("changed", changed), ("refused", refused)])


def _last_runs(schedules: Schedules, name: str) -> tuple[list[Run], str | None]:
    """The last runs of an entry, or why the server does not tell them."""
    try:
        return schedules.runs(name, limit=_RUNS_SHOWN), None
    except ResponseError as exc:  # it has told of the entry, which is asked for first
        return [], f"cannot be read: {describe(exc)}"
