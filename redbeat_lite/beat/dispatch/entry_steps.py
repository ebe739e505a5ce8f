"""Values that the commit writes for an entry that was sent, left out or failed."""

from __future__ import annotations

from dataclasses import dataclass

from ..._base.times import delay_ms
from ...entries import lifecycle
from ...entries.entry import Entry
from ...entries.lifecycle import expected_of, run_due
from ...entries.run import LETTERS, LIFE_MS
from ...policies import Expect
from ...rules.misfire import Range
from ...runs.run_store import RunKeys
from ...store.records import Advance, Command
from .planner import Job

#: Approximate maximum number of deadlines of one kind that an entry has at once.
_MAX_DEADLINES = 100


@dataclass(eq=False)
class Deadlines:
    """Defaults of ``expect`` and ``history``, and whether there are workers that record runs.

    An entry's own values take precedence over the defaults. The main loop and the incident watch
    share this object.
    """

    #: Expectation of entries that have none of their own; ``None``: nothing is expected.
    default: Expect | None
    #: Number of recorded runs of entries that do not set one.
    history: int
    #: Whether a worker records the ends of runs. It is true until the incident watch has read the
    #: workers' reports. A new leader may send runs before that, and these must get deadlines, too.
    workers_record: bool = True
    #: When a run with an expectation last had no worker that records its end, in epoch ms. While a
    #: worker records runs, each check of the incident watch sets this to ``None`` again.
    needed_at: int | None = None

    def history_and_expect(self, entry: Entry) -> tuple[int, Expect | None]:
        """Return how many of an entry's runs are recorded, and what is expected of them."""
        expect = expected_of(entry, self.default)
        history = self.history if entry.history is None else entry.history
        # Expectations and ``on_failure`` are checked against the row of the last run, so keep it.
        if expect or entry.on_failure:
            history = max(history, 1)
        return history, expect


def _is_sampled(nominal: int, before: int | None, allowed: int) -> bool:
    """Return whether a run gets a deadline, until which it is expected to start or to finish.

    If runs are frequent, only some get one, so that an entry has about 100 deadlines at once. Time
    is divided into slots of a hundredth of ``allowed``, and the first run in each slot gets one.

    Parameters:
        allowed: ms from the nominal time of a run to its deadline, with the longest delay that
            jitter and a countdown may add.
        before: nominal time of the run before this one; ``None`` if there is none.
    """
    if before is None:
        return True
    # A run may be expected to start within less than half a millisecond, so ``allowed`` may be 0.
    # With a negative countdown, it may be negative.
    allowed = max(allowed, 1)
    slot = nominal * _MAX_DEADLINES // allowed
    return slot != before * _MAX_DEADLINES // allowed


@dataclass(eq=False)
class EntrySteps:
    """Makes what the commit writes: states, due times, deadlines, records of unsent runs."""

    keys: RunKeys
    deadlines: Deadlines

    def advance(self, job: Job, now: int) -> Advance:
        """Return what the commit writes for a job at ``now`` (epoch ms).

        This is the new state of the entry, its next due time, and commands that send messages, set
        deadlines of runs, and record runs that are not sent. If the job has an error, nothing is
        sent, and its runs are retried later.

        The stored state began with ``state.guard`` when it was read. If it begins otherwise at the
        commit, somebody has edited the entry, and the commit does not change it.
        """
        entry = job.entry
        state = job.state
        name = job.stored.name
        plan = job.plan
        if job.error:
            after = lifecycle.failed(state, job.error, plan)
            retry = now + 1000 * lifecycle.retry_delay(after.attempts)
            return Advance(name, state.guard, after.encode(), retry)
        commands = [*job.commands]  # This is a copy, because further commands are added.
        history, expect = self.deadlines.history_and_expect(entry)
        if plan.emit and (expect or entry.on_failure):
            # The incident watch reads this, and reports if no worker records runs.
            self.deadlines.needed_at = now
            # If no worker records runs, set no deadlines, because each would seem to be missed.
            if expect and self.deadlines.workers_record:
                commands += self._deadline_commands(job, expect, now)
        after = lifecycle.dispatched(state, plan, len(job.left_out), history)
        if history and (plan.ranges or job.left_out):
            commands += self._range_commands(job, history)
        # Remove only an entry without an owner. If a config entry were removed, the next sync would
        # add it again, and it would run again.
        if after.finished and entry.remove_when_done and entry.owner is None:
            return Advance(name, state.guard, state=None, score=None, commands=commands)
        return Advance(name, state.guard, after.encode(), job.due, commands)

    def _deadline_commands(self, job: Job, expect: Expect, now: int) -> list[Command]:
        """Return the commands that set the deadlines of runs; of frequent runs, only of some."""
        entry = job.entry
        allowed_ms = {"start": expect.start_ms, "finish": expect.finish_ms}
        # Longest time in ms by which jitter and a countdown delay a run.
        put_off = entry.jitter_ms + delay_ms(entry.options, now)
        # Each deadline is its instant and its member, as ZADD takes them.
        deadlines: list[int | str] = []
        # Nominal time of the run before the one that the loop handles.
        before = job.state.last
        for nominal in job.plan.emit:
            for what, allowed in allowed_ms.items():
                # Of frequent runs, only some get a deadline: about a hundred have one at once.
                if allowed is not None and _is_sampled(nominal, before, allowed + put_off):
                    # If the run is sent so late that its deadline is past, use the present time.
                    at = max(run_due(entry, nominal, now) + allowed, now)
                    deadlines += (at, f"{what}|{nominal}|{entry.name}")
            before = nominal
        # ``succeed_every`` has one deadline per entry. The commit sets it if the entry has none, or
        # a later one because an edit has lowered ``succeed_every``. Each success sets it again.
        if expect.success_ms is not None:
            deadlines += (now + put_off + expect.success_ms, f"success||{entry.name}")
        if not deadlines:
            return []
        commands: list[Command] = [("deadlines", self.keys.deadlines, deadlines)]
        if not job.commands:
            # The messages were sent already, so workers may have recorded some of the runs before
            # their deadlines are set. For each run, the command ``recorded`` drops the deadline if
            # the run is recorded, unless its row says that it has missed the deadline.
            rows = self.keys.rows(entry.name)
            commands += [("recorded", rows, f"{nominal}|{entry.name}") for nominal in job.plan.emit]
        return commands

    def _range_commands(self, job: Job, history: int) -> list[Command]:
        """Return the commands that record the runs which are not sent, the oldest first."""
        plan = job.plan
        unsent = [(skipped, LETTERS["skipped"]) for skipped in plan.ranges]
        if job.left_out:
            left_out = Range(job.left_out[0], job.left_out[-1], len(job.left_out))
            unsent.append((left_out, LETTERS["left out"]))
        key = self.keys.rows(job.entry.name)
        commands: list[Command] = []
        for unsent_range, letter in sorted(unsent):
            # The commit joins this range with the newest row if that row has the same outcome, and
            # no run was sent since. To find that out, it needs the last run sent before this range.
            # So even if an entry is left out each minute for a day, this uses only one row of
            # ``history``.
            sent_before = (nominal for nominal in plan.emit if nominal < unsent_range.first)
            last_sent = max(sent_before, default=job.state.last) or 0
            values = (history, LIFE_MS, last_sent, letter, *unsent_range)
            commands.append(("range", key, values))
        return commands
