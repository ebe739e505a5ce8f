"""Calendars as users see them, and the edits of their entries that a new revision takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from datetime import tzinfo
from functools import partial

from ..actors import Who
from ..clock import wall_ms
from ..entries.definition import decode
from ..entries.differences import line_of_write
from ..entries.fields import check_name
from ..entries.on_calendar import calendar_name, moved
from ..entries.stored_entry import edit_of, readable_parts
from ..errors import EntryNotFound, InvalidEntry
from ..schedules.calendars import Calendar
from ..storage.calendars import CalendarStore
from ..storage.changes import line_of
from ..storage.json_values import dumps, loads
from ..storage.store import Store
from ..storage.stored import AT_ONCE, Edit, Stored


class Calendars(MutableMapping[str, Calendar]):
    """The stored calendars of a schedule, as :attr:`Schedules.calendars` has them; every process sees the same.

    ``calendars[name] = calendar`` stores one and edits the entries that name it, 500 in a step. Interrupted, it is done
    by storing the same once more: that makes no new revision. All entries are read for it, 1,000 in a round trip.
    """

    def __init__(self, store: Store, zone: tzinfo, who: Callable[[], Who]) -> None:
        self._store, self._zone, self._who = store, zone, who
        self._calendars = CalendarStore(store)

    def __getitem__(self, name: str) -> Calendar:
        """The calendar of this name.

        Raises:
            EntryNotFound: there is none; a ``KeyError``.
        """
        try:
            return self._calendars.all()[name]
        except KeyError:
            raise EntryNotFound(f"no calendar {name!r} is stored") from None

    def __setitem__(self, name: str, calendar: Calendar) -> None:
        """Store a calendar, and plan its entries by it.

        Raises:
            InvalidEntry: it is no calendar, or no name.
        """
        if "@" in check_name("name", name):
            raise InvalidEntry("name", "a name without @, which its revision follows", name)
        if not isinstance(calendar, Calendar):
            raise InvalidEntry("calendar", "a Calendar", calendar)
        stored, is_new = self._calendars.put(name, calendar)
        if is_new:
            self._store.record(line_of(self._who(), "edited", f"calendar {stored}, until {stored.until}"), [])
        decide = partial(self._edits, calendar=stored)
        behind = (each.name for each in self._store.pages() if decide(each))
        self._store.rewrite(behind, decide, at_once=AT_ONCE)

    def __delitem__(self, name: str) -> None:
        """Remove a calendar that no entry names.

        Raises:
            EntryNotFound: there is none.
            InvalidEntry: an entry names it.
        """
        _ = self[name]
        for stored in self._store.pages():
            entry, _ = readable_parts(stored)
            if entry is not None and calendar_name(entry) == name:
                raise InvalidEntry("calendar", "one that no entry names", name, hint=f"entry {entry.name!r} does")
        self._calendars.remove(name)
        self._store.record(line_of(self._who(), "removed", f"calendar {name}"), [])

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._calendars.all()))

    def __len__(self) -> int:
        return len(self._calendars.all())

    def _edits(self, stored: Stored, calendar: Calendar) -> list[Edit]:
        """The edit that puts an entry on a revision of its calendar; none where there is nothing to do."""
        entry, state = readable_parts(stored)
        if entry is None or state is None or calendar_name(entry) != calendar.name or entry.calendar == calendar:
            return []
        # As it is stored: what an app keeps to itself is not touched.
        definition = dumps({**loads(stored.definition or b""), "calendar": calendar.encode()})
        after = decode(entry.name, definition.encode())
        later, line = moved(after, state, wall_ms(), self._zone), line_of_write(self._who(), stored, definition)
        return [edit_of(after, later, self._zone, expected=stored.state, definition=definition, line=line)]
