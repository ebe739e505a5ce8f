"""The doctor's look at calendars: those that end, and entries that have missed a revision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from ...clock import wall_ms
from ...entries.entry import Entry
from ...entries.on_calendar import calendar_name
from ...entries.words import counted, listed
from ...instants import from_ms
from ...storage.calendars import CalendarStore
from ...storage.store import Store
from .finding import Finding

#: How long before its end a calendar is worth a word.
_SOON = timedelta(days=60)


def calendars(store: Store, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Calendars of entries that know of no day soon, or any more; and entries that go by another revision."""
    today = from_ms(wall_ms()).date()
    for name, calendar in CalendarStore(store).all().items():
        named = [entry for entry in entries if calendar_name(entry) == name]
        names = tuple(entry.name for entry in named)
        if names and calendar.until - today < _SOON:
            yield Finding(
                "calendar-ends",
                "warning",
                f"calendar {calendar} knows until {calendar.until}; it is that of "
                f"{counted(len(names), 'entry', 'entries')}: {listed(names)}",
                "After that they run every day.",
                f"Store it with later days: celery -A ... redbeat calendars set {name} …",
                names,
            )
        behind = tuple(entry.name for entry in named if entry.calendar != calendar)
        if behind:
            yield Finding(
                "calendar-behind",
                "warning",
                f"{counted(len(behind), 'entry', 'entries')} by another revision than {calendar}: {listed(behind)}",
                "Whoever stored it was interrupted, or the entry was added at the same time.",
                "Store the calendar once more, as it is; that edits them.",
                behind,
            )
