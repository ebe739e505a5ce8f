"""Calendars as users see them, and the edits of their entries that a new revision takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from datetime import tzinfo

from .._base.actors import Who
from .._base.clock import wall_ms
from .._base.errors import EntryNotFound, InvalidEntry
from .._base.public import public
from ..entries.definition import encode
from ..entries.differences import line_of_write
from ..entries.entry import Entry
from ..entries.fields import check_name
from ..entries.on_calendar import moved, on
from ..entries.stored_entry import edit_of, readable_parts
from ..rules.calendars import Calendar
from ..store.changes import line_of
from ..store.records import AT_ONCE, Edit, Stored
from ..store.store import Store


@public
class Calendars(MutableMapping[str, Calendar]):
    """The stored calendars of a schedule, as :attr:`Schedules.calendars` has them; every process
    sees the same.

    ``calendars[name] = calendar`` stores one and edits the entries that name it, 250 in a step.
    Interrupted, it is done by storing the same once more: that makes no new revision. All entries
    are read for it, 1,000 in a round trip.
    """

    def __init__(self, store: Store, zone: tzinfo, who: Callable[[], Who]) -> None:
        self._store, self._zone, self._who = store, zone, who

    def all(self) -> dict[str, Calendar]:
        """Those that can be read, in one round trip."""
        return self._store.calendars()

    def __getitem__(self, name: str) -> Calendar:
        """The calendar of this name.

        Raises:
            EntryNotFound: there is none; a ``KeyError``.
        """
        if (found := self.all().get(name)) is None:
            raise EntryNotFound(f"no calendar {name!r} is stored")
        return found

    def __setitem__(self, name: str, calendar: Calendar) -> None:
        """Store a calendar, and plan its entries by it.

        Raises:
            InvalidEntry: it is no calendar, or no name; or an entry grows too large with it: all
                others are edited.
        """
        if "@" in check_name("name", name):
            raise InvalidEntry("name", "a name without @, which its revision follows", name)
        if not isinstance(calendar, Calendar):
            raise InvalidEntry("calendar", "a Calendar", calendar)
        stored, is_new = self._store.put_calendar(name, calendar)
        if is_new:
            self._store.record(
                line_of(self._who(), "edited", f"calendar {stored}, until {stored.until}"), []
            )
        self._plan_anew(name)

    def __delitem__(self, name: str) -> None:
        """Remove a calendar that no entry names.

        Raises:
            EntryNotFound: there is none.
            InvalidEntry: an entry names it.
        """
        _ = self[name]
        for stored in self._store.pages():
            if _names(stored, name):
                raise InvalidEntry(
                    "calendar", "one that no entry names", name, hint=f"entry {stored.name!r} does"
                )
        self._store.backend.client.hdel(self._store.keys.calendars, name)
        self._store.record(line_of(self._who(), "removed", f"calendar {name}"), [])

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.all()))

    def __len__(self) -> int:
        return len(self.all())

    def settle(self, written: Iterable[Entry]) -> None:
        """Plan anew what was written by a revision that was not the last any more: its edits may
        have passed it by.
        """
        planned = {entry.calendar for entry in written if isinstance(entry.calendar, Calendar)}
        for name in {
            each.name for each in planned.difference(self.all().values() if planned else ())
        }:
            self._plan_anew(name)

    def _plan_anew(self, name: str) -> None:
        """Edit the entries that name a calendar, until they are by what is stored: somebody may
        store another one.
        """
        faults: dict[bytes, InvalidEntry] = {}

        def edits(stored: Stored) -> list[Edit]:
            entry, state = readable_parts(stored)
            if entry is None or state is None or not _names(stored, name, but=calendar):
                return []
            after = on(entry, calendar)
            try:
                definition = encode(after, placeholders=True)
            except InvalidEntry as exc:
                faults[stored.name] = exc
                return []
            later, line = (
                moved(after, state, wall_ms(), self._zone),
                line_of_write(self._who(), stored, definition),
            )
            return [
                edit_of(
                    after,
                    later,
                    self._zone,
                    expected=stored.state,
                    definition=definition,
                    line=line,
                )
            ]

        last = None
        while (calendar := self.all().get(name)) is not None and calendar != last:
            faults.clear()
            behind = (each.name for each in self._store.pages() if _names(each, name, but=calendar))
            self._store.rewrite(behind, edits, at_once=AT_ONCE)
            last = calendar
        for exc in faults.values():
            raise exc


def _names(stored: Stored, name: str, but: Calendar | None = None) -> bool:
    """Whether an entry names a calendar, but for this revision. Most name none, which their text
    tells sooner.
    """
    entry = readable_parts(stored)[0] if b'"calendar":' in (stored.definition or b"") else None
    return entry is not None and entry.calendar_name == name and entry.calendar != but
