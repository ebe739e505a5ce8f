"""Mending the schedule as a whole: parts of it that are gone from Redis."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from typing import Any

from celery.utils.log import get_logger

from ..actors import BEAT
from ..entries import lifecycle
from ..entries.state import EntryState
from ..entries.stored_entry import UNREADABLE, edit_of, entry_of, state_of
from ..errors import CorruptEntry
from ..storage.changes import line_of
from ..storage.leader_store import LeaderStore
from ..storage.stored import PAGE, Edit, Stored, Term, chunks
from .config_entries import ConfigPauses

logger = get_logger(f"celery.{__name__}")


class Repair:
    """Finds and mends what a server may have lost."""

    def __init__(self, store: LeaderStore, zone: tzinfo, progress: Callable[[str], None], pauses: ConfigPauses) -> None:
        self._store = store
        self._zone = zone
        self._progress = progress
        self._pauses = pauses

    def run(self, term: Term, now: int) -> None:
        """Remove what belongs to no definition; give the rest the state and due time it lacks.

        Entries are read only if three counts differ, so a large and healthy schedule costs little.
        """
        entries, states, due = self._counts()
        if not entries == states == due:
            self._rebuild(term, now)

    def _counts(self) -> list[int]:
        keys = self._store.keys
        counted = [keys.entries, keys.state, keys.due]
        counts: list[int] = self._store.backend.scripts.run("schedule/counts", counted)
        return counts

    def _rebuild(self, term: Term, now: int) -> None:
        logger.error("beat: parts of the schedule are gone from Redis; rebuilding them from what is left")
        client: Any = self._store.backend.client
        keys = self._store.keys
        names = {name for key in (keys.entries, keys.state) for name, _ in client.hscan_iter(key, count=PAGE)}
        names |= {name for name, _ in self._store.scan()}
        for chunk in chunks(names, PAGE):
            self._progress("mending the schedule")
            self._store.rewrite(chunk, lambda stored: self._edits(stored, now), term)

    def _edits(self, stored: Stored, now: int) -> list[Edit]:
        try:
            return [self._restored(stored, now)]
        except Exception as exc:  # noqa: BLE001 - a schedule may raise anything; the others must be mended
            logger.debug("beat: %r is left to the tick that meets it: %s", stored.name, exc)
            return []

    def _restored(self, stored: Stored, now: int) -> Edit:
        if stored.definition is None:
            logger.error("beat: the definition of %r is gone, so the entry is removed", stored.name)
            line = line_of(BEAT, "removed", "its definition was gone from Redis")
            return Edit(stored.name, stored.state, None, line=line)
        try:
            entry = entry_of(stored)
        except UNREADABLE:
            # Due at once: the tick that meets it puts it in quarantine.
            return Edit(stored.name, stored.state, EntryState.new(now).encode(), None, now)
        try:
            state = state_of(stored).edited()
        except CorruptEntry:
            state = self._pauses.restored(entry.name, lifecycle.created(entry, now, self._zone))
        return edit_of(entry, state, self._zone, expected=stored.state)
