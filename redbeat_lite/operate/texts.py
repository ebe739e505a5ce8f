"""Texts about entries, runs and beats, which the command line and the page share."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from .._base.clock import wall_ms
from .._base.errors import InvalidEntry
from .._base.times import MAX_MS, from_ms, in_zone
from ..api.run_history import with_sent
from ..beat.status import LeaderStatus, Status
from ..entries.backfill import Backfill
from ..entries.canvas import CANVAS, call_text
from ..entries.entry import Entry
from ..entries.model import entry_fields
from ..entries.run import NOT_DONE, Outcome, Row, Run
from ..entries.words import counted, span, took
from ..pipeline.definition import Definition
from ..pipeline.pipeline_keys import START
from ..rules import resolved_text
from ..store.records import Refused
from .entry_options import option_words, schedule_options

#: Outcome of a run -> its mark in a list.
MARKS: dict[Outcome, str] = {
    "succeeded": "✓",
    **dict.fromkeys(NOT_DONE, "✗"),
    "running": "▸",
    "retrying": "↻",
    "skipped": "-",
    "left out": "-",
    "waiting": "·",
    "unknown": "·",
}


def next_run(entry: Entry, zone: tzinfo) -> str:
    """Return in words when an entry runs next, or until when it is paused.

    If it has no next run, the result is its status.
    """
    if entry.paused_until is not None:
        return f"paused until {in_zone(entry.paused_until, zone)}"
    if entry.next_run_at is None:
        return entry.status
    return in_zone(entry.next_run_at, zone)


def last_runs(entry: Entry, history: int, limit: int = 5) -> Sequence[Row]:
    """Return an entry's last runs, the newest first.

    Parameters:
        history: count of runs that are kept of an entry without its own ``history``.
    """
    # with_sent() adds, as waiting, the runs that were sent and have no record yet.
    return with_sent(entry, entry.rows, history, now=wall_ms(), limit=limit)


def marks(entry: Entry, history: int) -> str:
    """Return a mark for each of an entry's last runs, the newest at the right.

    Parameters:
        history: as for :func:`last_runs`.
    """
    return "".join(MARKS[run.outcome] for run in reversed(last_runs(entry, history)))


def entry_lines(entry: Entry, zone: tzinfo) -> list[tuple[str, object]]:
    """Return all that is known of an entry, as pairs of a label and a value.

    A pair with the value ``None`` is not shown.
    """
    # entry_fields() returns only the fields of the definition that differ from their defaults.
    fields = entry_fields(entry)
    if entry.calendar:
        fields["calendar"] = str(entry.calendar)
    if entry.tags:
        fields["tags"] = ", ".join(entry.tags)
    for bound in ("start_at", "end_at"):
        if bound in fields:
            fields[bound] = in_zone(getattr(entry, bound), zone)
    # Leave out these fields. Each of them is shown below, in a line of its own.
    hidden = ["task", "schedule", "unstored"]
    pipeline = _pipeline_lines(entry)
    # The stages of a pipeline are in ``kwargs``, and the tasks of a canvas in ``args``.
    if pipeline:
        hidden.append("kwargs")
    elif entry.task == CANVAS:
        hidden.append("args")
    paused = f": {entry.paused_note}" if entry.paused_note else ""
    return [
        ("name", entry.name),
        ("task", call_text(entry.task, entry.args)),
        ("schedule", _schedule_options(entry, zone)),
        ("resolved", resolved_text(entry.schedule)),
        *pipeline,
        ("status", f"{entry.status}{paused}"),
        ("paused until", _with_distance(entry.paused_until, zone)),
        ("next run", _with_distance(entry.next_run_at, zone)),
        ("last run", in_zone(entry.last_run_at, zone) if entry.last_run_at else "never"),
        ("runs", entry.total_run_count),
        ("left out", entry.skipped_count or None),
        ("last task", entry.last_task_id),
        ("last error", entry.last_error),
        *((name, value_text(value)) for name, value in fields.items() if name not in hidden),
        ("not stored", ", ".join(entry.unstored) or None),
        ("source", entry.source),
        # An entry that is removed and added again has another generation.
        ("version", f"{entry.version} of {entry.generation}"),
    ]


def _pipeline_lines(entry: Entry) -> list[tuple[str, object]]:
    """Return the lines about the pipeline that an entry starts: its stages, params and options.

    There are no lines if the entry starts no pipeline, or if its definition cannot be decoded.
    """
    if entry.task != START:
        return []
    try:
        definition = Definition.decode(entry.kwargs["definition"])
        stages = enumerate(definition.names(), 1)
        text = "\n".join(f"{number}. {', '.join(names)}" for number, names in stages)
    except Exception:  # noqa: BLE001 - the arguments of the entry may be anything
        return []
    lines: list[tuple[str, object]] = [("stages", text)]
    for field in ("params", "overlap", "deadline", "at_once", "revoke_siblings"):
        value = getattr(definition, field)
        if value:
            lines.append((field, value_text(value)))
    return lines


def value_text(value: Any) -> str:
    """Return the value of a field on one line."""
    if isinstance(value, float):
        # Each field that is a float is a length of time.
        return f"{value!r} s".replace(".0 s", " s")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _schedule_options(entry: Entry, zone: tzinfo) -> str:
    """Return the schedule as options of the command line.

    A schedule that cannot be stored has no options. For such a schedule, return its ``repr``.
    """
    try:
        return shlex.join(option_words(schedule_options(entry.schedule, zone)))
    except InvalidEntry:
        return repr(entry.schedule)


def _with_distance(instant: datetime | None, zone: tzinfo) -> str | None:
    """Return an instant with its distance from now, in words."""
    if instant is None:
        return None
    return f"{in_zone(instant, zone)}  ({distance(instant, datetime.now(UTC))})"


def run_time(run: Run) -> str | None:
    """Return the duration of a run in words; ``None`` if it is not known."""
    return None if run.seconds is None else took(run.seconds)


def remark(run: Run) -> str | None:
    """Return the error of a run, or another remark about it; ``None`` if there is no remark."""
    if run.until is not None:
        # One record stands for several occurrences in a row that were left out.
        seconds = (run.until - run.scheduled_at).total_seconds()
        return f"{run.count} occurrences over {span(seconds)}"
    if run.outcome == "unknown" and run.began_at is not None:
        return "it began, and no worker has reported its end"
    if run.outcome == "failed" and run.retry_at is not None:
        # A retry was planned, and the run is over, so the retry never began.
        return f"its retry expired; {run.error}"
    return run.error


def quarantined_since(record: Mapping[str, Any]) -> datetime | None:
    """Return since when an entry is in quarantine; ``None`` if its record does not say it.

    Parameters:
        record: as :meth:`Schedules.quarantined` returns it. Its time may be missing or wrong.
    """
    at = record.get("at")
    return from_ms(at) if isinstance(at, int) and 0 <= at <= MAX_MS else None


def backfill_status(backfill: Backfill) -> str:
    """Return the status of a backfill in words. For an ended backfill, it says how it ended."""
    if backfill.ended:
        return backfill.ended
    if backfill.paused:
        status = "paused"
    elif backfill.attempts:  # This is the number of failed publishes in a row.
        status = "failing"
    else:
        status = "running"
    return f"{status}, {len(backfill.active)} in flight" if backfill.active else status


def status_lines(status: Status, zone: tzinfo) -> Iterator[tuple[str, object]]:
    """Yield the status of the beats, as pairs of a label and a value."""
    if status.leader is None:
        yield "leader", "nobody leads; start a beat: celery -A ... beat -S redbeat_lite.Scheduler"
    else:
        yield from _leader_lines(status.leader, status, zone)
    standbys = [str(standby) for standby in status.standbys if standby.well]
    yield "stand-bys", ", ".join(standbys) or "none"
    last_tick = "never" if status.last_tick is None else distance(status.last_tick, status.now)
    yield "last tick", last_tick
    yield "lag", span(status.lag)
    yield "overdue", status.overdue
    yield "entries", status.entries
    yield "quarantined", status.quarantined
    yield "workers", f"{len(status.clocks)} with install()"
    yield "refused", _refused_text(status.refused)
    freeze = status.freeze
    if freeze is not None:
        until = f"until {in_zone(freeze.until, zone)} ({distance(freeze.until, status.now)})"
        note = f": {freeze.note}" if freeze.note else ""
        yield "frozen", f"{until} by {freeze.actor}{note}"
        # A freeze stops neither messages that are queued already nor runs of pipelines.
        runs = counted(status.pipelines, "run", "runs")
        yield "goes on", f"queued messages; {runs} of pipelines"


def _leader_lines(
    leader: LeaderStatus,
    status: Status,
    zone: tzinfo,
) -> Iterator[tuple[str, object]]:
    """Yield the status of the leader, as pairs of a label and a value."""
    yield "leader", str(leader)
    since = f"{in_zone(leader.since, zone)} ({distance(leader.since, status.now)})"
    yield "since", f"{since}, term {leader.term}"
    yield "runs sent", leader.sent
    yield "runs left out", leader.skipped
    yield "failed publishes", leader.failed
    yield "dispatch", leader.dispatch or "nothing was sent yet"
    if leader.failing_for is not None:
        yield "trouble", f"{leader.why}, for {span(leader.failing_for)}"


def _refused_text(refused: Refused) -> str:
    """Return the count of the refused config entries, and a line for each error that is known.

    The leader reports only some of the errors if it refuses very many entries.
    """
    lines = [str(refused.count)]
    lines += [f"{name!r}: {error}" for name, error in refused.errors.items()]
    if refused.count > len(refused.errors):
        lines.append(f"and {refused.count - len(refused.errors)} more")
    return "\n".join(lines)


def distance(instant: datetime, now: datetime) -> str:
    """Return how far away an instant is, in one or two units: ``in 3 h 5 min``, ``12 s ago``."""
    seconds = (instant - now).total_seconds()
    text = span(abs(seconds))
    return f"in {text}" if seconds >= 0 else f"{text} ago"
