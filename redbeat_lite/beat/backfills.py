"""Backfills: past runs of entries that the leader sends in steps.

After the leader has sent the due entries, it takes a step of the backfill that is due first.
Backfills are stored like the entries of a second schedule. A step of a backfill is sent like a due
entry, as a job of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import islice

from celery.utils.log import get_logger

from .._base.actors import BEAT
from .._base.errors import CorruptEntry, NotKnownHere
from .._base.text import describe
from ..entries.backfill import (
    Backfill,
    after_failure,
    after_step,
    backfill_of,
    message_limit,
    unsent_times,
)
from ..entries.changes import Stored, line_of
from ..entries.entry import Entry
from ..entries.run import BACKFILL_HEADER
from ..entries.state import EntryState, backfill_id
from ..entries.stored_entry import UNREADABLE, state_of
from ..once.lock_store import LockStore
from ..rules import every
from ..rules.misfire import Plan
from ..runs.run_store import RunStore
from ..settings import MAX_HISTORY
from ..store.leader_store import LeaderStore
from ..store.records import Advance, Frozen
from .dispatch.batch_log import BatchLog
from .dispatch.batch_sender import BatchSender
from .dispatch.planner import Batch, Job, Planner, quarantined
from .dispatch.publisher import Publisher
from .leader import Leader

logger = get_logger(f"celery.{__name__}")

#: Maximum number of lines that one step reads from the feed, the stream of ended runs. To read so
#: many takes about 30 ms.
_LINES = 1000


@dataclass(slots=True, kw_only=True)
class BackfillJob(Job):
    """One step of a backfill.

    Parameters:
        backfill: the backfill before the step.
    """

    backfill: Backfill

    def id_of(self, nominal: int) -> str:
        """Return the task id of the run with this nominal time (epoch ms)."""
        return _task_id(self.backfill, nominal)

    @property
    def after(self) -> Backfill:
        """The backfill after the step. A step with an error has sent nothing."""
        if self.error:
            return after_failure(self.backfill)
        return after_step(self.backfill, self.plan.emit)


@dataclass(eq=False)
class Backfills:
    """Backfills of a schedule. At each turn, the leader takes a step of one of them.

    Parameters:
        entries: store of the entries.
        planner: planner of the entries. Backfills use it to decode an entry, and to make claims
            (requests for once-locks).
    """

    entries: LeaderStore
    leader: Leader
    planner: Planner
    publisher: Publisher
    locks: LockStore
    log: BatchLog

    def __post_init__(self) -> None:
        backend = self.entries.backend
        # Backfills are stored like entries, but under keys of their own.
        self._store = LeaderStore(backend, self.entries.keys.of_backfills)
        self._sender = BatchSender(
            self._store,
            self.leader,
            self.publisher,
            self.locks,
            self.log,
            advance=self._advance,
            report_advanced=self._report_advanced,
        )
        self._runs = RunStore(backend.client, self.entries.keys.prefix)

    def run(self, due: int | None, upcoming: int | None) -> int | None:
        """Take a step of the backfill that is due first, if it is due.

        Parameters:
            due: when the first backfill is due, in epoch ms; ``None`` if there is none.
            upcoming: when the next entry is due, in epoch ms; ``None`` if there is none.

        Returns:
            when the next entry or backfill is due, in epoch ms. After a step, this is the present
            time, so that the next turn begins at once and reads when the next step is due.

        Raises:
            BrokerDown: the broker cannot be reached. The step stays due.
            Lost: another process leads.
        """
        now = self.leader.clock.now_ms()
        if due is None:
            return upcoming
        if due > now:
            return due if upcoming is None else min(due, upcoming)
        # Read only the backfill that is due first.
        for stored in self._store.page(0, 1):
            if stored.score is None:
                continue  # It was paused or has ended meanwhile.
            # If a freeze has begun meanwhile, the sender raises Frozen, and the backfill is not
            # advanced. A later call takes the step.
            with suppress(Frozen):
                self._take_step(stored, now)
        return now

    def _take_step(self, stored: Stored, now: int) -> None:
        """Send the next runs of a backfill; quarantine it if it is unreadable."""
        # The sender needs an open connection. If the broker cannot be reached, this raises before a
        # step is planned.
        self.publisher.connect()
        backfill = backfill_of(stored)
        batch = Batch(now)
        if backfill is None:
            batch.bad.append(quarantined(stored, CorruptEntry("it is no backfill"), now))
        else:
            batch.jobs.append(self._plan(stored, backfill, now))
        self._sender.send(batch)

    def _report_advanced(self, jobs: Sequence[Job]) -> None:
        """Count the messages of steps that were committed, and record backfills that have ended."""
        for job in jobs:
            assert isinstance(job, BackfillJob)
            after = job.after
            self.leader.state.sent += after.sent - job.backfill.sent
            if after.ended:
                line = line_of(BEAT, "backfill", f"{after.id} {after.ended}: {after.sent} sent")
                self.entries.record(line, [after.name])

    def _advance(self, job: Job, now: int) -> Advance:
        """Return the values that the commit writes for a step at ``now`` (epoch ms)."""
        assert isinstance(job, BackfillJob)
        after = job.after
        due = None if after.ended else now + after.wait
        # The commit advances a backfill only if its stored text begins with the guard. This guard
        # is the whole text as it was read, so a backfill that has changed since is not advanced.
        guard = (job.stored.state or b"").decode()
        commands = [*job.commands]
        if commands:
            # The messages have the definition of the entry as it was read. If the entry was edited,
            # removed or replaced since, its version or generation has changed. Then the commit
            # sends nothing, and the next turn plans the step again. Messages that were sent already
            # need no such check: without the commit, they would be sent again.
            planned_from = f"{job.state.version}|{after.generation}|{after.name}"
            commands.append(("if", self.entries.keys.state, planned_from))
        return Advance(job.stored.name, guard, after.text, due, commands)

    def _plan(self, stored: Stored, backfill: Backfill, now: int) -> BackfillJob:
        """Return the next step of a backfill at ``now``, in epoch ms.

        - As a rule, the step has the next runs.
        - If the backfill has to wait before it sends more, the step has no runs.
        - If the entry is gone, was replaced by another one of its name, or cannot be read, the step
          ends the backfill.
        - If the schedule raises an error, or only another app knows the schedule, the step has an
          error, and is retried later.
        """
        error = ""
        try:
            return self._plan_runs(stored, backfill, now)
        except NotKnownHere as exc:
            # This error is a CorruptEntry, too, but does not end the backfill: another app may know
            # the schedule, so the step is tried again later.
            error = describe(exc)
        except UNREADABLE as exc:
            # The entry is gone, was replaced, or cannot be read, so end the backfill.
            backfill = backfill.but(ended=f"cancelled, as its entry is gone: {exc}")
        except Exception as exc:  # noqa: BLE001 - a schedule or a lock's key may raise anything
            error = describe(exc)
            logger.error(
                "beat: backfill %s of %r waits, trying again later: %s",
                backfill.id,
                backfill.name,
                error,
            )
        # A step without runs has a stand-in for the entry.
        return _job(stored, Entry(backfill.name, "unknown", every(1)), Plan(), backfill, error)

    def _plan_runs(self, stored: Stored, backfill: Backfill, now: int) -> BackfillJob:
        """Return the step with the next runs of a backfill, as many as the backfill allows now.

        If the backfill has sent all of its runs, the step ends it.

        Raises:
            CorruptEntry: the entry is gone, was replaced, or cannot be read.
            NotKnownHere: only another app knows its schedule.
        """
        [stored_entry] = self.entries.read([backfill.name])
        state = state_of(stored_entry)
        entry = self.planner.read_entry(stored_entry)
        # An entry that was removed and added again has another generation.
        if state.generation != backfill.generation:
            raise CorruptEntry("another one has its name")
        # If the limit of active runs is reached, runs that have ended make room for more.
        backfill = self._drop_ended(backfill)
        # Nominal times of the runs that the backfill still has to send.
        nominals = unsent_times(backfill, entry, state)
        # If the limit is 0, the step has no runs, and the backfill waits.
        emit = tuple(islice(nominals, message_limit(backfill, entry)))
        # If no nominal time is left, the backfill has sent all.
        if not emit and next(nominals, None) is None:
            backfill = backfill.but(ended="done")
        job = _job(stored, _copy_of(entry, backfill), Plan(emit), backfill, version=state.version)
        self.planner.add_claim(job, now)
        return job

    def _drop_ended(self, backfill: Backfill) -> Backfill:
        """Return the backfill without the active runs that have ended, or whose worker has died.

        The feed has a line for each run whose end a worker has recorded. If a worker has died, it
        does not renew the records of its runs, and these lapse.
        """
        # Without a limit, or if it is not reached, the backfill can send another run anyway. So do
        # not check which of the active runs have ended.
        if backfill.max_active is None or len(backfill.active) < backfill.max_active:
            return backfill
        # Continue in the feed where the last check stopped. ``feed`` becomes the time of the last
        # line that was read. After a long pause, the feed may have more than ``_LINES`` new lines,
        # and the next steps read the remaining ones.
        lines, feed = self._runs.next_lines(backfill.feed, _LINES)
        # A run whose attempt has failed and will be retried has not ended.
        ended = {line.row.task_id for line in lines if line.row.outcome != "retrying"}
        nominal_by_id = {_task_id(backfill, nominal): nominal for nominal in backfill.active}
        # Workers keep a record of a run while they run it. Read the records of the runs whose end
        # is not in the feed. If a run has none, it may not have begun yet. records() returns an
        # empty record for it, which has not lapsed, so the run stays active.
        records = self.locks.records(nominal_by_id.keys() - ended)
        active = [nominal_by_id[id_] for id_, record in records.items() if not record.has_lapsed]
        return backfill.but(active=sorted(active), feed=feed)


def _job(
    stored: Stored, entry: Entry, plan: Plan, backfill: Backfill, error: str = "", version: int = 0
) -> BackfillJob:
    """Return a step of a backfill.

    Parameters:
        version: version of the entry that the step was planned from.
    """
    # Of the state of a job, a backfill uses only this version, and the number of failed publishes
    # in a row.
    state = EntryState(version=version, generation="", nominal=None, attempts=backfill.attempts)
    return BackfillJob(stored, entry, state, plan, error=error, backfill=backfill)


def _copy_of(entry: Entry, backfill: Backfill) -> Entry:
    """Return a copy of the entry for the messages of a backfill.

    The copy has no expectation (``expect``), because its runs are of the past. A header of its
    messages has the id of the backfill.
    """
    changed = copy(entry)
    headers = {**(entry.options.get("headers") or {}), BACKFILL_HEADER: backfill.id}
    changed._put(expect=False, options={**entry.options, "headers": headers})
    once = entry.once
    if once is not None and not once.at_publish and once.on_conflict != "wait":
        # The worker acquires this lock. By the policy of the entry, it would skip or refuse a run
        # if another task has the lock. So have the run wait for the lock.
        changed._put(once=once.but(on_conflict="wait", max_waiters=None))
    if backfill.max_active is not None:
        # The backfill waits for the end of each run. The end of a revoked run is recorded only if
        # the history of the entry still has the run. The runs of a backfill are of the past, and
        # the history drops the oldest nominal times first. So keep as many runs as possible, or the
        # backfill might wait for ever.
        changed._put(history=MAX_HISTORY)
    return changed


def _task_id(backfill: Backfill, nominal: int) -> str:
    return backfill_id(backfill.name, backfill.generation, nominal, backfill.again)
