"""Mending the schedule as a whole: parts of it that are gone from Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import tzinfo
from typing import Any

from celery.utils.log import get_logger

from ..entries import lifecycle
from ..entries.definition import decode
from ..entries.state import State
from ..errors import CorruptEntry, RedbeatError
from ..once.keys import OnceKeys
from ..storage.connections import Backend
from ..storage.keys import Keys
from ..storage.leader_store import LeaderStore
from ..storage.stored import PAGE, Edit, Stored, Term, chunks

logger = get_logger(__name__)


class Repair:
    """Finds and mends what a server may have lost.

    Parameters:
        backend: where the connections come from.
        store: the schedule.
        keys: the names of the keys.
        zone: the app's time zone.
        progress: told what is done, again and again while it goes on.
    """

    def __init__(
        self,
        backend: Backend,
        store: LeaderStore,
        keys: Keys,
        zone: tzinfo,
        progress: Callable[[str], None],
    ) -> None:
        self._backend = backend
        self._store = store
        self._keys = keys
        self._zone = zone
        self._progress = progress

    def run(self, term: Term, now: int) -> None:
        """Remove what is of a foreign type or belongs to no definition; give the rest the state and due time it lacks.

        Three counts tell whether there is anything to do, so that a large and healthy schedule costs nothing.

        Parameters:
            term: of the leader that mends.
            now: epoch milliseconds.

        Raises:
            Lost: the term is over.
        """
        for key, found, kind in self._store.drop_foreign(term, OnceKeys(self._keys.prefix).kinds):
            logger.error("beat: %s was a %s, not a %s, and is removed", key, found, kind)
        client: Any = self._backend.client
        pipe = client.pipeline(transaction=True)
        pipe.hlen(self._keys.entries)
        pipe.hlen(self._keys.state)
        pipe.zcard(self._keys.due)
        if len(set(pipe.execute())) == 1:
            return
        logger.error("beat: parts of the schedule are gone from Redis; rebuilding them from what is left")
        names = {
            name for key in (self._keys.entries, self._keys.state) for name, _ in client.hscan_iter(key, count=PAGE)
        }
        names |= {name for name, _ in client.zscan_iter(self._keys.due, count=PAGE)}
        self._each(term, names, lambda stored: self._restored(stored, now))

    def _each(self, term: Term, names: Iterable[str | bytes], mend: Callable[[Stored], Edit | None]) -> None:
        def edits(stored: Stored) -> list[Edit]:
            try:
                edit = mend(stored)
            except Exception as exc:  # noqa: BLE001 - a schedule may raise anything; the others must be mended
                logger.debug("beat: %r is left to the tick that meets it: %s", stored.name, exc)
                return []
            return [] if edit is None else [edit]

        for chunk in chunks(names, PAGE):
            self._progress("mending the schedule")
            self._store.rewrite(chunk, edits, term)

    def _restored(self, stored: Stored, now: int) -> Edit:
        if stored.definition is None:
            logger.error("beat: the definition of %r is gone, so the entry is removed", stored.name)
            return Edit(stored.name, stored.state, None)
        try:
            entry = decode(stored.name.decode(), stored.definition)
        except (RedbeatError, UnicodeDecodeError):
            # Due at once: the tick that meets it puts it in quarantine.
            return Edit(stored.name, stored.state, State.new(now).encode(), None, now)
        try:
            state = State.decode(stored.state or b"").edited()
        except CorruptEntry:
            state = lifecycle.created(entry, now, self._zone)
        return Edit(stored.name, stored.state, state.encode(), None, lifecycle.due_time(entry, state, self._zone))
