"""What a commit is told of each entry: its next state, when it is due, what to send, what was decided against."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from itertools import groupby
from operator import itemgetter

from ...entries import lifecycle
from ...entries.on_calendar import with_left_out
from ...runs.keys import RunKeys
from ...runs.row import LIFE_MS, Row
from ...runs.run import Outcome
from ...schedules.misfire import Plan, Range
from ...storage.stored import Advance, Command
from .deadlines import Deadlines
from .planner import Job


class Advances:
    """Makes the advances of a batch."""

    def __init__(self, keys: RunKeys, deadlines: Deadlines, zone: tzinfo) -> None:
        self._keys, self._zone = keys, zone
        self._deadlines = deadlines

    @property
    def deadlines(self) -> str:
        """The key of the deadlines."""
        return self._deadlines.key

    def of(self, job: Job, now: int) -> Advance:
        """The advance of one job at ``now`` (epoch ms)."""
        entry, state = job.entry, job.state
        if job.error:
            after = lifecycle.failed(state, job.error, job.plan)
            retry = now + 1000 * lifecycle.retry_delay(after.attempts)
            return Advance(job.stored.name, state.guard, after.encode(), retry)
        if job.frozen:
            return Advance(job.stored.name, state.guard, state.encode(), job.ahead.score)
        commands, history, expect = job.commands, *self._deadlines.kept(entry)
        deadlines: Sequence[int] = ()
        if expect is not None and job.plan.emit:
            deadlines = self._deadlines.of(job, expect, now)
            if deadlines and not commands:
                runs = [f"{nominal}|{entry.name}" for nominal in job.plan.emit]
                commands = [("recorded", self._keys.rows(entry.name), run) for run in runs]
        elif entry.on_failure and job.plan.emit:
            self._deadlines.wanted = now
        # Once a run has been sent, and not where its lock was held: so nothing is told twice.
        plan = with_left_out(entry, state, job.plan, self._zone)
        after = lifecycle.dispatched(state, plan, len(job.left_out), history)
        ranges = self._ranges(job, plan, history) if history and (plan.skipped or job.left_out) else ()
        # The record of a config entry stays: without it, the next reading of the configuration would take the entry for
        # new and run it again.
        if after.finished and entry.remove_when_done and entry.owner is None:
            return Advance(job.stored.name, state.guard, None, None, commands, ranges)
        return Advance(job.stored.name, state.guard, after.encode(), job.ahead.score, commands, ranges, deadlines)

    def _ranges(self, job: Job, plan: Plan, history: int) -> list[Command]:
        key = self._keys.rows(job.entry.name)
        return [put_down(key, row, sent, history) for row, sent in decided_against(job, plan)[-history:]]


def decided_against(job: Job, plan: Plan) -> list[tuple[Row, int | None]]:
    """What is not sent of a job, oldest first: its row, and the last nominal time before it that was sent."""
    decided: list[tuple[Range, Outcome | None]] = [(each, "skipped") for each in plan.ranges]
    decided += [(Range(nominal, nominal, 1), "left out") for nominal in job.left_out]
    decided += [(Range(nominal, nominal, 1), None) for nominal in plan.emit]
    sent, rows = job.state.last, list[tuple[Row, int | None]]()
    for outcome, group in groupby(sorted(decided, key=itemgetter(0)), key=itemgetter(1)):
        ranges = [each for each, _ in group]
        first, last = ranges[0].first, max(each.last for each in ranges)
        if outcome is None:
            sent = last
        else:
            number = sum(each.number for each in ranges)
            rows.append((Row(first, outcome, "", None, last - first, number, ""), sent))
    return rows


def put_down(key: str, row: Row, sent: int | None, history: int) -> Command:
    """What a commit is told of a range, before which ``sent`` is the last nominal time that was sent.

    Where it has the outcome of the newest row, and nothing was sent between the two, they become one: what is left out
    each minute for a day flushes nothing else away. At least one row is kept.
    """
    return "range", key, f"{history} {LIFE_MS} {sent or 0} {row.encode()}"
