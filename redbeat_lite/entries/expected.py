"""Expectations of an entry's runs, and the check whether its rule can meet them."""

from __future__ import annotations

from datetime import tzinfo

from .._base.errors import InvalidEntry
from .._base.times import from_ms
from ..policies import Expect
from ..rules import gap_over
from .entry import Entry


def expected_of(entry: Entry, default: Expect | None) -> Expect | None:
    """Return the expectation of an entry's runs; ``None`` if it has none.

    The default does not apply to an entry with ``remove_when_done``, because that entry may be gone
    before the expectation is checked.
    """
    if entry.expect is None and not entry.remove_when_done:
        return default
    return entry.expect or None


def check_expectation(entry: Entry, now: int, zone: tzinfo) -> None:
    """Check that the runs of the coming year are close enough together for ``succeed_every``.

    Parameters:
        now: begin of that year, in epoch ms.

    Raises:
        InvalidEntry: two runs are further apart; the error names them.
    """
    longest = entry.expect.success_ms if entry.expect else None
    if not entry.expect or longest is None:
        return
    gap = gap_over(entry.rule(zone), now, longest - entry.jitter_ms)
    if gap is not None:
        before, after = gap
        seconds = (after - before + entry.jitter_ms) / 1000
        runs = f"{from_ms(before).isoformat()} and {from_ms(after).isoformat()}"
        expected = f"more than the {seconds:g} s between the runs of {runs}"
        raise InvalidEntry("expect.succeed_every", expected, entry.expect.succeed_every)
