"""Writer of entries: checks, reads, decides, and writes if the entry has not changed meanwhile.

If another process has changed the entry, the writer reads it again and retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
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
from .._base.fields import length
from .._base.times import MAX_MS, YEAR, Duration, iso
from ..entries import lifecycle
from ..entries.apply_options import check_destination
from ..entries.canvas import sent_tasks
from ..entries.changes import Action, Difference, Edit, Line, Stored, line_of
from ..entries.entry import Entry
from ..entries.freeze import Freeze, freeze_of, freeze_text
from ..entries.message import check_arguments, check_encoding, misfit, serializer_of
from ..entries.model import encode
from ..entries.on_calendar import ReadCalendars, give_calendar
from ..entries.state import EntryState
from ..entries.stored_entry import decode, edit_of, line_of_write
from ..entries.words import counted, listed
from ..rules.cron import either_day_words, every_second_words
from ..store.records import PAGE, chunks
from ..store.store import TRIES
from .calendars import Calendars
from .reader import Reader, not_found

# Not Celery's get_logger(), whose loggers are silent without a logging setup, as at a Python
# prompt.
logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: Length of a pause or of a freeze: at most 1,000 years, so that a datetime can hold its end in any
#: zone.
_LENGTH = length(0.001, 1000 * YEAR)


class Writer:
    """Writer of entries for the app of a reader.

    Parameters:
        actor: author of the changes, unless :func:`acting_as` names another one; ``None`` for the
            user of this process.
    """

    def __init__(self, reader: Reader, actor: str | None) -> None:
        self._reader = reader
        self._app = reader.app
        self._store = reader.store
        self._actor = actor
        self._loaded = False
        self.calendars = Calendars(self._store, self._app, actor)

    @property
    def who(self) -> Who:
        """Author of a change that is made now."""
        return who(self._actor)

    def add(self, entries: Iterable[Entry], note: str = "", *, replaces: bool) -> None:
        """Store entries, which get their states; see :meth:`redbeat_lite.Schedules.add_many`."""
        logged = set[str]()
        taken_names = list[str]()
        groups = [[*entries]] if isinstance(entries, Collection) else chunks(entries, PAGE)
        for group in groups:
            self._check_all(group, logged, replaces=replaces)
            if replaces:
                self.replace(group, note)
            else:
                taken_names += self.create(group, note=note)
        _check_taken(taken_names)

    def _check_all(
        self, entries: Sequence[Entry], logged: set[str], *, replaces: bool = False
    ) -> None:
        """Check entries before the first of them is stored, and log warnings about them.

        Parameters:
            logged: warnings that were logged before and are not logged again. This call adds to the
                set the warnings that it logs.
            replaces: as for :meth:`_check`.

        Raises:
            InvalidEntry: a field is wrong. Or two entries have the same name, and ``replaces`` is
                not set.
        """
        # Read the calendars at most once, and only if an entry names one.
        calendars = cache(self.calendars.all)
        names = set[str]()
        for entry in entries:
            self._check(entry, calendars, replaces=replaces)
            if replaces:
                # This only checks: it raises for an entry that cannot be stored. Without this call,
                # replace() would raise only after earlier entries were stored.
                encode(entry)
            elif entry.name in names:
                raise InvalidEntry("name", "a name that no other entry of the list has", entry.name)
            names.add(entry.name)
        for entry in entries:
            for warning in self._warnings(entry):
                if warning not in logged:
                    logged.add(warning)
                    logger.warning("entry %r: %s", entry.name, warning)

    def _check(self, entry: Entry, calendars: ReadCalendars, *, replaces: bool) -> None:
        """Raise InvalidEntry if a field of an entry is wrong, and give the entry its calendar.

        Parameters:
            calendars: function that reads the stored calendars.
            replaces: whether the entry may replace a stored one. Then a schedule that has ended is
                valid if the stored entry has the same schedule with the same end.
        """
        if not isinstance(entry, Entry):
            raise InvalidEntry("entry", "an Entry", entry)
        entry._put(app=self._app)

        def replaced() -> Entry | None:
            """Return the stored entry that this one replaces; called only if a check needs it."""
            if not replaces:
                return None
            [stored] = self._store.read([entry.name])
            return self.readable(stored)

        now = wall_ms()
        give_calendar(entry, calendars, now, replaced)
        lifecycle.check(entry, now, replaced)
        check_encoding(entry)
        check_destination(entry.options, self._store.keys.prefix)
        if entry.owner is None:
            # The arguments of a config entry are not checked, because some must be evaluated only
            # when they are sent.
            check_arguments(entry, serializer_of(entry))

    def _warnings(self, entry: Entry) -> Iterator[str]:
        """Yield warnings about the tasks, the arguments and the schedule of an entry.

        Tasks are not looked at while a module is being imported, because the app may have more
        tasks afterwards.
        """
        app = self._app
        if app.finalized or not is_importing():
            app.finalize()
            yield from self._unknown_tasks(entry)
            error = misfit(app.tasks.get(entry.task), entry)
            if error is not None:
                yield f"{entry.task} does not take these arguments: {error}"
        yield from filter(
            None, (either_day_words(entry.schedule), every_second_words(entry.schedule))
        )

    def _unknown_tasks(self, entry: Entry) -> Iterator[str]:
        """Yield a warning for each task of an entry that the app does not know."""
        tasks = self._app.tasks
        unknown = [task for task in sent_tasks(entry.task, entry.args) if task not in tasks]
        if unknown and not self._loaded:
            # A web process may not have imported the modules of the tasks. An error in them is no
            # fault of the entry. Workers report it when they start.
            self._loaded = True
            with suppress(Exception):
                load_tasks(self._app)
        for task in sorted(unknown):
            if task not in tasks:
                hint = "correct the name, or import its module"
                yield f"no task {task!r} is registered in this app; {hint}"

    def create(
        self, entries: Sequence[Entry], action: Action = "added", note: str = ""
    ) -> list[str]:
        """Store new entries, which get their states.

        Returns:
            the names that were taken, so that these entries were not stored.
        """
        line = line_of(self.who, action, note)
        edits = [self._creation(entry, expected=None, line=line) for entry in entries]
        created = self._store.put(edits)
        # If another process has stored a new revision of a calendar meanwhile, use that revision.
        self.calendars.settle(entries)
        return [entry.name for entry, is_new in zip(entries, created, strict=True) if not is_new]

    def replace(self, entries: Iterable[Entry], note: str = "") -> None:
        """Replace the stored entries of these names, or add new ones; the entries get their states.

        It takes two round trips for 250 entries.

        Raises:
            EntryChanged: others change entries faster than they can be replaced.
            ConfigOwned: a name belongs to a config entry.
        """
        by_name = {entry.name: entry for entry in entries}

        def edit(stored: Stored) -> Edit:
            """Return the edit of one entry; called once per attempt."""
            return self._replacement(by_name[stored.name.decode()], stored, note)

        # rewrite() retries entries that others change meanwhile, and returns the edited names.
        written = self._store.rewrite(by_name, edit)
        # If another process has stored a new revision of a calendar meanwhile, use that revision.
        self.calendars.settle([*by_name.values()])
        left = len(by_name) - len(written)
        if left:
            raise EntryChanged(
                f"{counted(left, 'entry is', 'entries are')} being changed too often to be replaced"
            )

    def update(
        self, name: str, changes: Mapping[str, Any], if_version: int | None, note: str
    ) -> Entry:
        """Change fields of a runtime entry, and return the entry with its new state.

        Parameters:
            if_version: change the entry only if it has this version; ``None`` for any version.
        """
        if if_version is not None and type(if_version) is not int:
            raise InvalidEntry("if_version", "None or a whole number", if_version, entry=name)

        def edit(stored: Stored) -> tuple[Entry, Edit]:
            """Return the changed entry, and the edit that stores it; called once per attempt."""
            before = self._reader.entry(stored)
            _check_runtime(before)
            if if_version is not None and before.version != if_version:
                raise EntryChanged(
                    f"entry {name!r} has version {before.version} by now, not {if_version}"
                )
            after = before.replace(**changes)
            self._check_all([after], set(), replaces=True)
            return after, self._revision(before, after, stored, note)

        after = self.edit(name, edit)
        # If another process has stored a new revision of the calendar meanwhile, use that revision.
        self.calendars.settle([after])
        return after

    def pausing(
        self, note: str, seconds: Duration | None
    ) -> tuple[Callable[[Entry], EntryState], Line]:
        """Return the function that pauses an entry, and the line about the pause.

        The function returns the same state for an entry whose present pause ends later.

        Parameters:
            note: reason in its stored form.
            seconds: length of the pause; ``None``: it lasts until somebody resumes the entry.
        """
        until = None
        fields: tuple[Difference, ...] = ()
        if seconds is not None:
            until = end_after(wall_ms(), seconds)
            fields = (("until", None, iso(until)),)

        def pause(entry: Entry) -> EntryState:
            state = entry.state
            present_end = state.paused_until or MAX_MS
            if until is not None and state.paused and until < present_end:
                return state  # The entry is paused for longer already.
            return lifecycle.paused(state, note, until)

        return pause, line_of(self.who, "paused", note, fields)

    def resumed(self, entry: Entry, *, catch_up: bool) -> EntryState:
        """Return the state after a resumption; the same object if the entry is not paused."""
        state = entry.state
        if not state.paused:
            return state
        return lifecycle.resumed(entry, state, wall_ms(), catch_up=catch_up)

    def hold_freeze(self, freeze: Freeze) -> Freeze:
        """Store a freeze, and return it; if one holds that ends later, this one stays.

        Raises:
            EntryChanged: somebody else has made or ended a freeze just now.
        """
        before = self._store.freeze()
        held = freeze_of(before, wall_ms())
        if held is not None and held.until >= freeze.until:
            return held
        # A difference is a field, its value before and its value after.
        difference: Difference = ("until", None, freeze.until.isoformat())
        line = line_of(self.who, "frozen", freeze.note, (difference,))
        self.set_freeze(before, freeze, line)
        return freeze

    def set_freeze(self, before: bytes, freeze: Freeze | None, line: Line) -> None:
        """Store a freeze or a thaw (``None``), if the stored text is still ``before``."""
        after = freeze_text(freeze, before, wall_ms())
        if not self._store.set_freeze(before, after, line):
            raise EntryChanged("somebody else has made or ended a freeze just now")

    def release(self, name: str) -> Entry:
        """Put a quarantined entry back as a new one, and return it with its state.

        An entry in quarantine is one that the beat could not use and has set aside. Unless all
        checks pass, it stays there. Storing it under its name also removes it from quarantine.

        Raises:
            EntryNotFound: no entry of this name is in quarantine.
            CorruptEntry: its definition is missing or still wrong.
            EntryExists: an entry of this name is stored by now.
        """
        record = self._store.quarantined().get(name)
        if record is None:
            raise EntryNotFound(f"no entry {name!r} is in quarantine")
        definition = record.get("definition")
        if not isinstance(definition, str):
            raise CorruptEntry(
                f"entry {name!r} has no definition left to put back: {record.get('error')}"
            )
        entry = self._reader.completed(decode(name, definition.encode(), self._app))
        try:
            self._check_all([entry], set())
        except InvalidEntry as exc:
            raise CorruptEntry(str(exc)) from exc
        _check_taken(self.create([entry], "released"))
        return entry

    def restate(self, name: str, change: Callable[[Entry], EntryState], line: Line) -> Entry:
        """Change the state of an entry, and return the entry.

        Parameters:
            change: function that returns the new state, or the same object to leave the entry
                unchanged.
            line: line for the record of changes, which is written if the state has changed.
        """

        def edit(stored: Stored) -> tuple[Entry, Edit]:
            """Return the entry, and the edit of its state; called once per attempt."""
            entry = self._reader.entry(stored)
            before = entry.state
            after = change(entry)
            recorded = None if after is before else line
            return entry, edit_of(entry, after, expected=stored.state, line=recorded)

        return self.edit(name, edit)

    def edit(self, name: str, change: Callable[[Stored], tuple[_Result, Edit]]) -> _Result:
        """Edit a stored entry; if another process has changed it meanwhile, read it and retry.

        Parameters:
            change: function that gets the stored entry, and returns the edit and the result that
                this call returns. It is called again for each retry.

        Raises:
            EntryNotFound: there is no such entry.
            EntryChanged: other processes change the entry all the time.
        """
        for _ in range(TRIES):
            stored = self._reader.stored(name)
            if stored.definition is None:
                raise not_found(name)
            result, edit = change(stored)
            if self._store.put([edit]) == [True]:
                return result
        raise EntryChanged(f"entry {name!r} is being changed too often to be edited")

    def _revision(self, before: Entry, after: Entry, stored: Stored, note: str) -> Edit:
        """Return the edit that replaces ``before`` with ``after``; ``after`` gets its new state.

        If both have the same definition, the state stays, and the record of changes gets no line.

        Parameters:
            before: the entry that is decoded from ``stored``, with its state.
        """
        state = before.state
        definition = encode(after)
        line = None
        if definition.encode() != stored.definition:
            state = lifecycle.after_edit(before, state, after, wall_ms())
            line = line_of_write(self.who, stored, definition, note)
        return edit_of(after, state, expected=stored.state, definition=definition, line=line)

    def _replacement(self, entry: Entry, stored: Stored, note: str) -> Edit:
        """Return the edit that replaces a stored entry, or adds a new one.

        A stored entry that cannot be read is replaced by a new one.

        Raises:
            ConfigOwned: the stored entry is a config entry.
        """
        before = self.readable(stored)
        if before is None:
            line = line_of_write(self.who, stored, definition=None, note=note)
            return self._creation(entry, expected=stored.state, line=line)
        _check_runtime(before)
        return self._revision(before, entry, stored, note)

    def readable(self, stored: Stored) -> Entry | None:
        """Return the entry with its state; ``None`` if it does not exist or cannot be read."""
        if stored.definition is None:
            return None
        return next(self._reader.readable([stored]), None)

    def _creation(self, entry: Entry, expected: bytes | None, line: Line) -> Edit:
        """Return the edit that adds a new entry, which gets its first state.

        Parameters:
            expected: state that must be stored for the edit to be made; ``None``: no entry of this
                name may be stored.
        """
        return edit_of(
            entry,
            lifecycle.created(entry, wall_ms()),
            expected=expected,
            definition=encode(entry),
            line=line,
        )


def _check_taken(names: Sequence[str]) -> None:
    """Raise EntryExists if there are names under which no new entry could be stored."""
    if names:
        raise EntryExists(f"already stored: {listed(names, 10)}; pass replace=True to overwrite")


def _check_runtime(entry: Entry) -> None:
    """Raise ConfigOwned if the entry is a config entry."""
    if entry.owner is not None:
        raise ConfigOwned(
            f"entry {entry.name!r} belongs to the configuration of {entry.owner!r}; change it "
            "there, or pause it here"
        )


def end_after(now: int, seconds: Duration) -> int:
    """Return the end, in epoch ms, of a pause or a freeze that begins at ``now``.

    Raises:
        InvalidEntry: the length is wrong.
    """
    length_seconds: float = _LENGTH.read("seconds", seconds)
    return now + round(1000 * length_seconds)
