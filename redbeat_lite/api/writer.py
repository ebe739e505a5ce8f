"""How the API writes: check everything, read, decide, write if nothing has changed meanwhile, else
once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from .._base.actors import Who, who
from .._base.celery_app import is_importing, load_tasks
from .._base.clock import wall_ms
from .._base.errors import (
    ConfigOwned,
    CorruptEntry,
    EntryChanged,
    EntryExists,
    EntryNotFound,
    InvalidEntry,
)
from ..entries import lifecycle
from ..entries.definition import encode
from ..entries.differences import line_of_write
from ..entries.entry import Entry
from ..entries.fields import check_destination
from ..entries.message import alive_at_once
from ..entries.on_calendar import Known, give_calendar
from ..entries.rule_words import either_day_words, every_second_words
from ..entries.sendable import check_arguments, check_options, misfit, serializer_of
from ..entries.state import EntryState
from ..entries.stored_entry import decode, edit_of
from ..entries.words import counted, listed
from ..once.canvas import CANVAS, sent
from ..store.changes import Action, Line, line_of
from ..store.records import PAGE, Edit, Stored
from ..store.store import TRIES
from ..store.time_limits import brief_walk
from .calendars import Calendars
from .reader import Reader

# Not Celery's, which is silent where nobody has set up logging, as at a Python prompt.
logger = logging.getLogger(__name__)

#: Messages of one entry that may wait at once without a word.
_MANY_ALIVE = 10

_Result = TypeVar("_Result")


class Writer:
    """Writes entries for the app of a reader: as ``actor`` where nobody else is named, or else the
    user of this process.
    """

    def __init__(self, reader: Reader, actor: str | None) -> None:
        self._reader, self._app, self._store, self._zone = (
            reader,
            reader.app,
            reader.store,
            reader.zone,
        )
        self._actor = actor
        self._loaded = False
        self.calendars = Calendars(self._store, self._zone, lambda: self.who)

    @property
    def who(self) -> Who:
        """Who writes here and now."""
        return who(self._actor)

    def checked(
        self,
        entry: Entry,
        *,
        replaces: bool = False,
        warn: bool = True,
        calendars: Known | None = None,
    ) -> Entry:
        """The entry, if nothing is wrong with it that can be told before it is written, or that
        ``encode`` tells; else raises InvalidEntry.

        Parameters:
            replaces: it may take the place of a stored one. That has ended, perhaps, since it was
                stored: then the same schedule with the same end is as right as it was.
            warn: whether to log a task that this app does not have; who has many entries warns for
                all of them.
            calendars: those that are stored, for who has many entries; by default they are read.
        """
        if not isinstance(entry, Entry):
            raise InvalidEntry("entry", "an Entry", entry)
        found = partial(self._found, entry.name) if replaces else lambda: None
        now = wall_ms()
        give_calendar(entry, calendars or self.calendars.all, now, self._zone, found)
        lifecycle.check(entry, now, self._zone, found)
        check_options(entry)
        check_destination(entry.options, self._store.keys.prefix)
        if (
            entry.owner is None
        ):  # those of a config entry may be what is evaluated only when it is sent
            check_arguments(entry, serializer_of(entry, self._app))
        if warn:
            self.warn_of_unknown_tasks([entry])
            self._warn_of_misfit(entry)
            self._warn_of_many_alive(entry)
            for words in (either_day_words(entry.schedule), every_second_words(entry.schedule)):
                if words is not None:
                    logger.warning("entry %r: %s", entry.name, words)
        return entry

    def _warn_of_many_alive(self, entry: Entry) -> None:
        """Log that messages of an entry pile up while nobody takes them, as they live for longer
        than its interval.
        """
        slack = self._reader.settings.slack_ms
        alive = alive_at_once(entry, self._zone, slack)
        if alive > _MANY_ALIVE:
            why = (
                "each lives for its interval and redbeat_lite_clock_slack (%g s); with once=True "
                "it is one"
            )
            text = (
                "entry %r: while no worker takes them, %d of its messages are alive at once, as "
                f"{why}"
            )
            logger.warning(text, entry.name, alive, slack / 1000)

    def warn_of_unknown_tasks(self, entries: Iterable[Entry], told: set[str] | None = None) -> None:
        """Log each task of these entries that the app does not know, except those in ``told``.

        The tasks are added to ``told``. Nothing is logged while a module is being imported, because
        the app may have more tasks afterwards.
        """
        if not self._app.finalized and is_importing():
            return
        self._app.finalize()
        told, unknown, known = (
            set() if told is None else told,
            dict[str, list[str]](),
            self._app.tasks.keys(),
        )
        for entry in entries:
            if entry.task in known and entry.task != CANVAS:  # as that of nearly each
                continue
            for task in sorted(sent(entry.task, entry.args) - known - told):
                unknown.setdefault(task, []).append(entry.name)
        told.update(unknown)
        if unknown:
            self._load_tasks()
        for task, names in unknown.items():
            if task in known:
                continue
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            logger.warning("entry %r%s: no task %r is registered in this app", names[0], more, task)

    def _load_tasks(self) -> None:
        """Import the modules with the app's tasks once, as a web process may have imported none."""
        if not self._loaded:
            self._loaded = True
            with suppress(Exception):  # a worker reports the errors of these modules
                load_tasks(self._app)

    def _warn_of_misfit(self, entry: Entry) -> None:
        """Log a warning if the entry's task does not take its arguments."""
        if not self._app.finalized or entry.task == CANVAS:
            return
        why = misfit(self._app.tasks.get(entry.task), entry)
        if why is not None:
            logger.warning(
                "entry %r: %s does not take these arguments: %s", entry.name, entry.task, why
            )

    def create(
        self, entry: Entry, definition: str | None = None, action: Action = "added", note: str = ""
    ) -> None:
        """Store a new entry, which gets its state; raises EntryExists where the name is taken.

        Parameters:
            definition: as it was stored before; with what is not the entry's to say, such as what
                its configuration keeps to itself.
        """
        line = line_of(self.who, action, note)
        check_taken(self._created([entry], [self._creation(entry, None, line, definition)]))

    def added(self, entries: Sequence[Entry], calendars: Known, told: set[str]) -> list[str]:
        """Check and store new entries, which get their state; returns the names that were taken.

        For ``calendars`` see :meth:`checked`, for ``told`` :meth:`warn_of_unknown_tasks`.
        """
        line = line_of(self.who, "added")
        edits = list[Edit]()
        names = set[str]()
        for entry in entries:
            self.checked(entry, warn=False, calendars=calendars)
            if entry.name in names:
                raise InvalidEntry("name", "a name that no other entry of the list has", entry.name)
            names.add(entry.name)
            edits.append(self._creation(entry, None, line))
        self.warn_of_unknown_tasks(entries, told)
        return self._created(entries, edits)

    def _created(self, entries: Sequence[Entry], edits: Sequence[Edit]) -> list[str]:
        done = self._store.put(edits)
        self.calendars.settle(entries)
        return [entry.name for entry, ok in zip(entries, done, strict=True) if not ok]

    def replace(self, entries: Iterable[Entry], note: str = "") -> None:
        """Store entries over those of their names, or as new; they get their state. Two round trips
        for a page.
        """
        given = {entry.name: entry for entry in entries}
        made = self._store.rewrite(
            given,
            lambda old: [self._replacement(given[old.name.decode()], old, note)],
            at_once=PAGE,
        )
        self.calendars.settle([*given.values()])
        if left := len(given) - len(made):
            raise EntryChanged(
                f"{counted(left, 'entry is', 'entries are')} being changed too often to be replaced"
            )

    def update(
        self, name: str, changes: Mapping[str, Any], if_version: int | None, note: str
    ) -> Entry:
        """Change these fields of a runtime entry, if it has this version; returns it with its
        state.
        """
        if if_version is not None and type(if_version) is not int:
            raise InvalidEntry("if_version", "None or a whole number", if_version, entry=name)

        def edit(stored: Stored) -> tuple[Entry, Edit]:
            before = self._reader.entry(stored)
            _check_runtime(before)
            if if_version is not None and before.version != if_version:
                raise EntryChanged(
                    f"entry {name!r} has version {before.version} by now, not {if_version}"
                )
            after = self.checked(before.replace(**changes), replaces=True)
            return after, self._revision(before, after, stored, note)

        after = self.edit(name, edit)
        self.calendars.settle([after])
        return after

    def resumed(self, entry: Entry, *, catch_up: bool) -> EntryState:
        """The state after a resumption; the very same if the entry is not paused."""
        state = entry.known_state
        if not state.paused:
            return state
        return lifecycle.resumed(
            entry, state, wall_ms(), self._zone, catch_up=catch_up, walk_on=brief_walk()
        )

    def release(self, name: str) -> Entry:
        """Put a quarantined entry back, as new; returns it with its state."""
        record = self._store.quarantined().get(name)
        if record is None:
            raise EntryNotFound(f"no entry {name!r} is in quarantine")
        definition = record.get("definition")
        if not isinstance(definition, str):
            raise CorruptEntry(
                f"entry {name!r} has no definition left to put back: {record.get('error')}"
            )
        entry = self._reader.completed(decode(name, definition.encode()))
        try:
            self.checked(entry)
        except InvalidEntry as exc:
            raise CorruptEntry(str(exc)) from exc
        self.create(entry, definition, "released")
        return entry

    def restate(self, name: str, change: Callable[[Entry], EntryState], line: Line) -> Entry:
        """Give an entry the state that ``change`` makes, recorded if it is another; returns it with
        its state.
        """

        def edit(stored: Stored) -> tuple[Entry, Edit]:
            entry = self._reader.entry(stored)
            before, entry.state = entry.state, change(entry)
            return entry, self.write(
                entry, stored.state, None, line if entry.state is not before else None
            )

        return self.edit(name, edit)

    def edit(self, name: str, change: Callable[[Stored], tuple[_Result, Edit]]) -> _Result:
        """Make a change that ``change`` decides on by what is stored; asks it anew if that was
        changed meanwhile.
        """
        for _ in range(TRIES):
            result, edit = change(self._reader.stored(name))
            if self._store.put([edit]) == [True]:
                return result
        raise EntryChanged(f"entry {name!r} is being changed too often to be edited")

    def _revision(self, before: Entry, after: Entry, stored: Stored, note: str) -> Edit:
        """The edit that makes ``before`` to ``after``, which gets its new state."""
        lifecycle.keep_resolved(before, after)
        after.state, definition, line = before.known_state, encode(after), None
        if definition.encode() != stored.definition:
            after.state = lifecycle.revised(
                before, after.state, after, wall_ms(), self._zone, walk_on=brief_walk()
            )
            line = line_of_write(self.who, stored, definition, note)
        return self.write(after, stored.state, definition, line)

    def _replacement(self, entry: Entry, stored: Stored, note: str) -> Edit:
        before = self.readable(stored)
        if before is None:
            return self._creation(entry, stored.state, line_of_write(self.who, stored, None, note))
        _check_runtime(before)
        return self._revision(before, entry, stored, note)

    def _found(self, name: str) -> Entry | None:
        return self.readable(self._store.read([name])[0])

    def readable(self, stored: Stored) -> Entry | None:
        """The entry, with its state, if it is there and can be read."""
        return (
            next(self._reader.readable([stored]), None) if stored.definition is not None else None
        )

    def _creation(
        self, entry: Entry, expected: bytes | None, line: Line, definition: str | None = None
    ) -> Edit:
        entry.state = lifecycle.created(entry, wall_ms(), self._zone)
        return self.write(entry, expected, definition or encode(entry), line)

    def write(
        self, entry: Entry, expected: bytes | None, definition: str | None, line: Line | None
    ) -> Edit:
        """The edit that writes an entry, as :func:`edit_of` makes it."""
        edit = edit_of(
            entry,
            entry.known_state,
            self._zone,
            expected=expected,
            definition=definition,
            line=line,
        )
        entry.due = edit.score
        return edit


def check_taken(names: Sequence[str]) -> None:
    """Raise EntryExists if there are names that could not be created."""
    if names:
        raise EntryExists(f"already stored: {listed(names, 10)}; pass replace=True to overwrite")


def _check_runtime(entry: Entry) -> None:
    """Raise ConfigOwned if the definition is that of a config entry."""
    if entry.owner is not None:
        raise ConfigOwned(
            f"entry {entry.name!r} belongs to the configuration of {entry.owner!r}; change it "
            "there, or pause it here"
        )
