"""What the records of runs and of changes hand out, until they do: this module goes when they are there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...api.schedules import Schedules
from ...entries.entry import Entry
from ...errors import EntryNotFound
from ...runs.run import Run
from ...settings import Settings

#: The most that a record keeps of one entry, and the lines of the record of changes that are looked at.
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the record of changes."""

    at: datetime
    action: str
    actor: str
    way: str
    names: tuple[str, ...] = ()
    count: int = 0
    fields: tuple[tuple[str, str | None, str | None], ...] = ()
    note: str = ""


def runs_of(schedules: Schedules, name: str) -> tuple[Run, ...]:
    """All that is known of the runs of an entry, the newest first."""
    read: Any = getattr(schedules, "runs", None)
    try:
        return () if read is None else tuple(read(name, limit=_MOST))
    except EntryNotFound:
        return ()


def changes_of(schedules: Schedules, name: str | None = None) -> tuple[Change, ...]:
    """The last changes of an entry, or of everything, the newest first."""
    read: Any = getattr(schedules, "changes", None)
    return () if read is None else tuple(read(name, limit=_MOST))


def kept_of(settings: Settings, entry: Entry | None) -> int:
    """How many runs of an entry are kept."""
    own = getattr(entry, "history", None)
    return int(getattr(settings, "history", 20) if own is None else own)
