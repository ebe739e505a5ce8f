"""Pauses of config entries that a beat remembers, because a server may lose its data.

The configuration brings such an entry back within a second, and without its pause it would run again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from celery.utils.log import get_logger

from ..entries.state import EntryState
from ..errors import CorruptEntry
from ..storage.leader_store import LeaderStore

logger = get_logger(f"celery.{__name__}")


class ConfigPauses:
    """Paused config entries of one owner, with the notes of their pauses."""

    def __init__(self, store: LeaderStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._notes: dict[str, str] = {}
        #: Stamp of the last pause or resumption that :meth:`look` has seen.
        self.seen = b""

    def look(self, stamp: bytes = b"") -> None:
        """Read which entries are paused; an entry that is not stored any more keeps its pause."""
        client: Any = self._store.backend.client
        names = [*self._store.config_names(self._owner)]
        states = client.hmget(self._store.keys.state, names) if names else []
        for name, stored in zip(names, states, strict=True):
            with suppress(CorruptEntry):
                state = EntryState.decode(stored or b"")
                self._notes.pop(name, None)
                if state.paused:
                    self._notes[name] = state.note
        self.seen = stamp

    def restored(self, name: str, created: EntryState) -> EntryState:
        """Return the state of an entry that is stored again: paused, if the lost one was."""
        if name not in self._notes:
            return created
        logger.warning("beat: config entry %r was gone from Redis, and is paused as before", name)
        return replace(created, paused=True, note=self._notes[name])
