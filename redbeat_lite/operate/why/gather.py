"""Reads what an answer rests on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...api.schedules import Schedules
from ...beat.status import Status, status
from ...entries.entry import Entry
from ...errors import EntryNotFound
from ...instants import from_ms
from ...once.runtime import Runtime
from ...once.worker.visibility import workers
from ...runs.run import Run
from ...settings import Settings
from ...storage.changes import Change
from ..queues import queue_of
from .evidence import Evidence, Gap

if TYPE_CHECKING:
    from celery import Celery

#: The most that a record keeps of one entry, and the lines of the record of changes that are looked at.
_MOST = 1000


def gather(app: Celery, name: str) -> tuple[Entry | None, Evidence]:
    """The entry of this name, ``None`` where none is stored, and what is known of it; some ten round trips.

    Raises:
        EntryNotFound: nothing is known of such an entry.
        CorruptEntry: what Redis holds of it cannot be read.
        redis.exceptions.RedisError: the server does not answer.
    """
    schedules, found = Schedules(app), status(app)
    missing = entry = None
    try:
        entry = schedules[name]
    except EntryNotFound as exc:
        missing = exc
    # The record of all changes has the terms of leaders.
    lines, changes = schedules.changes(limit=_MOST), schedules.changes(name, limit=_MOST)
    queue = app.conf.task_default_queue if entry is None else queue_of(app, entry)
    evidence = Evidence(
        name,
        found,
        runs=_runs(schedules, name),
        kept=Settings.from_app(app).history if entry is None or entry.history is None else entry.history,
        changes=tuple(changes),
        since=min((change.at for change in (*lines, *changes)), default=None),
        gaps=(*_gaps(lines), *_gap_now(found)),
        quarantine=schedules.quarantined().get(name),
        refused=schedules.refused().get(name),
        queue=queue,
        takers=tuple(sorted(each for each, said in workers(Runtime.of(app)).items() if queue in said.queues)),
    )
    if missing is not None and not (evidence.runs or changes or evidence.quarantine or evidence.refused):
        raise missing
    return entry, evidence


def _runs(schedules: Schedules, name: str) -> tuple[Run, ...]:
    try:
        return tuple(schedules.runs(name, limit=_MOST))
    except EntryNotFound:
        return ()


def _gaps(changes: Iterable[Change]) -> Iterator[Gap]:
    """The times without a leader, of which each leader writes down the one before its term."""
    for change in changes:
        ticked = {field: before for field, before, _ in change.fields}.get("ticked")
        if change.action == "term begun" and ticked is not None and ticked.isdecimal():
            yield Gap(from_ms(int(ticked)), change.at, change.actor)


def _gap_now(found: Status) -> Iterator[Gap]:
    if found.leader is None and found.last_tick is not None:
        yield Gap(found.last_tick)
