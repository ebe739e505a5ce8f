"""Entries as the API reads them: decoded, with their state, and with what only the app's
configuration holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import tzinfo
from functools import partial
from itertools import chain, takewhile
from typing import Any, TypeVar

from celery import Celery
from celery.utils.log import get_logger

from .._base.clock import wall_ms
from .._base.errors import ConfigOwned, CorruptEntry, EntryNotFound
from .._base.text import text_of
from .._base.times import from_ms
from ..entries.configured import config_entry, configured
from ..entries.entry import Entry
from ..entries.fields import is_name
from ..entries.freezes import Freezes
from ..entries.stored_entry import UNREADABLE, parts_of, shown_name
from ..runs.run import Row
from ..runs.run_store import RunStore, rows_in
from ..settings import Settings
from ..store.records import PAGE, Stored, chunks
from ..store.scripts import checked
from ..store.store import Asked, Store
from .change_log import last_change

logger = get_logger(f"celery.{__name__}")

_T = TypeVar("_T")

#: Entries whose rows are read in one command, and how many of each at most: it shall block nobody.
_TOGETHER, _ROWS = 100, 100

#: Entries that are read first by who may need no more.
_FIRST = 50


class Reader:
    """Reads entries for one app; from a store of its own, where none is given."""

    def __init__(self, app: Celery, store: Store | None = None) -> None:
        self.app = app
        self.settings = Settings.from_app(app)
        self.store = store or Store.of(self.settings)

    @property
    def zone(self) -> tzinfo:
        """That of the app. One that is wrong fails where it is needed, and keeps nobody from the
        rest.
        """
        zone: tzinfo = self.app.timezone
        return zone

    def stored(self, name: str) -> Stored:
        """What Redis holds for this name; raises EntryNotFound where that is nothing."""
        # A name that no entry can have is not there, as in any mapping.
        return _there(name, self.store.read([name])[0] if is_name(name) else None)

    def whole(self, name: str) -> Entry:
        """The entry of this name, with its state, its last change, and until when it is frozen;
        raises EntryNotFound where there is none, and as :meth:`entry`.
        """
        stored, kept, freezes, _ = (
            self.store.read_with_change(name) if is_name(name) else (None, None, b"", [])
        )
        return self.whole_of(_there(name, stored), kept, Freezes.of(freezes))

    def whole_of(
        self, there: Stored, kept: bytes | None, freezes: Freezes, rows: list[Row] | None = None
    ) -> Entry:
        """The same of what was read, and of its rows where they were; raises as :meth:`entry`."""
        entry = self.entry(there)
        if rows is not None:
            entry.read_rows = lambda: rows[:_ROWS]
        entry.last_change = last_change(there, kept)
        until = freezes.until(wall_ms(), entry)
        entry.frozen_until = None if until is None else from_ms(until)
        return entry

    def entry(self, stored: Stored) -> Entry:
        """The entry, with its state; raises CorruptEntry where what Redis holds cannot be read."""
        entry = self._entry(stored)
        self._give_rows([entry])
        return entry

    def _entry(self, stored: Stored) -> Entry:
        try:
            entry, state = parts_of(stored)
        except CorruptEntry as exc:
            raise CorruptEntry(f"entry {shown_name(stored)!r}: {exc}") from exc
        entry.state, entry.app, entry.due = state, self.app, stored.score
        return self.completed(entry)

    def readable(self, page: Iterable[Stored]) -> Iterator[Entry]:
        """The entries of a page, without those that cannot be read."""
        for group in chunks(page, _TOGETHER):
            entries = [entry for stored in group if (entry := self._readable(stored)) is not None]
            self._give_rows(entries)
            yield from entries

    def _readable(self, stored: Stored) -> Entry | None:
        try:
            return self._entry(stored)
        except UNREADABLE as exc:
            logger.warning(
                "left out of the list, and of every run until it is mended: %s", text_of(exc)
            )
            return None

    def _give_rows(self, entries: Sequence[Entry]) -> None:
        """Let these entries read their rows, those of all in one command when one of them is first
        asked for them.
        """
        names, found = [entry.name for entry in entries], dict[str, list[Row]]()

        def rows_of(name: str) -> list[Row]:
            if not found:
                rows = self.runs.rows(names, _ROWS)
                found.update(zip(names, rows, strict=True))
            return found[name]

        for entry in entries:
            entry.read_rows = partial(rows_of, entry.name)

    def read_rows(self, entries: Sequence[Entry], *asked: Asked) -> list[Any]:
        """Read the rows of these entries, and in the same round trip what else is asked: the
        replies.
        """
        names = [entry.name for entry in entries]
        ask = [self.runs.asking(page, _ROWS) for page in chunks(names, PAGE)]
        replies = (
            checked(self.store.backend.scripts.together([*asked, *ask])) if asked or ask else []
        )
        read = chain.from_iterable(rows_in(reply)[0] for reply in replies[len(asked) :])
        for entry, rows in zip(entries, read, strict=True):
            entry.read_rows = partial(list, rows)
        return [*replies[: len(asked)]]

    @property
    def runs(self) -> RunStore:
        """The record of runs."""
        return RunStore(self.store.backend.client, self.store.keys.prefix)

    def next_due(self, offset: int, limit: int) -> list[Entry]:
        """At most ``limit`` entries from rank ``offset`` on, in due order."""
        starts = range(offset, offset + limit, PAGE)
        pages = (self.store.page(start, min(PAGE, starts.stop - start)) for start in starts)
        # By name, because an entry that moves between two round trips may be read twice.
        found = {stored.name: stored for page in takewhile(bool, pages) for stored in page}
        return [*self.readable(found.values())]

    def all(self) -> Iterator[Entry]:
        """All entries that can be read, in due order, a page per round trip."""
        return self.readable(self.store.pages())

    def soonest(self) -> Iterator[Entry]:
        """As :meth:`all`, for who may need no more than the first few."""
        return chain.from_iterable(map(self.readable, self.store.paged(_FIRST)))

    def completed(self, entry: Entry) -> Entry:
        """Return a config entry with its unstored parts, if this app's configuration has them."""
        if not entry.unstored or entry.owner != self.settings.owner:
            return entry
        fields = configured(self.app).get(entry.name)
        if fields is None:
            return entry
        try:
            own = config_entry(self.settings, entry.name, fields, app=self.app)
        except Exception:  # noqa: BLE001 - what a user wrote may raise anything; it is told as refused
            return entry
        entry._put(**{field: getattr(own, field) for field in entry.unstored}, unstored={})
        return entry


def _there(name: str, stored: Stored | None) -> Stored:
    return there(name, None if stored is None or stored.definition is None else stored)


def there(name: str, found: _T | None) -> _T:
    """What was found of this name; raises EntryNotFound where that is nothing."""
    if found is None:
        raise EntryNotFound(f"no entry {name!r} is stored")
    return found


def check_complete(entry: Entry, *needed: str) -> None:
    """Raise ConfigOwned if one of these fields is known to another app alone."""
    if not entry.unstored.keys().isdisjoint(needed):
        raise ConfigOwned(
            f"entry {entry.name!r} holds what cannot be stored, and only the app of "
            f"{entry.owner!r} knows; do it there"
        )
