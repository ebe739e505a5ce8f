"""Next steps of entries: what the commit writes for an entry that was sent, left out or failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import tzinfo
from itertools import groupby
from operator import itemgetter

from ...entries import lifecycle
from ...entries.on_calendar import with_left_out
from ...rules.misfire import Plan, Range
from ...runs.run import LIFE_MS, Outcome, Row
from ...runs.run_store import RunKeys
from ...store.records import Advance, Command
from .batch_log import BatchLog
from .deadlines import Deadlines
from .planner import Job


class EntrySteps:
    """Next steps of entries: state, due time, messages, deadlines, and records of unsent runs."""

    def __init__(self, prefix: str, deadlines: Deadlines, zone: tzinfo, log: BatchLog) -> None:
        self._keys = RunKeys(prefix)
        self._deadlines = deadlines
        self._zone = zone
        self._log = log

    def advance(self, job: Job, now: int) -> Advance:
        """Return what the commit writes for a job at ``now`` (epoch ms)."""
        entry = job.entry
        state = job.state
        name = job.stored.name
        plan = job.plan
        if job.error:
            after = lifecycle.failed(state, job.error, plan)
            retry = now + 1000 * lifecycle.retry_delay(after.attempts)
            return Advance(name, state.guard, after.encode(), retry)
        if job.frozen:
            return Advance(name, state.guard, state.encode(), job.due)
        commands = job.commands
        history, expect = self._deadlines.kept(entry)
        deadlines: Sequence[int] = ()
        if expect is not None and plan.emit:
            deadlines = self._deadlines.of(job, expect, now)
            if deadlines and not commands:
                commands = self._record_sent(entry.name, plan.emit)
        elif entry.on_failure and plan.emit:
            self._deadlines.needed_at = now
        # An occurrence whose lock was held counts as left out only now, so no event is sent twice.
        plan = with_left_out(entry, state, plan, self._zone)
        after = lifecycle.dispatched(state, plan, len(job.left_out), history)
        ranges: Sequence[Command] = ()
        if history and (plan.skipped or job.left_out):
            ranges = self._record_unsent(job, plan, history)
        # The record of a config entry stays. Without it, the next reading of the configuration
        # would take the entry for a new one and run it again.
        if after.finished and entry.remove_when_done and entry.owner is None:
            return Advance(name, state.guard, None, None, commands, ranges)
        return Advance(name, state.guard, after.encode(), job.due, commands, ranges, deadlines)

    def report_advanced(self, jobs: Sequence[Job]) -> None:
        self._log.report_advanced(jobs)

    def _record_sent(self, name: str, nominals: Iterable[int]) -> list[Command]:
        """Return the commands that record runs which were sent before the commit."""
        return [("recorded", self._keys.rows(name), f"{nominal}|{name}") for nominal in nominals]

    def _record_unsent(self, job: Job, plan: Plan, history: int) -> list[Command]:
        key = self._keys.rows(job.entry.name)
        return [
            range_command(key, row, sent, history)
            for row, sent in unsent_rows(job, plan)[-history:]
        ]


def unsent_rows(job: Job, plan: Plan) -> list[tuple[Row, int | None]]:
    """Return a row for each range of occurrences that are not sent, oldest first.

    Beside each row stands the last nominal time before it that was sent.
    """
    decided: list[tuple[Range, Outcome | None]] = [(skipped, "skipped") for skipped in plan.ranges]
    decided += [(Range(nominal, nominal, 1), "left out") for nominal in job.left_out]
    decided += [(Range(nominal, nominal, 1), None) for nominal in plan.emit]
    sent = job.state.last
    rows: list[tuple[Row, int | None]] = []
    for outcome, group in groupby(sorted(decided, key=itemgetter(0)), key=itemgetter(1)):
        ranges = [decided_range for decided_range, _ in group]
        first = ranges[0].first
        last = max(item.last for item in ranges)
        if outcome is None:
            sent = last
        else:
            number = sum(item.number for item in ranges)
            rows.append((Row(first, outcome, "", None, last - first, number, ""), sent))
    return rows


def range_command(key: str, row: Row, sent: int | None, history: int) -> Command:
    """Return the command that records a range of occurrences which were not sent.

    The commit joins it with the newest row if that has the same outcome and nothing was sent
    between the two. So an entry that is left out each minute for a day keeps its other rows.

    Parameters:
        key: of the entry's rows.
        sent: the last nominal time before the range that was sent.
        history: rows that are kept, at least one.
    """
    return "range", key, f"{history} {LIFE_MS} {sent or 0} {row.encode()}"
