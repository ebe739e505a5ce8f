"""From what is stored of runs to what people see."""

from __future__ import annotations

from ..instants import from_ms
from .row import Row
from .run import Run


def run_of(name: str, row: Row, worker: str | None = None, error: str | None = None) -> Run:
    """The run, or the runs, of which a row tells.

    Parameters:
        name: of the entry.
        worker, error: what the line in the feed tells besides.

    Raises:
        OverflowError: the row names an instant that there is not.
    """
    at = from_ms(row.nominal)
    if row.is_range:
        count, last = row.attempt, row.nominal + (row.duration or 0)
        return Run(name, at, row.outcome, until=from_ms(last) if count > 1 else None, count=count)
    return Run(
        name,
        at,
        row.outcome,
        task_id=row.task_id,
        began_at=None if row.begin is None else from_ms(row.nominal + row.begin),
        seconds=None if row.duration is None else row.duration / 1000,
        attempts=row.attempts - (row.begin is None),
        worker=worker,
        error=error,
    )
