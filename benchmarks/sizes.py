"""How much is measured: all of it, or so little that it is done in under three minutes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """One set of sizes.

    Parameters:
        rounds: how often everything is measured, in turn.
        due: entries due at once.
        due_steps: entries due at once, for the plot.
        stored: entries stored while 100 are due.
        ticks: dispatches looked at of schedulers that take one entry per tick.
        peeked: measured ticks per number stored and round.
        singles: entries added one by one.
        added: entries added due now, each timed, per round.
        seconds: how long 500 entries a second go on, per round.
        operated: how often what recording, expectations and work on many entries cost is measured after that.
        recorded: tasks of one batch run by a worker that records, and by one that does not.
        locks: once-locks taken and given back per round.
        herd: entries due in one millisecond.
        behind: missed runs of a dozen entries, each to be sent.
    """

    rounds: int
    due: int
    due_steps: tuple[int, ...]
    stored: tuple[int, ...]
    ticks: int
    peeked: int
    singles: int
    added: int
    seconds: int
    operated: int
    recorded: int
    locks: int
    herd: int
    behind: int


_STORED = (1000, 10_000, 100_000, 1_000_000)
FULL = Sizes(5, 10_000, (10, 200, 1000), _STORED, 200, 15, 1000, 60, 30, 3, 300, 2000, 100_000, 432_000)
QUICK = Sizes(3, 1500, (10, 200), (1000, 100_000), 60, 7, 300, 25, 2, 1, 60, 500, 3000, 21_600)
