"""What a look knows of the entries that it names, read again where a definition has changed, and of the workers."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from celery import Celery

from ..clock import wall_ms
from ..entries.entry import Entry
from ..entries.sendable import queue_of
from ..entries.state import EntryState
from ..entries.stored_entry import UNREADABLE, entry_of, state_of
from ..expect import Expect
from ..once.keys import OnceKeys
from ..once.worker_reports import heard_of
from ..runs.facts import Watched
from ..storage.replies import server_ms
from ..storage.store import Store
from ..storage.stored import PAGE, Stored, chunks
from .dispatch.deadlines import Deadlines


class Found(NamedTuple):
    """An entry with its state, and what is expected of it."""

    entry: Entry
    state: EntryState
    expect: Expect | None

    def watched(self, frozen: bool) -> Watched:
        """What is watched of it."""
        expect = replace(self.expect, succeed_every=None) if self.expect and self.state.finished else self.expect
        muted, state = self.state.paused or not self.entry.enabled or frozen, self.state
        return Watched(expect, muted, state.generation, self.entry.on_failure, state.forgiven)


class WatchedEntries:
    """Reads entries."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._known: dict[str, tuple[bytes | None, Entry]] = {}

    def read(self, store: Store, names: Collection[str]) -> dict[str, Found]:
        """Those of these entries that are stored and can be read."""
        found = {}
        for chunk in chunks(names, PAGE):
            for name, stored in zip(chunk, store.read(chunk), strict=True):
                with suppress(*UNREADABLE):
                    entry, state = self._entry(name, stored), state_of(stored)
                    _, expect = self._deadlines.kept(entry)
                    found[name] = Found(entry, state, expect)
        return found

    def _entry(self, name: str, stored: Stored) -> Entry:
        definition, entry = self._known.get(name, (None, None))
        if entry is None or definition != stored.definition:
            entry = entry_of(stored)
            if len(self._known) >= PAGE:
                self._known.clear()
            self._known[name] = stored.definition, entry
        return entry


class Heard:
    """What the workers of one app that were heard of within a minute say of themselves, as :meth:`ask` found it."""

    def __init__(self, app: Celery, prefix: str) -> None:
        self._app = app
        self._key = OnceKeys(prefix).workers
        self._queues = set[str]()
        self.records = False  #: whether somebody records what becomes of runs
        self.ahead = 0  #: by how many milliseconds the clock here is ahead of the server's

    def ask(self, client: Any) -> None:
        """Read what they say, by this redis-py client; two round trips."""
        found, now = client.hgetall(self._key), server_ms(client)
        self.ahead = wall_ms() - now
        heard = heard_of(found, now / 1000).values()
        self._queues = {queue for said in heard for queue in said.queues}
        self.records = any(said.records for said in heard)

    def untaken(self, entry: Entry) -> str | None:
        """The queue that an entry's messages go to, if none of these workers takes from it."""
        queue = queue_of(self._app, entry)
        return None if queue in self._queues else queue
