"""A run, as people see it, and the words for what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from ..public import public

Outcome = Literal[
    "waiting",
    "running",
    "retrying",
    "succeeded",
    "failed",
    "expired",
    "revoked",
    "rejected",
    "lost",
    "skipped",
    "left out",
    "unknown",
]

#: The outcomes of runs that did not do their work.
NOT_DONE: tuple[Outcome, ...] = ("failed", "expired", "revoked", "rejected", "lost")

#: Message header: how many rows the entry of a message keeps, where that is not the worker's own setting.
HISTORY_HEADER = "redbeat_history"

#: Message header: something is expected of the run.
EXPECT_HEADER = "redbeat_expect"

#: Message header: the beat has derived the message's ``expires`` from the entry's interval.
INTERVAL_EXPIRES_HEADER = "redbeat_interval_expires"

#: Message header: the id of the backfill that a message is of.
BACKFILL_HEADER = "redbeat_backfill"

#: The version of the task ids of backfills, which are UUIDs: those of live occurrences have 5.
BACKFILLED = "8"

#: Message headers that tell which run of which entry a message is for. Other schedulers write the first one, too.
RUN_HEADERS = ("periodic_task_name", "scheduled_at", HISTORY_HEADER, EXPECT_HEADER)


@public
@dataclass(frozen=True, slots=True)
class Run:
    """One occurrence after it was decided on, or several in a row that shared their fate.

    Parameters:
        name: of the entry.
        scheduled_at: nominal time; of the first one, where there are several.
        outcome: what became of it.
        task_id: of its task; ``None`` where nothing was sent.
        began_at: when its last attempt began; ``None`` where that is not known.
        seconds: how long its last attempt took; ``None`` where that is not known, or it has not ended.
        attempts: how many times it began, as far as is known.
        worker: node name of the worker that ran it.
        error: what the last attempt failed with, cut at 500 bytes.
        retry_at: when the retry of a failed attempt is due; ``None`` without one, or if not known. If the outcome is
            ``"failed"``, that retry has expired.
        until: nominal time of the last one, where there are several.
        count: how many there are.
        source: ``"record"``, the record of runs, or ``"schedule"``, which only knows what was sent.
    """

    name: str
    scheduled_at: datetime
    outcome: Outcome
    task_id: str | None = None
    began_at: datetime | None = None
    seconds: float | None = None
    attempts: int = 0
    worker: str | None = None
    error: str | None = None
    until: datetime | None = None
    count: int = 1
    source: Literal["record", "schedule"] = "record"
    retry_at: datetime | None = None

    @property
    def ended_at(self) -> datetime | None:
        """When its last attempt ended; ``None`` where that is not known, or it has not ended."""
        if self.began_at is None or self.seconds is None:
            return None
        return self.began_at + timedelta(seconds=self.seconds)
