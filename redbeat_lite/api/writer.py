"""How the API writes: check everything, read, decide, write if nothing has changed meanwhile, else once more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import tzinfo
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ..clock import wall_ms
from ..entries import lifecycle
from ..entries.definition import encode
from ..entries.entry import Entry
from ..entries.fields import check_destination
from ..entries.sendable import check_arguments, check_options
from ..entries.state import State
from ..errors import ConfigOwned, EntryChanged, EntryExists, InvalidEntry
from ..storage.patience import briefly
from ..storage.store import TRIES, Store
from ..storage.stored import PAGE, Edit, Stored, chunks
from .reader import Reader

if TYPE_CHECKING:
    from celery import Celery

# Not Celery's, which is silent where nobody has set up logging, as at a Python prompt.
logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class Writer:
    """Writes entries for one app.

    Parameters:
        app: the Celery app.
        store: where the entries go.
        reader: reads what is there.
        zone: the app's time zone.
    """

    def __init__(self, app: Celery, store: Store, reader: Reader, zone: tzinfo) -> None:
        self._app = app
        self._store = store
        self._reader = reader
        self._zone = zone

    def checked(self, entry: Entry, *, replaces: bool = False, warn: bool = True) -> Entry:
        """The entry, if nothing is wrong with it that can be told before it is written, or that ``encode`` tells.

        Parameters:
            replaces: it may take the place of a stored one. That has ended, perhaps, since it was stored: then the same
                schedule with the same end is as right as it was.
            warn: whether to log a task that this app does not have; who has many entries warns for all of them.

        Raises:
            InvalidEntry: a field is wrong.
        """
        if not isinstance(entry, Entry):
            raise InvalidEntry("entry", "an Entry", entry)
        found = partial(self._found, entry.name) if replaces else lambda: None
        lifecycle.check(entry, wall_ms(), self._zone, found)
        check_options(entry)
        check_destination(entry.options, self._store.prefix)
        if entry.owner is None:  # those of a config entry may be what is evaluated only when it is sent
            check_arguments(entry, self._app)
        if warn:
            self.warn_of_unknown_tasks([entry])
        return entry

    def warn_of_unknown_tasks(self, entries: Iterable[Entry]) -> None:
        """Log the tasks that this app does not have, each once however many entries run it."""
        if not self._app.finalized:
            return
        unknown: dict[str, list[str]] = {}
        for entry in entries:
            if entry.task not in self._app.tasks:
                unknown.setdefault(entry.task, []).append(entry.name)
        for task, names in unknown.items():
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            logger.warning("entry %r%s: no task %r is registered in this app", names[0], more, task)

    def create(self, entries: Sequence[Entry], definition: str | None = None) -> None:
        """Store new entries, which get their state.

        Parameters:
            definition: of a single entry, as it was stored before; with what is not the entry's to say, such as what
                its configuration keeps to itself.

        Raises:
            EntryExists: names were taken; all others are stored.
        """
        edits = [self._creation(entry, None, definition) for entry in entries]
        done = self._store.put(edits)
        taken = [entry.name for entry, ok in zip(entries, done, strict=True) if not ok]
        if taken:
            names = ", ".join(map(repr, taken[:10])) + (f" and {len(taken) - 10} more" if len(taken) > 10 else "")
            raise EntryExists(f"already stored: {names}; pass replace=True to overwrite")

    def replace(self, entry: Entry) -> Entry:
        """Store an entry over one of its name, or as new; returns it with its state."""
        for _ in range(TRIES):
            [stored] = self._store.read([entry.name])
            if self._store.put([self._replacement(entry, stored)]) == [True]:
                return entry
        raise EntryChanged(f"entry {entry.name!r} is being changed too often to be replaced")

    def replace_many(self, entries: Iterable[Entry]) -> None:
        """As :meth:`replace`, in two round trips for a page of entries."""
        for chunk in chunks(entries, PAGE):
            stored = self._store.read([entry.name for entry in chunk])
            edits = [self._replacement(entry, old) for entry, old in zip(chunk, stored, strict=True)]
            done = self._store.put(edits)
            for entry, ok in zip(chunk, done, strict=True):
                if not ok:  # the beat advanced it at this very moment
                    self.replace(entry)

    def edit(self, name: str, change: Callable[[Stored], tuple[_Result, Edit]]) -> _Result:
        """Make a change that ``change`` decides on by what is stored; asks it anew if that was changed meanwhile.

        Raises:
            EntryNotFound: there is no such entry.
        """
        for _ in range(TRIES):
            result, edit = change(self._reader.stored(name))
            if self._store.put([edit]) == [True]:
                return result
        raise EntryChanged(f"entry {name!r} is being changed too often to be edited")

    def revision(self, before: Entry, after: Entry, stored: Stored) -> Edit:
        """The edit that makes ``before`` to ``after``, which gets its new state."""
        after.state, definition = before.known_state, encode(after)
        if definition.encode() != stored.definition:
            after.state = lifecycle.revised(before, after.state, after, wall_ms(), self._zone, walk_on=briefly())
        return self._write(after, stored.state, definition)

    def restatement(self, entry: Entry, stored: Stored, state: State) -> Edit:
        """The edit that gives an entry this state and leaves its definition."""
        entry.state = state
        return self._write(entry, stored.state, None)

    def _replacement(self, entry: Entry, stored: Stored) -> Edit:
        before = self._readable(stored)
        if before is None:
            return self._creation(entry, stored.state)
        check_runtime(before)
        return self.revision(before, entry, stored)

    def _found(self, name: str) -> Entry | None:
        return self._readable(self._store.read([name])[0])

    def _readable(self, stored: Stored) -> Entry | None:
        return next(self._reader.readable([stored]), None) if stored.definition is not None else None

    def _creation(self, entry: Entry, expected: bytes | None, definition: str | None = None) -> Edit:
        entry.state = lifecycle.created(entry, wall_ms(), self._zone)
        return self._write(entry, expected, definition or encode(entry))

    def _write(self, entry: Entry, expected: bytes | None, definition: str | None) -> Edit:
        state = entry.known_state
        entry.due = lifecycle.due_time(entry, state, self._zone)
        return Edit(entry.name, expected, state.encode(), definition, entry.due)


def check_runtime(entry: Entry) -> None:
    """Refuse to change the definition of a config entry.

    Raises:
        ConfigOwned: it is one.
    """
    if entry.owner is not None:
        raise ConfigOwned(
            f"entry {entry.name!r} belongs to the configuration of {entry.owner!r}; change it there, or pause it here"
        )
