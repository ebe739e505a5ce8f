"""Expectations of an entry's runs, and the check whether its rule can meet them."""

from __future__ import annotations

from datetime import tzinfo

from .._base.errors import InvalidEntry
from .._base.times import from_ms
from ..expect import Expect
from ..rules import gap_over
from .entry import Entry


def expected_of(entry: Entry, default: Expect | None) -> Expect | None:
    """What is expected of an entry's runs: the default of those that do not say, and are there when
    it is looked at.
    """
    return (
        default if entry.expect is None and not entry.remove_when_done else entry.expect
    ) or None


def check_expectation(entry: Entry, now: int, zone: tzinfo) -> None:
    """Refuse to expect successes closer together than the runs are, in the year that follows
    ``now`` (epoch ms).

    Raises InvalidEntry, which names two runs between which no success can come in time.
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
