"""Calendars for users, and the edits of entries when a calendar gets a new revision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping

from celery import Celery

from .._base.actors import who
from .._base.clock import wall_ms
from .._base.errors import EntryNotFound, InvalidEntry
from .._base.public import public
from .._base.text import nearest_hint
from ..entries.changes import Edit, Stored, line_of
from ..entries.entry import Entry
from ..entries.model import NAME, encode
from ..entries.on_calendar import replanned, with_calendar
from ..entries.stored_entry import edit_of, line_of_write, readable_parts
from ..entries.words import counted
from ..rules.calendars import Calendar
from ..store.store import Store


@public
class Calendars(MutableMapping[str, Calendar]):
    """Stored calendars of a schedule, as :attr:`Schedules.calendars`. Every process sees the same.

    ``calendars[name] = calendar`` stores a calendar and edits the entries that name it, 250 at a
    time. For this it reads all entries, 1,000 per round trip. If it is interrupted, store the same
    calendar once more: that edits the other entries, and makes no new revision.
    """

    def __init__(self, store: Store, app: Celery, actor: str | None) -> None:
        self._store = store
        self._app = app
        self._actor = actor

    def all(self) -> dict[str, Calendar]:
        """Return the calendars that can be read, by name, in one round trip."""
        return self._store.calendars()

    def __getitem__(self, name: str) -> Calendar:
        """Return the calendar of this name.

        Raises:
            EntryNotFound: there is none; a ``KeyError``.
        """
        stored = self.all()
        if name not in stored:
            hint = nearest_hint(name, stored)
            message = f"no calendar {name!r} is stored"
            raise EntryNotFound(f"{message}; {hint}" if hint else message)
        return stored[name]

    def __setitem__(self, name: str, calendar: Calendar) -> None:
        """Store a calendar, and reschedule the entries that name it.

        Raises:
            InvalidEntry: the calendar or its name is wrong. Or the calendar makes an entry too
                large; then all other entries were edited.
        """
        if "@" in NAME.read("name", name):
            raise InvalidEntry("name", "a name without @, which its revision follows", name)
        if not isinstance(calendar, Calendar):
            raise InvalidEntry("calendar", "a Calendar", calendar)
        stored, is_new = self._store.put_calendar(name, calendar)
        if is_new:
            days = counted(len(stored.days), "day", "days")
            note = f"calendar {stored}: {days}, until {stored.until}"
            action = "added" if stored.revision == 1 else "edited"
            self._store.record(line_of(who(self._actor), action, note))
        # Do this for a known calendar, too: an interrupted call may have left entries unedited.
        self._replan(name)

    def __delitem__(self, name: str) -> None:
        """Remove a calendar that no entry names.

        Raises:
            EntryNotFound: there is none.
            InvalidEntry: an entry names it.
        """
        _ = self[name]  # This raises EntryNotFound.
        for user in self._users(name):  # The first of them is enough for the error.
            hint = f"entry {user!r} does"
            raise InvalidEntry("calendar", "one that no entry names", name, hint=hint)
        self._store.backend.client.hdel(self._store.keys.calendars, name)
        self._store.record(line_of(who(self._actor), "removed", f"calendar {name}"))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.all()))

    def __len__(self) -> int:
        return len(self.all())

    def settle(self, written: Iterable[Entry]) -> None:
        """Edit entries again if they were written with an outdated revision of a calendar.

        The race: this process reads the calendar. Another process stores a new revision, and edits
        all entries with the calendar. Then this process writes its entry with the old revision. The
        other process could not edit that entry, so this process does.

        Parameters:
            written: entries that this process has just written.
        """
        used = {entry.calendar for entry in written if isinstance(entry.calendar, Calendar)}
        if not used:
            return
        # Calendars of two revisions are never equal. So a calendar is outdated if it equals none of
        # the stored calendars.
        outdated = used.difference(self.all().values())
        for name in {calendar.name for calendar in outdated}:
            self._replan(name)

    def _replan(self, name: str) -> None:
        """Give the entries that name a calendar its stored revision, and reschedule them.

        If another process stores a further revision meanwhile, the entries are edited once more. If
        the calendar is removed, they keep the revision that they have.

        Raises:
            InvalidEntry: the calendar makes an entry too large. All other entries were edited.
        """
        calendar = self.all().get(name)
        if calendar is None:
            return
        faults: list[InvalidEntry] = []

        def edit(stored: Stored) -> Edit | None:
            """Return the edit of one entry; ``None`` if the entry needs no edit."""
            entry, state = readable_parts(stored, self._app)
            if entry is None or state is None:
                return None
            # The entry may have this revision already, or may have got another calendar meanwhile.
            if entry.calendar == calendar or entry.calendar_name != name:
                return None
            after = with_calendar(entry, calendar)
            try:
                definition = encode(after)
            except InvalidEntry as exc:
                faults.append(exc)
                return None
            state = replanned(after, state, wall_ms())
            return edit_of(
                after,
                state,
                expected=stored.state,
                definition=definition,
                line=line_of_write(who(self._actor), stored, definition),
            )

        self._store.rewrite(self._users(name), edit)
        if self.all().get(name) != calendar:
            # Another process has stored a further revision, or removed the calendar.
            self._replan(name)
        elif faults:
            raise faults[0]

    def _users(self, name: str) -> Iterator[str]:
        """Yield the names of the entries that name a calendar."""
        for stored in self._store.pages():
            # Most entries have no calendar. A search in the text is faster than decoding them.
            if b'"calendar":' in (stored.definition or b""):
                entry, _ = readable_parts(stored, self._app)
                if entry is not None and entry.calendar_name == name:
                    yield entry.name
