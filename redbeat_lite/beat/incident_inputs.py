"""Inputs of the incident watch: entries, the last changes of entries, and reports of workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from celery import Celery

from .._base.times import to_ms
from ..entries.entry import Entry
from ..entries.freezes import recorded
from ..entries.sendable import queue_of
from ..entries.state import EntryState
from ..entries.stored_entry import UNREADABLE as UNREADABLE_ENTRY
from ..entries.stored_entry import parts_of
from ..once.lock_store import LockStore
from ..once.worker_reports import workers
from ..policies import Expect
from ..runs.incident_fold import Watched
from ..store.changes import decode_change, decode_last
from ..store.records import PAGE
from ..store.redis_values import UNREADABLE as UNREADABLE_LINE
from ..store.redis_values import newest_first
from ..store.store import Store
from .dispatch.deadlines import Deadlines

#: Actions after which the time limit for the next success of an entry begins again.
_ACTIONS = ("resumed", "released")

#: Fields whose change has the same effect.
_FIELDS = {"expect", "schedule", "enabled"}


class WatchedEntry(NamedTuple):
    """An entry with its state, and the expectation of its runs."""

    entry: Entry
    state: EntryState
    expect: Expect | None

    def watched(self, is_frozen: bool) -> Watched:
        """Return the facts about the entry that decide on incidents."""
        expect = self.expect
        if expect is not None and self.state.finished:
            expect = expect.but(succeed_every=None)
        return Watched(
            expect,
            muted=self.state.paused or not self.entry.enabled or is_frozen,
            generation=self.state.generation,
            on_failure=self.entry.on_failure,
            forgiven=self.state.forgiven,
        )


def read_watched(
    store: Store, names: Collection[str], deadlines: Deadlines
) -> dict[str, WatchedEntry]:
    """Return the stored and readable entries of these names, by name."""
    entries = {}
    for stored in store.present(names):
        with suppress(*UNREADABLE_ENTRY):
            entry, state = parts_of(stored)
            _, expect = deadlines.kept(entry)
            entries[entry.name] = WatchedEntry(entry, state, expect)
    return entries


class Workers:
    """Workers of one app with ``install()`` that have reported within the last minute."""

    def __init__(self, app: Celery, prefix: str) -> None:
        self._app = app
        self._prefix = prefix
        self._queues: set[str] = set()
        #: Whether at least one of them records runs.
        self.records = False

    def read(self, client: Any) -> None:
        """Read the reports of the workers, in two round trips."""
        reports = workers(LockStore(client, self._prefix)).values()
        self._queues = {queue for report in reports for queue in report.queues}
        self.records = any(report.records for report in reports)

    def find_unconsumed(self, entry: Entry) -> str | None:
        """Return the queue of an entry's messages if no worker consumes it; ``None`` otherwise."""
        queue = queue_of(self._app, entry)
        return None if queue in self._queues else queue


def find_fresh_starts(store: Store, entries: Mapping[str, Entry], now: int) -> dict[str, int]:
    """Return the instants, in epoch ms, from which the time limits of entries count again.

    Such an instant is a change of the entry, its resumption, or the end of a freeze. For a frozen
    entry it is ``now``, because the freeze may end at any time. An entry may have no such instant.

    Parameters:
        entries: entries that have passed a deadline without a nominal time. They are few, so the
            record of changes is read each time.
    """
    if not entries:
        return {}
    starts = _last_changes(store, [*entries])
    lines = newest_first(store.backend.client, store.keys.changes, decode_change, PAGE)
    for freeze in recorded(line for line in lines if line.action in ("frozen", "thawed")):
        end = min(to_ms(freeze.end), now)
        for name, entry in entries.items():
            if freeze.selection.covers(entry):
                starts[name] = max(starts.get(name, end), end)
    return starts


def _last_changes(store: Store, names: list[str]) -> dict[str, int]:
    """Return when each entry was last changed, in epoch ms of the server.

    An entry is left out if its last change does not restart its time limits.
    """
    client: Any = store.backend.client
    starts: dict[str, int] = {}
    records = client.hmget(store.keys.changed, names)
    for name, record in zip(names, records, strict=True):
        # These are the errors of an entry whose last change is not recorded, or is unreadable.
        with suppress(AttributeError, *UNREADABLE_LINE):
            change = decode_last(name, record)
            if change.action == "edited":
                # Only the line of the record of changes has the edited fields.
                line_id = record.partition(b"|")[0]
                [line] = client.xrange(store.keys.changes, line_id, line_id)
                change = decode_change(*line)
            if change.action in _ACTIONS or any(field in _FIELDS for field, *_ in change.fields):
                starts[name] = to_ms(change.at)
    return starts
