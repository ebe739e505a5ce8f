"""Reader of stored entries, which adds the fields that only the app's configuration has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

from celery import Celery
from celery.utils.log import get_logger

from .._base.clock import wall_ms
from .._base.errors import ConfigOwned, CorruptEntry, EntryNotFound
from .._base.public import public
from .._base.text import text_of
from ..entries.changes import Change, Stored, decode_last
from ..entries.configured import config_entry, configured
from ..entries.entry import Entry
from ..entries.freeze import Freeze
from ..entries.lifecycle import after_pause
from ..entries.model import is_name
from ..entries.run import Row, Run
from ..entries.stored_entry import UNREADABLE, parts_of, shown_name
from ..runs.run_store import RunStore
from ..settings import Settings
from ..store.records import chunks
from ..store.store import Store

logger = get_logger(f"celery.{__name__}")

#: Maximum number of entries whose rows one command reads. More would block the server for too long.
_TOGETHER = 100

#: Maximum number of rows of each of these entries that the command reads, for the same reason.
_ROWS = 100


@public
class Record(NamedTuple):
    """Entry with its last runs and changes.

    Parameters:
        entry: the entry with its state and its last change.
        runs: its last runs, the newest first.
        changes: its last changes, the newest first.
        freeze: the freeze of the schedule that holds at present; ``None``: there is none.
    """

    entry: Entry
    runs: list[Run]
    changes: list[Change]
    freeze: Freeze | None


class Reader:
    """Reader of the entries of one app.

    Parameters:
        store: the store to read from; ``None`` for the one that the app's settings name.
    """

    def __init__(self, app: Celery, store: Store | None = None) -> None:
        self.app = app
        self.settings = Settings.from_app(app)
        self.store = store or Store.of(self.settings)

    def whole(self, name: str) -> Entry:
        """Return the entry of this name, with its state and its last change.

        Raises:
            EntryNotFound: there is none.
            CorruptEntry: the stored entry cannot be read.
        """
        entry = self.read(name)
        if entry is None:
            raise not_found(name)
        return entry

    def read(self, name: str) -> Entry | None:
        """Return the entry of this name; ``None`` if it is not stored.

        Raises:
            EntryNotFound: no entry can have this name.
            CorruptEntry: the stored entry cannot be read.
        """
        stored = self.stored(name)
        return None if stored.definition is None else self.entry(stored)

    def stored(self, name: str) -> Stored:
        """Return what is stored under a name.

        Raises:
            EntryNotFound: no entry can have this name.
        """
        # A value that cannot be a name raises the same error as a missing key.
        if not is_name(name):
            raise not_found(name)
        [stored] = self.store.read([name])
        return stored

    def entry(self, stored: Stored) -> Entry:
        """Return the entry with its state; raise CorruptEntry if it cannot be read."""
        try:
            entry, state = parts_of(stored, self.app)
        except CorruptEntry as exc:
            raise CorruptEntry(f"entry {shown_name(stored)!r}: {exc}") from exc
        entry.state = after_pause(state, wall_ms())
        entry.due = stored.score
        entry.last_change = decode_last(entry.name, stored.last_change)
        self.give_rows([entry])
        return self.completed(entry)

    def readable(self, page: Iterable[Stored]) -> Iterator[Entry]:
        """Yield the entries that can be read, in their order; log a warning for any other entry."""
        for group in chunks(page, _TOGETHER):
            entries = []
            for stored in group:
                try:
                    entries.append(self.entry(stored))
                except UNREADABLE as exc:
                    text = "left out of the list, and of every run until it is mended: %s"
                    logger.warning(text, text_of(exc))
            self.give_rows(entries)
            yield from entries

    def give_rows(self, entries: Sequence[Entry]) -> None:
        """Give entries a function that reads their rows (records of runs) when they are needed.

        The first access to the rows of one of these entries reads the rows of all of them, in one
        command.
        """
        names = [entry.name for entry in entries]

        @cache
        def read_all() -> dict[str, list[Row]]:
            """Return name -> rows of all these entries, which the first call reads."""
            return dict(zip(names, self.runs.rows(names, _ROWS), strict=True))

        for entry in entries:
            entry.read_rows = partial(lambda name: read_all()[name], entry.name)

    @property
    def runs(self) -> RunStore:
        """Record of runs."""
        return RunStore(self.store.backend.client, self.store.keys.prefix)

    def completed(self, entry: Entry) -> Entry:
        """Return the entry, with its unstored fields added if this app's configuration has them."""
        if not entry.unstored or entry.owner != self.settings.owner:
            return entry
        try:
            fields = configured(self.app).get(entry.name)
            own = config_entry(self.settings, entry.name, fields, self.app)
        except Exception:  # noqa: BLE001 - a user's configuration may raise any exception
            # The configuration lacks this entry, or the beat refuses it and logs the error. Here,
            # the unstored parts stay unknown.
            return entry
        entry._put(**{field: getattr(own, field) for field in entry.unstored}, unstored={})
        return entry


def not_found(name: object) -> EntryNotFound:
    """Return the error for a name under which no entry is stored."""
    error = EntryNotFound(f"no entry {name!r} is stored")
    error.entry = str(name)
    return error


def check_complete(entry: Entry, *needed: str) -> None:
    """Raise ConfigOwned if only the configuration of another app has one of these fields."""
    if not entry.unstored.keys().isdisjoint(needed):
        raise ConfigOwned(
            f"entry {entry.name!r} has parts that cannot be stored; do this in the app of "
            f"{entry.owner!r}, which has them"
        )
