"""Entries as commands show them."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any

from ..entries.entry import Entry
from ..errors import InvalidEntry
from ..interchange.records import entry_fields
from ..interchange.schedule_text import resolved_text, schedule_text, schedule_words
from ..once.canvas import CANVAS, call_text
from ..schedules import Manual
from .output import distance, echo_json, say, when

if TYPE_CHECKING:
    import click

#: What an entry may be doing, as filters and JSON name it.
STATUSES = ("waiting", "paused", "disabled", "manual", "finished", "frozen")


def status(entry: Entry) -> str:
    """What an entry is doing: one of :data:`STATUSES`."""
    if entry.paused_note is not None:
        return "paused"
    if not entry.enabled:
        return "disabled"
    if isinstance(entry.schedule, Manual):
        return "manual"
    return "finished" if entry.finished else "frozen" if entry.frozen_until else "waiting"


def next_run(entry: Entry, zone: tzinfo) -> str:
    """When an entry runs next, or why it does not."""
    frozen = f"frozen until {when(entry.frozen_until, zone)}" if status(entry) == "frozen" else ""
    return frozen or when(entry.next_run_at, zone) or status(entry)


def tell(ctx: click.Context, entry: Entry, done: str, in_json: bool) -> None:
    """Say what was done to an entry, and when it runs next; or print everything about it, for ``--json``."""
    if in_json:
        echo_json(as_json(entry))
    else:
        say(f"{done} {entry.name!r}; next run: {next_run(entry, ctx.obj.app.timezone)}")


def as_json(entry: Entry) -> dict[str, Any]:
    """Everything about an entry, for ``--json``."""
    return {
        "name": entry.name,
        **entry_fields(entry, defaults=True),
        "schedule_text": schedule_text(entry.schedule),
        "resolved": resolved_text(entry.schedule),
        "source": entry.source,
        "status": status(entry),
        "paused_note": entry.paused_note,
        "frozen_until": entry.frozen_until,
        "next_run_at": entry.next_run_at,
        "last_run_at": entry.last_run_at,
        "total_run_count": entry.total_run_count,
        "skipped_count": entry.skipped_count,
        "last_task_id": entry.last_task_id,
        "last_error": entry.last_error,
        "version": entry.version,
        "generation": entry.generation,
    }


def as_fields(entry: Entry, zone: tzinfo) -> list[tuple[str, object]]:
    """Everything about an entry, for people; a value ``None`` is left out."""
    written = {**entry_fields(entry), **({"calendar": str(entry.calendar)} if entry.calendar else {})}
    last = when(entry.last_run_at, zone)
    apart = ("task", "schedule", "local", *(["args"] if entry.task == CANVAS else []))
    return [
        ("name", entry.name),
        ("task", call_text(entry.task, entry.args)),
        ("schedule", _words(entry)),
        ("resolved", resolved_text(entry.schedule)),
        ("status", status(entry) + (f": {entry.paused_note}" if entry.paused_note else "")),
        ("frozen until", _with_distance(entry.frozen_until, zone)),
        ("next run", _with_distance(entry.next_run_at, zone)),
        ("last run", last or "never"),
        ("runs", entry.total_run_count),
        ("skipped", entry.skipped_count or None),
        ("last task", entry.last_task_id),
        ("last error", entry.last_error),
        *((field, shown(value)) for field, value in written.items() if field not in apart),
        ("not stored", ", ".join(entry.local) or None),
        ("source", entry.source),
        ("version", f"{entry.version} of {entry.generation}"),
    ]


def shown(value: Any) -> str:
    """A value of a field, in one line."""
    import json

    if isinstance(value, float):
        return f"{value!r} s".replace(".0 s", " s")  # fields with fractions are lengths of time
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _words(entry: Entry) -> str:
    if "schedule" in entry.local:
        return "known to its app alone"
    try:
        return shlex.join(schedule_words(entry.schedule))
    except InvalidEntry:
        return repr(entry.schedule)


def _with_distance(instant: datetime | None, zone: tzinfo) -> str | None:
    return None if instant is None else f"{when(instant, zone)}  ({distance(instant, datetime.now(UTC))})"
