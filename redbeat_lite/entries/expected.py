"""Whether an expectation can hold, by the rule of its entry."""

from __future__ import annotations

from datetime import tzinfo

from ..errors import InvalidEntry
from ..instants import from_ms
from ..schedules import gap_over
from .entry import Entry


def check_expectation(entry: Entry, now: int, zone: tzinfo) -> None:
    """Refuse to expect successes closer together than the runs are.

    Parameters:
        now: epoch milliseconds; the year that follows is looked at.

    Raises:
        InvalidEntry: names two runs between which no success can come in time.
    """
    longest = entry.expect.success_ms if entry.expect else None
    if not entry.expect or longest is None:
        return
    found = gap_over(entry.rule(zone), now, longest - entry.jitter_ms)
    if found is not None:
        before, after = (from_ms(each).isoformat() for each in found)
        seconds = (found[1] - found[0] + entry.jitter_ms) / 1000
        expected = f"more than the {seconds:g} s between the runs of {before} and {after}"
        raise InvalidEntry("expect.succeed_every", expected, entry.expect.succeed_every)
