"""What a commit is told of each entry: its next state, when it is due, what to send."""

from __future__ import annotations

from ...entries import lifecycle
from ...storage.stored import Advance
from .planner import Job


class Advances:
    """Makes the advances of a batch.

    Parameters:
        history: how many of the occurrences that were sent last an entry carries, where it does not say.
    """

    def __init__(self, history: int) -> None:
        self._history = history

    def of(self, job: Job, now: int) -> Advance:
        """The advance of one job at ``now`` (epoch ms)."""
        entry, state = job.entry, job.state
        if job.error:
            after = lifecycle.failed(state, job.error, job.plan)
            retry = now + 1000 * lifecycle.retry_delay(after.attempts)
            return Advance(job.stored.name, state.guard, after.encode(), retry)
        history = self._history if entry.history is None else entry.history
        after = lifecycle.dispatched(state, job.plan, len(job.left_out), history)
        # The record of a config entry stays: without it, the next reading of the configuration would take the entry for
        # new and run it again.
        if after.finished and entry.remove_when_done and entry.owner is None:
            return Advance(job.stored.name, state.guard, None, None, job.commands)
        return Advance(job.stored.name, state.guard, after.encode(), job.ahead.score, job.commands)
