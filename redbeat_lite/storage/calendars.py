"""The stored calendars, by name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from ..errors import CorruptEntry, EntryChanged, InvalidEntry
from ..schedules.calendars import Calendar
from .json_values import dumps, loads
from .replies import text
from .store import TRIES, Store


class CalendarStore:
    """Reads and writes the calendars of a schedule.

    Parameters:
        store: the schedule.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def _client(self) -> Any:
        return self._store.backend.client

    def all(self) -> dict[str, Calendar]:
        """Those that can be read, in one round trip."""
        found = {text(name): _read(raw) for name, raw in self._client.hgetall(self._store.keys.calendars).items()}
        return {name: calendar for name, calendar in found.items() if calendar is not None}

    def find(self, name: str) -> Calendar:
        """The calendar of this name.

        Raises:
            InvalidEntry: there is none.
        """
        found = _read(self._client.hget(self._store.keys.calendars, name))
        if found is None:
            near = get_close_matches(name, self.all(), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "store it: schedules.calendars[name] = ..."
            raise InvalidEntry("calendar", "the name of a stored calendar", name, hint=hint)
        return found

    def put(self, name: str, calendar: Calendar) -> tuple[Calendar, bool]:
        """Store a calendar, as the next revision unless it is the same; tells whether it was written."""
        key = self._store.keys.calendars
        for _ in range(TRIES):
            before = self._client.hget(key, name)
            known = _read(before)
            if known is not None and (known.days, known.until) == (calendar.days, calendar.until):
                return known, False
            stored = replace(calendar, name=name, revision=1 + (known.revision if known else 0))
            if self._change(name, before or b"", dumps(stored.encode())):
                return stored, True
        raise EntryChanged(f"calendar {name!r} is being changed too often")

    def restore(self, calendar: Calendar) -> None:
        """Store a calendar with the revision that it has, unless there is one of its name."""
        self._client.hsetnx(self._store.keys.calendars, calendar.name, dumps(calendar.encode()))

    def remove(self, name: str) -> None:
        """Remove a calendar, if there is one."""
        self._client.hdel(self._store.keys.calendars, name)

    def _change(self, name: str, before: bytes, after: str) -> bool:
        keys, args = [self._store.keys.calendars], ["", "", name, before, after, name, after]
        return bool(self._store.backend.scripts.run("schedule/exchange", keys, args) == [1])


def _read(raw: bytes | None) -> Calendar | None:
    """The calendar that is stored; ``None`` where there is none, or what cannot be read."""
    with suppress(ValueError, CorruptEntry):
        return None if raw is None else Calendar.decode(loads(raw))
    return None
