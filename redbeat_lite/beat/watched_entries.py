"""What the entries that a look names expect of their runs, read again only where a definition has changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from celery import Celery

from ..entries.entry import Entry
from ..entries.expected import leaves_no_result
from ..entries.state import EntryState
from ..entries.stored_entry import UNREADABLE, entry_of, state_of
from ..errors import CorruptEntry
from ..expect import Expect
from ..runs.facts import Watched
from ..storage.store import Store
from ..storage.stored import PAGE, Stored, chunks
from .dispatch.deadlines import Deadlines


class Found(NamedTuple):
    """An entry with its state, and what is expected of it; whether the result backend shall tell, but knows nothing."""

    entry: Entry
    state: EntryState
    expect: Expect | None
    history: int
    mute: bool = False

    @property
    def trusts(self) -> bool:
        """Whether it goes by the result backend where nothing is recorded."""
        return self.expect is not None and self.expect.trust == "backend"

    def watched(self, frozen: bool) -> Watched:
        """What is watched of it."""
        expect = replace(self.expect, succeed_every=None) if self.expect and self.state.finished else self.expect
        muted, state = self.state.paused or not self.entry.enabled or frozen, self.state
        return Watched(expect, muted, state.generation, self.entry.on_failure, state.forgiven)


class WatchedEntries:
    """Reads entries."""

    def __init__(self, app: Celery, deadlines: Deadlines) -> None:
        self._app, self._deadlines = app, deadlines
        self._known: dict[str, tuple[bytes | None, Entry]] = {}

    def read(self, store: Store, names: Collection[str]) -> dict[str, Found]:
        """Those of these entries that are stored and can be read."""
        found = {}
        for chunk in chunks(names, PAGE):
            for name, stored in zip(chunk, store.read(chunk), strict=True):
                entry = self._entry(name, stored)
                if entry is None:
                    continue
                try:
                    state = state_of(stored)
                except CorruptEntry:
                    continue
                history, expect = self._deadlines.kept(entry)
                mute = expect is not None and expect.trust == "backend" and leaves_no_result(entry, self._app)
                if expect is not None and mute:
                    expect = replace(expect, trust="workers")
                found[name] = Found(entry, state, expect, history, mute)
        return found

    def _entry(self, name: str, stored: Stored) -> Entry | None:
        definition, entry = self._known.get(name, (None, None))
        if entry is not None and definition == stored.definition:
            return entry
        try:
            entry = entry_of(stored)
        except UNREADABLE:
            return None
        if len(self._known) >= PAGE:
            self._known.clear()
        self._known[name] = stored.definition, entry
        return entry
