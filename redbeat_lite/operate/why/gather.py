"""Reads what an answer rests on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

from ...api.change_log import Scan
from ...api.reader import Reader, there
from ...api.record import read_record
from ...beat.status import Status, asking, reports_in, status_in
from ...entries.change_words import last_sign_of_life
from ...entries.freezes import recorded
from ...entries.sendable import queue_of
from ...pipeline.keys import run_of, turns_key
from ...storage.changes import Change
from ...storage.replies import texts
from ...storage.scripts import checked
from ...storage.store import Store, quarantined_in
from .case import Case, Gap

if TYPE_CHECKING:
    from celery import Celery

#: More than a record keeps of one entry, and than there are lines in the record of changes.
_RUNS, _LINES = 1000, 20_000

#: What happened to more than one entry, and may have kept it from running.
_KINDS = ("term begun", "frozen", "thawed")


def gather(app: Celery, name: str, now: datetime, zone: tzinfo, store: Store | None = None) -> Case:
    """What is known of an entry.

    It takes three round trips, and reads the whole record of changes.

    Parameters:
        store: where the entries are; ``None``: a connection of its own.

    Raises:
        EntryNotFound: nothing is known of such an entry.
        CorruptEntry: what Redis holds of it cannot be read.
        redis.exceptions.RedisError: the server does not answer.
    """
    reader = Reader(app, store)
    settings, store = reader.settings, reader.store
    scan = Scan(store, name, _LINES, kinds=_KINDS)
    line = ("ZRANGE", turns_key(settings.key_prefix, name), 0, -1)
    asked = (asking(store.keys), ("HGET", store.keys.quarantine, name), line)
    found = read_record(reader, name, _RUNS, scan, *asked)
    (reply, aside, turns), entry = checked(found.replies), found.entry
    fares = status_in(reply)
    queue = app.conf.task_default_queue if entry is None else queue_of(app, entry)
    case = Case(
        repr(name),
        entry,
        now,
        zone,
        fares,
        runs=tuple(found.runs),
        kept=settings.history if entry is None or entry.history is None else entry.history,
        changes=tuple(found.changes),
        unrecorded=entry is not None and found.kept is not None and entry.last_change is None,
        since=scan.since,
        gaps=tuple(_gaps(found.lines, fares)),
        freezes=tuple({each.id: each for each in (*fares.freezes, *recorded(found.lines))}.values()),
        quarantine=None if aside is None else quarantined_in(aside),
        refused=fares.refused.errors.get(name),
        queue=queue,
        line=tuple(map(run_of, texts(turns))),
        takers=tuple(sorted(each for each, said in reports_in(reply).items() if queue in said.queues)),
    )
    there(name, entry or case.runs or case.changes or case.quarantine or case.refused or None)
    return case


def _gaps(lines: Iterable[Change], found: Status) -> Iterator[Gap]:
    """The times without a leader: each leader writes down the one before its term; and the one that lasts."""
    for change in lines:
        if change.action == "term begun" and (ticked := last_sign_of_life(change)) is not None:
            yield Gap(ticked, change.at, change.actor)
    if found.leader is None and found.last_tick is not None:
        yield Gap(found.last_tick)
