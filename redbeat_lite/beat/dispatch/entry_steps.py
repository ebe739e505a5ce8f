"""Next steps of entries: what the commit writes for an entry that was sent, left out or failed."""

from __future__ import annotations

from dataclasses import dataclass

from ..._base.times import delay_ms
from ...entries import lifecycle
from ...entries.entry import Entry
from ...entries.lifecycle import expected_of, run_due
from ...entries.run import LETTERS, LIFE_MS, Outcome
from ...policies import Expect
from ...rules.misfire import Range
from ...runs.run_store import RunKeys
from ...store.records import Advance, Command
from .planner import Job

#: Approximate maximum number of deadlines of one kind that an entry has at once. If it has more
#: runs within the allowed time, only some of them get a deadline.
_AT_ONCE = 100


@dataclass(eq=False)
class Deadlines:
    """Deadlines of runs, by the expectation of their entry or the default one."""

    default: Expect | None
    history: int
    #: Whether a worker records the ends of runs. Without such records, deadlines would say nothing.
    #: It is true until the first look of the incident watch, because a new leader may send its
    #: backlog before that look.
    workers_record: bool = True
    #: When a run whose end must be recorded was last sent, in epoch ms; ``None`` while a worker
    #: records.
    needed_at: int | None = None

    def history_and_expect(self, entry: Entry) -> tuple[int, Expect | None]:
        """Return how many of an entry's runs are kept on record, and what is expected of them."""
        expect = expected_of(entry, self.default)
        history = self.history if entry.history is None else entry.history
        # Expectations and ``on_failure`` are checked against the row of the last run, so at least
        # one row is kept.
        if history == 0 and (expect or entry.on_failure):
            history = 1
        return history, expect

    def make(self, job: Job, expect: Expect, now: int) -> list[int | str]:
        """Return the deadlines of runs that are sent at ``now``, in epoch ms.

        Each deadline is two items, as ZADD takes them: its instant in epoch ms, and its member.
        """
        entry = job.entry
        allowed_ms = {"start": expect.start_ms, "finish": expect.finish_ms}
        # Longest time by which jitter and a countdown delay a run after its nominal time.
        put_off = entry.jitter_ms + delay_ms(entry.options, now)
        deadlines: list[int | str] = []
        # Nominal time of the previous run.
        before = job.state.last
        for nominal in job.plan.emit:
            for what, allowed in allowed_ms.items():
                # In each hundredth of the allowed time, only the first run gets a deadline.
                if allowed is not None and _is_sampled(nominal, before, allowed + put_off):
                    # The deadline of a run that is sent late may be past. Then take ``now``
                    # instead.
                    at = max(run_due(entry, nominal, now) + allowed, now)
                    deadlines += (at, f"{what}|{nominal}|{entry.name}")
            before = nominal
        # ``succeed_every`` has one deadline per entry, which counts from the last sending.
        if expect.success_ms is not None:
            deadlines += (now + put_off + expect.success_ms, f"success||{entry.name}")
        return deadlines


def _is_sampled(nominal: int, before: int | None, allowed: int) -> bool:
    """Return whether a run has a deadline.

    Time is cut into slots of a hundredth of ``allowed``, and only the first run of each slot gets a
    deadline. So at most about a hundred deadlines of an entry are pending.

    Parameters:
        nominal: nominal time of the run, in epoch ms.
        before: nominal time of the run before it; ``None``: there is none.
        allowed: ms from the nominal time to the deadline.
    """
    # Without an earlier run in the same hundredth, this run is the first.
    return before is None or nominal * _AT_ONCE // allowed != before * _AT_ONCE // allowed


