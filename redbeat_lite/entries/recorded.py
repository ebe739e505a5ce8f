"""What workers have recorded of the last runs of an entry, as its attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from ..instants import from_ms
from ..runs.row import Row, run_of
from ..runs.run import BACKFILLED, NOT_DONE, Run


class Recorded:
    """The part of an entry that its rows tell. Asking for one of these may ask the server, the first time."""

    name: str
    #: Reads the rows of its last runs, the newest first; ``None`` for an entry that was not read from Redis.
    read_rows: Callable[[], Sequence[Row]] | None = None

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
