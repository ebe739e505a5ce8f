"""What Redis tells of an entry beside its definition, its state and the rows of its last runs, as its attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal, get_args

from ..instants import from_ms
from ..runs.run import BACKFILLED, NOT_DONE, Row, Run, run_of
from ..storage.changes import Change
from .state import EntryState, task_id

#: What an entry may be doing.
Status = Literal["waiting", "paused", "disabled", "manual", "finished", "frozen"]
STATUSES = get_args(Status)


class AsRead:
    """State of an entry, as it was when the entry was read; times are in UTC.

    The first access to its runs may ask the server.
    """

    name: str
    state: EntryState | None = None  #: of an entry that was read or written
    due: int | None = None  #: epoch milliseconds
    owner: str | None = None
    #: Until when a freeze keeps it from firing; of one that was read by its name, or told by :attr:`Schedules.freezes`.
    frozen_until: datetime | None = None
    #: Who changed it last, of an entry that was read by its name; else ``None``.
    last_change: Change | None = None
    #: Reads the rows of its last runs, the newest first; ``None`` for an entry that was not read from Redis.
    read_rows: Callable[[], Sequence[Row]] | None = None

    @property
    def known_state(self) -> EntryState:
        """The state of an entry that was read or written."""
        assert self.state is not None
        return self.state

    @property
    def next_run_at(self) -> datetime | None:
        """When it will fire, jitter included; ``None`` while it is paused, disabled, finished or manual."""
        return None if self.due is None else from_ms(self.due)

    @property
    def last_run_at(self) -> datetime | None:
        """Nominal time of its last occurrence; ``None`` before any."""
        last = self.state.last if self.state else None
        return None if last is None else from_ms(last)

    @property
    def total_run_count(self) -> int:
        """Occurrences that were sent."""
        return self.state.count if self.state else 0

    @property
    def skipped_count(self) -> int:
        """Occurrences that a misfire policy, a once-lock, a calendar or a freeze left out."""
        return self.state.skipped if self.state else 0

    @property
    def last_task_id(self) -> str | None:
        """The id of its last occurrence's task; ``None`` before any."""
        if self.state is None or self.state.last is None:
            return None
        return task_id(self.name, self.state.generation, self.state.last)

    @property
    def version(self) -> int:
        """Grows with each edit, pause and resume; 0 of an entry that was not read."""
        return self.state.version if self.state else 0

    @property
    def generation(self) -> str | None:
        """Another one once it was removed and added again, with other task ids; ``None`` of one that was not read."""
        return self.state.generation if self.state else None

    @property
    def paused_note(self) -> str | None:
        """Why it is paused, perhaps empty; ``None`` unless it is."""
        return self.state.note if self.state and self.state.paused else None

    @property
    def last_error(self) -> str | None:
        """What the last failed publish said; ``None`` once one has worked."""
        return (self.state.error or None) if self.state else None

    @property
    def source(self) -> str:
        """``"runtime"``, or ``"config:<owner>"`` for an entry of ``beat_schedule``."""
        return "runtime" if self.owner is None else f"config:{self.owner}"

    @property
    def rows(self) -> Sequence[Row]:
        """What is recorded of its last runs, the newest first."""
        return () if self.read_rows is None else self.read_rows()

    @property
    def last_run(self) -> Run | None:
        """The newest run that a worker has written down."""
        return next((run_of(self.name, row) for row in self.rows if not row.is_range), None)

    @property
    def last_success_at(self) -> datetime | None:
        """Nominal time of the newest run that succeeded."""
        return next((from_ms(row.nominal) for row in self.rows if row.outcome == "succeeded"), None)

    @property
    def failures_in_a_row(self) -> int:
        """How many runs since the last success did not do their work.

        One that has not ended, or that was not to run, is neither.
        """
        outcomes = [row.outcome for row in self.rows if row.task_id[14:15] != BACKFILLED]
        since = outcomes.index("succeeded") if "succeeded" in outcomes else len(outcomes)
        return sum(outcome in NOT_DONE for outcome in outcomes[:since])