@dataclass(eq=False)
class EntrySteps:
    """Maker of what a commit writes for entries.

    That is the new state, the due time, messages, deadlines, and records of unsent runs.
    """

    keys: RunKeys
    deadlines: Deadlines

    def advance(self, job: Job, now: int) -> Advance:
        """Return what the commit writes for a job at ``now`` (epoch ms).

        After a failure, the runs of the entry stay due. Otherwise the entry goes on to its next
        run. If it has none, it may be removed. ``state.guard`` is the first part of the stored
        state, with the version. If the stored state has another first part when the commit runs,
        somebody has edited the entry, and the commit does not touch it.
        """
        entry = job.entry
        state = job.state
        name = job.stored.name
        plan = job.plan
        if job.error:
            after = lifecycle.failed(state, job.error, plan)
            retry = now + 1000 * lifecycle.retry_delay(after.attempts)
            return Advance(name, state.guard, after.encode(), retry)
        commands = [*job.commands]
        # ``history`` is the number of runs that are kept on record.
        history, expect = self.deadlines.history_and_expect(entry)
        if plan.emit and (expect or entry.on_failure):
            # Expectations and ``on_failure`` go by the ends that workers record. With this instant,
            # the incident watch knows that records are needed, and reports if no worker writes any.
            self.deadlines.needed_at = now
            # If no worker records the ends of runs, every deadline would seem to be missed.
            if expect and self.deadlines.workers_record:
                commands += self._deadline_commands(job, expect, now)
        after = lifecycle.dispatched(state, plan, len(job.left_out), history)
        if history and (plan.ranges or job.left_out):
            commands += self._range_commands(job, history)
        # A config entry (one with an owner) keeps its record. Without it, the next reading of the
        # configuration would take the entry for a new one and run it again.
        if after.finished and entry.remove_when_done and entry.owner is None:
            return Advance(name, state.guard, state=None, score=None, commands=commands)
        return Advance(name, state.guard, after.encode(), job.due, commands)

    def _deadline_commands(self, job: Job, expect: Expect, now: int) -> list[Command]:
        """Return the commands that set the deadlines of runs."""
        deadlines = self.deadlines.make(job, expect, now)
        if not deadlines:
            return []
        commands: list[Command] = [("deadlines", self.keys.deadlines, deadlines)]
        if not job.commands:
            # The messages were sent already, so workers may have recorded the runs before their
            # deadlines are set. These commands drop the deadlines of such runs.
            name = job.entry.name
            rows = self.keys.rows(name)
            commands += [("recorded", rows, f"{nominal}|{name}") for nominal in job.plan.emit]
        return commands

    def _range_commands(self, job: Job, history: int) -> list[Command]:
        """Return the commands that record the runs which are not sent, the oldest first.

        Parameters:
            history: number of rows that the entry keeps, at least one.
        """
        plan = job.plan
        unsent: list[tuple[Range, Outcome]] = [(skipped, "skipped") for skipped in plan.ranges]
        unsent += [(Range(nominal, nominal, number=1), "left out") for nominal in job.left_out]
        key = self.keys.rows(job.entry.name)
        commands = []
        for unsent_range, outcome in sorted(unsent):
            # The commit joins this range with the newest row if no run was sent between the two. To
            # see this, it needs the last run that was sent before the range.
            sent_before = (nominal for nominal in plan.emit if nominal < unsent_range.first)
            last_sent = max(sent_before, default=job.state.last)
            commands.append(range_command(key, outcome, unsent_range, last_sent, history))
        return commands


def range_command(
    key: str, outcome: Outcome, unsent: Range, last_sent: int | None, history: int
) -> Command:
    """Return the command that records a range of runs which were not sent.

    The commit joins the range with the newest row if that row has the same outcome, and nothing was
    sent between the two. So an entry that is left out each minute for a day keeps its other rows.

    Parameters:
        key: key of the entry's rows.
        last_sent: nominal time of the last run before the range that was sent; ``None``: no run was
            sent, and the command has 0.
        history: number of rows that are kept, at least one.
    """
    # A Range is its first and last nominal time, and the number of its runs.
    return "range", key, (history, LIFE_MS, last_sent or 0, LETTERS[outcome], *unsent)
