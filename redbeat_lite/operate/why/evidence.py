"""What is known of an entry, its runs, its changes, and the beats and workers: all that an answer rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...beat.status import Status
from ...runs.run import Run
from ...storage.changes import Change


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without a leader.

    Parameters:
        begin: the last sign of life of the one before.
        end: when the next one began; ``None`` while there is none.
        who: the next one.
    """

    begin: datetime
    end: datetime | None = None
    who: str = ""

    def covers(self, instant: datetime) -> bool:
        """Whether nobody led at an instant."""
        return self.begin <= instant and (self.end is None or instant < self.end)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found of one entry.

    Parameters:
        name: of the entry.
        status: how the beats fare.
        runs: the runs that are recorded, the newest first.
        kept: how many are kept; 0: none.
        changes: of the entry, the newest first.
        since: from when on changes are recorded; ``None`` where none is.
        gaps: times without a leader.
        quarantine: the record of the entry in quarantine; ``None`` if it is not there.
        refused: what is wrong with the entry as ``beat_schedule`` has it.
        queue: where its messages go.
        takers: the workers that report that they take from there.
    """

    name: str
    status: Status
    runs: tuple[Run, ...] = ()
    kept: int = 20
    changes: tuple[Change, ...] = ()
    since: datetime | None = None
    gaps: tuple[Gap, ...] = ()
    quarantine: Mapping[str, Any] | None = None
    refused: str | None = None
    queue: str = "celery"
    takers: tuple[str, ...] = ()
