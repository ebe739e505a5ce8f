"""Until when the runs that are sent must have begun and ended, as the commit that sends them notes it."""

from __future__ import annotations

from datetime import tzinfo

from ...entries import lifecycle
from ...entries.entry import Entry
from ...entries.expected import expected_of
from ...expect import Expect
from ...instants import delay_ms
from .planner import Job

#: Deadlines of one kind that an entry has at once, about: of runs that are closer, only some have one.
_AT_ONCE = 100


class Deadlines:
    """Makes the deadlines of runs; entries that do not say have the defaults."""

    def __init__(self, key: str, default: Expect | None, zone: tzinfo, history: int) -> None:
        self.key = key
        self._default = default
        self._zone = zone
        self._history = history
        #: Whether somebody records what becomes of runs; where nobody does, a deadline would tell nothing. Until it is
        #: asked for, what is sent has one: a new leader sends at once what the one before has left.
        self.recorded = True
        #: When something that has to be recorded was last expected, epoch milliseconds; ``None``: not since it is.
        self.wanted: int | None = None

    def kept(self, entry: Entry) -> tuple[int, Expect | None]:
        """How many of an entry's runs are recorded, and what is expected of them."""
        expect = expected_of(entry, self._default)
        history = self._history if entry.history is None else entry.history
        return history or int(bool(expect or entry.on_failure)), expect

    def of(self, job: Job, expect: Expect, now: int) -> list[int]:
        """The deadlines of what was sent at ``now`` (epoch ms), as the commit is told of them: of each run its nominal
        time, by when it begins and by when it ends, 0 for whenever; and by when one succeeds, if that is expected."""
        self.wanted = now
        if not self.recorded:
            return []
        entry = job.entry
        found: list[int] = []
        start, finish, before = expect.start_ms, expect.finish_ms, job.state.last
        put_off = entry.jitter_ms + delay_ms(entry.options, now) if entry.jitter or entry.options else 0
        most = (finish or start or 0) + put_off  # a run ends after it has begun
        for nominal in job.plan.emit:
            due, begins, ends = self.due(entry, nominal, now) if put_off else nominal, 0, 0
            each = before is None or (nominal - before) * _AT_ONCE >= most  # of nearly each entry
            # Not by max(), which would take a quarter of all this.
            if start is not None and (each or _is_sampled(nominal, before, start + put_off)):
                begins = now if due + start < now else due + start
            if finish is not None and (each or _is_sampled(nominal, before, finish + put_off)):
                ends = now if due + finish < now else due + finish
            if begins or ends:
                found += (nominal, begins, ends)
            before = nominal
        if expect.success_ms is not None:
            found.append(now + put_off + expect.success_ms)
        return found

    def due(self, entry: Entry, nominal: int, now: int) -> int:
        """When a run is due whose message is sent at ``now``, by the definition as it is; epoch milliseconds."""
        due = (lifecycle.score(entry, nominal, self._zone) if entry.jitter else nominal) or nominal
        return due + delay_ms(entry.options, now)


def _is_sampled(nominal: int, before: int | None, allowed: int) -> bool:
    """Of each hundredth of the time that is allowed one run has a deadline."""
    return before is None or nominal * _AT_ONCE // allowed != before * _AT_ONCE // allowed
