"""The stored calendars, by name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ..errors import EntryChanged, InvalidEntry
from ..schedules.calendars import Calendar
from .replies import text
from .store import TRIES, Store


def stored_calendars(store: Store) -> dict[str, Calendar]:
    """Those that can be read, in one round trip."""
    found = {text(name): _read(raw) for name, raw in store.backend.client.hgetall(store.keys.calendars).items()}
    return {name: calendar for name, calendar in found.items() if calendar is not None}


def store_calendar(store: Store, name: str, calendar: Calendar) -> tuple[Calendar, bool]:
    """Store a calendar, as the next revision unless it is the same; tells whether it was written."""
    key = store.keys.calendars
    for _ in range(TRIES):
        before = store.backend.client.hget(key, name)
        known = _read(before)
        if known is not None and (known.days, known.until) == (calendar.days, calendar.until):
            return known, False
        stored = replace(calendar, name=name, revision=1 + (known.revision if known else 0))
        if store.backend.scripts.run("schedule/calendar", [key], [name, before or b"", stored.encode()]):
            return stored, True
    raise EntryChanged(f"calendar {name!r} is being changed too often")


def restore_calendar(store: Store, calendar: Calendar) -> None:
    """Store a calendar with the revision that it has, unless there is one of its name."""
    store.backend.client.hsetnx(store.keys.calendars, calendar.name, calendar.encode())


def _read(raw: object) -> Calendar | None:
    with suppress(InvalidEntry):
        return Calendar.decode(text(raw))
    return None
