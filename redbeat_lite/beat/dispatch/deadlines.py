"""Deadlines of runs: by when they must begin and end. The commit that sends a run stores them."""

from __future__ import annotations

from datetime import tzinfo

from ..._base.times import delay_ms
from ...entries import lifecycle
from ...entries.entry import Entry
from ...entries.lifecycle import expected_of
from ...policies import Expect
from .planner import Job

#: Maximum number of deadlines of one kind that an entry has at once, about. If its runs are closer,
#: only some have one.
_AT_ONCE = 100


class Deadlines:
    """Makes the deadlines of runs, by their entry's expectation or the default one."""

    def __init__(self, key: str, default: Expect | None, zone: tzinfo, history: int) -> None:
        self.key = key
        self._default = default
        self._zone = zone
        self._history = history
        #: Whether a worker records the ends of runs; without one, deadlines would say nothing. A
        #: new leader sends the backlog before it knows, and sets deadlines until then.
        self.recorded = True
        #: When a run was last sent that needs such a worker, in epoch ms; ``None`` while one
        #: records.
        self.needed_at: int | None = None

    def kept(self, entry: Entry) -> tuple[int, Expect | None]:
        """Return how many of an entry's runs are kept on record, and what is expected of them."""
        expect = expected_of(entry, self._default)
        history = self._history if entry.history is None else entry.history
        return history or int(bool(expect or entry.on_failure)), expect

    def of(self, job: Job, expect: Expect, now: int) -> list[int]:
        """Return the deadlines of runs that are sent at ``now`` (epoch ms), for the commit.

        For each run it has the nominal time, by when the run begins, and by when it ends; 0 is for
        no deadline. Last comes by when a run must succeed, if that is expected.
        """
        self.needed_at = now
        if not self.recorded:
            return []
        entry = job.entry
        deadlines: list[int] = []
        before = job.state.last
        put_off = 0
        if entry.jitter or entry.options:
            put_off = entry.jitter_ms + delay_ms(entry.options, now)
        for nominal in job.plan.emit:
            due = nominal
            if put_off:
                due = self.due(entry, nominal, now)
            limits = []
            for allowed in (expect.start_ms, expect.finish_ms):
                if allowed is None or not _is_sampled(nominal, before, allowed + put_off):
                    limits.append(0)
                else:
                    limits.append(max(due + allowed, now))
            if any(limits):
                deadlines += (nominal, *limits)
            before = nominal
        if expect.success_ms is not None:
            deadlines.append(now + put_off + expect.success_ms)
        return deadlines

    def due(self, entry: Entry, nominal: int, now: int) -> int:
        """Return when a run is due whose message is sent at ``now``, both in epoch ms."""
        due = (lifecycle.score(entry, nominal, self._zone) if entry.jitter else nominal) or nominal
        return due + delay_ms(entry.options, now)


def _is_sampled(nominal: int, before: int | None, allowed: int) -> bool:
    """Return whether a run has a deadline: one run in each hundredth of the allowed time has."""
    return before is None or nominal * _AT_ONCE // allowed != before * _AT_ONCE // allowed
