"""The doctor's look at calendars: those that end, and entries that have missed a revision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from ...clock import wall_ms
from ...entries.entry import Entry
from ...entries.on_calendar import calendar_name
from ...entries.words import counted, listed
from ...instants import from_ms
from ...storage.calendars import stored_calendars
from ...storage.store import Store
from .finding import Finding

#: How long before its end a calendar is worth a word.
_SOON = timedelta(days=60)


def calendars(store: Store, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Calendars of entries that know of no day soon, or any more; and entries that go by another revision."""
    soon = from_ms(wall_ms()).date() + _SOON
    for name, calendar in stored_calendars(store).items():
        named = [entry for entry in entries if calendar_name(entry) == name]
        ends = f"calendar {calendar} knows until {calendar.until}; it", "After that they run every day."
        behind = f"calendar {calendar} is stored, and another revision", "A day of theirs may be another one."
        for check, (what, why), todo, found in (
            ("calendar-ends", ends, "Store it with later days", named if calendar.until < soon else []),
            ("calendar-behind", behind, "Store it once more", [each for each in named if each.calendar != calendar]),
        ):
            if names := tuple(entry.name for entry in found):
                what += f" is that of {counted(len(names), 'entry', 'entries')}: {listed(names)}"
                todo += f": celery -A ... redbeat calendars set {name} …"
                yield Finding(check, "warning", what, why, todo, names)
