"""Reads what an answer rests on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

from ...api.change_log import kept_change, last_change, of_name
from ...api.schedules import Schedules
from ...beat.status import Status, status
from ...entries.fields import is_name
from ...entries.freezes import recorded
from ...entries.sendable import queue_of
from ...entries.words import last_sign_of_life
from ...errors import EntryNotFound
from ...once.runtime import Runtime
from ...once.worker.visibility import workers
from ...runs.run import Run
from ...settings import Settings
from ...storage.changes import Change
from ...storage.store import Store
from .case import Case, Gap

if TYPE_CHECKING:
    from celery import Celery

#: More than a record keeps of one entry, and than there are lines in the record of changes.
_RUNS, _LINES = 1000, 20_000


def gather(app: Celery, name: str, now: datetime, zone: tzinfo) -> Case:
    """What is known of an entry.

    Some ten round trips, and one for each 1,000 lines of the record of changes, all of which are read.

    Raises:
        EntryNotFound: nothing is known of such an entry.
        CorruptEntry: what Redis holds of it cannot be read.
        redis.exceptions.RedisError: the server does not answer.
    """
    schedules, settings, found = Schedules(app), Settings.from_app(app), status(app)
    missing = entry = None
    try:
        entry = schedules[name]
    except EntryNotFound as exc:
        if not is_name(name):
            raise
        missing = exc
    lines = schedules.changes(limit=_LINES)
    stored, raw, _ = Store.of(settings).read_with_change(name)
    kept = kept_change(name, raw)
    changes = of_name(name, lines, kept, _LINES)
    queue = app.conf.task_default_queue if entry is None else queue_of(app, entry)
    case = Case(
        repr(name),
        entry,
        now,
        zone,
        found,
        runs=_runs(schedules, name),
        kept=settings.history if entry is None or entry.history is None else entry.history,
        changes=tuple(changes),
        unrecorded=stored.definition is not None and kept is not None and last_change(stored, raw) is None,
        since=lines[-1].at if lines else None,
        gaps=tuple(_gaps(lines, found)),
        freezes=tuple({each.id: each for each in (*found.freezes, *recorded(lines))}.values()),
        quarantine=schedules.quarantined().get(name),
        refused=schedules.refused().get(name),
        queue=queue,
        takers=tuple(sorted(each for each, said in workers(Runtime.of(app)).items() if queue in said.queues)),
    )
    if missing is not None and not (case.runs or changes or case.quarantine or case.refused):
        raise missing
    return case


def _runs(schedules: Schedules, name: str) -> tuple[Run, ...]:
    with suppress(EntryNotFound):
        return tuple(schedules.runs(name, limit=_RUNS))
    return ()


def _gaps(lines: Iterable[Change], found: Status) -> Iterator[Gap]:
    """The times without a leader: each leader writes down the one before its term; and the one that lasts."""
    for change in lines:
        if change.action == "term begun" and (ticked := last_sign_of_life(change)) is not None:
            yield Gap(ticked, change.at, change.actor)
    if found.leader is None and found.last_tick is not None:
        yield Gap(found.last_tick)
