"""Entries as commands show them."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import click

from ..entries.as_json import entry_fields
from ..entries.entry import Entry
from ..entries.schedule_text import resolved_text, schedule_words
from ..entries.words import counted, in_zone
from ..errors import InvalidEntry
from ..once.canvas import CANVAS, call_text
from ..pipeline.definition import Definition
from ..pipeline.keys import START
from ..storage.json_values import pack
from .output import distance, echo_json, in_json, say, when


def next_run(entry: Entry, zone: tzinfo) -> str:
    """When an entry runs next, or why it does not."""
    if entry.status == "frozen" and entry.frozen_until is not None:
        until = in_zone(entry.frozen_until, zone)
        soon = entry.frozen_until - datetime.now(UTC) < timedelta(days=1)
        return f"frozen until {until[11:] if soon else until}"  # of today and tomorrow no time of day stands twice
    return when(entry.next_run_at, zone) or entry.status


def nothing_listed(stored: int, doing: str | None = None) -> str:
    """Why a list of entries is empty, where so many are stored, of those that do this."""
    if stored and doing == "failing":
        return "No publish has failed last. Entries whose last run failed: list --failed"
    if stored:
        return f"Nothing is in this list; {counted(stored, 'entry is', 'entries are')} stored."
    why = "No entry is stored. Those of beat_schedule come when a beat leads; add others:"
    return f"{why}\ncelery -A ... redbeat add NAME TASK --every 30s"


def tell(ctx: click.Context, entry: Entry, done: str) -> None:
    """Say what was done to an entry, and when it runs next; or print everything about it, for ``--json``."""
    if in_json():  # it may ask the server for its last runs
        echo_json(entry.as_dict())
    say(f"{done} {entry.name!r}; next run: {next_run(entry, ctx.obj.app.timezone)}")
    if entry.next_run_at is not None and entry.next_run_at < datetime.now(UTC):
        say("That time has passed. The misfire policy decides if it still runs; by default, at once.")


def as_fields(entry: Entry, zone: tzinfo) -> list[tuple[str, object]]:
    """Everything about an entry, for people; a value ``None`` is left out."""
    written = {**entry_fields(entry), **({"calendar": str(entry.calendar)} if entry.calendar else {})}
    bounds: dict[str, Any] = {it: when(getattr(entry, it), zone) for it in ("start_at", "end_at") if it in written}
    written, last = {**written, **bounds}, when(entry.last_run_at, zone)
    pipeline = _pipeline(entry)
    told = "kwargs" if pipeline else "args" if entry.task == CANVAS else ""
    apart = ("task", "schedule", "unstored", told)
    return [
        ("name", entry.name),
        ("task", call_text(entry.task, entry.args)),
        ("schedule", _words(entry, zone)),
        ("resolved", resolved_text(entry.schedule)),
        *pipeline,
        ("status", entry.status + (f": {entry.paused_note}" if entry.paused_note else "")),
        ("frozen until", _with_distance(entry.frozen_until, zone)),
        ("next run", _with_distance(entry.next_run_at, zone)),
        ("last run", last or "never"),
        ("runs", entry.total_run_count),
        ("skipped", entry.skipped_count or None),
        ("last task", entry.last_task_id),
        ("last error", entry.last_error),
        *((field, shown(value)) for field, value in written.items() if field not in apart),
        ("not stored", ", ".join(entry.unstored) or None),
        ("source", entry.source),
        ("version", f"{entry.version} of {entry.generation}"),
    ]


def _pipeline(entry: Entry) -> list[tuple[str, object]]:
    """What a pipeline does, which its arguments tell programs; nothing for what is none, or cannot be read."""
    if entry.task != START:
        return []
    try:
        found = Definition.decode(entry.kwargs["definition"])
        stages = [f"{number}. {', '.join(names)}" for number, names in enumerate(found.names(), 1)]
        params = shown(pack(found.params, "params")) if found.params else None
    except Exception:  # noqa: BLE001 - anything may stand there
        return []
    more = ((field, getattr(found, field)) for field in ("overlap", "deadline", "at_once", "revoke_siblings"))
    return [("stages", "\n".join(stages)), ("params", params), *((field, shown(it)) for field, it in more if it)]


def shown(value: Any) -> str:
    """A value of a field, in one line."""
    import json

    if isinstance(value, float):
        return f"{value!r} s".replace(".0 s", " s")  # fields with fractions are lengths of time
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _words(entry: Entry, zone: tzinfo) -> str:
    try:
        return shlex.join(schedule_words(entry.schedule, zone))
    except InvalidEntry:
        return repr(entry.schedule)


def _with_distance(instant: datetime | None, zone: tzinfo) -> str | None:
    return None if instant is None else f"{when(instant, zone)}  ({distance(instant, datetime.now(UTC))})"
