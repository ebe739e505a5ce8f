"""Backfills, which the leader sends in steps, after due entries.

The stored backfills are a second schedule. A step of a backfill is a job of a batch, as a due entry
is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from datetime import tzinfo
from itertools import islice
from typing import Any

from celery.utils.log import get_logger

from .._base.actors import BEAT
from .._base.clock import elapsed
from .._base.errors import CorruptEntry, NotKnownHere
from .._base.text import describe
from ..entries.backfill import Backfill, backfill_of, room, times, went_out
from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.lifecycle import retry_delay
from ..entries.state import EntryState, backfill_id
from ..entries.stored_entry import UNREADABLE, state_of
from ..once.lock_store import LockStore
from ..rules import every
from ..rules.misfire import Plan
from ..runs.run import BACKFILL_HEADER, LETTERS
from ..runs.run_store import RunKeys
from ..settings import MAX_HISTORY
from ..store.changes import line_of
from ..store.leader_store import LeaderStore
from ..store.records import Advance, Refrozen, Stored
from ..store.redis_values import text
from .beat_state import BeatState
from .dispatch.batch_sender import BatchSender
from .dispatch.planner import Batch, Job, Planner, quarantined
from .leader import Leader

logger = get_logger(f"celery.{__name__}")

#: Milliseconds until the next step of a backfill that cannot send, because it waits for a run to
#: end, for a lock or for the end of a freeze. Each further wait is twice as long.
_FIRST_WAIT = 200

#: Longest of these waits in milliseconds.
_LONGEST_WAIT = 4000

#: Milliseconds between two steps of a backfill with ``max_active``.
_STEP = 10

#: If an entry is due within so many milliseconds, no step of a backfill begins.
_MAKES_WAY = 30

#: Seconds since the last step after which a step begins although an entry is due soon.
_PATIENCE = 1.0

#: Outcome, in the feed, of an attempt that will be retried, so that its run has not ended.
_RETRYING = LETTERS["retrying"].encode()

#: Maximum number of lines of the feed that one step reads.
_LINES = 1000

#: Maximum number of backfills that are sent in turn, and whose waits are cached.
_AT_ONCE = 100


@dataclass(slots=True, kw_only=True)
class BackfillJob(Job):
    """One step of a backfill.

    Parameters:
        backfill: the backfill before the step.
        is_last: whether the step sends its last run.
        after: the backfill after the step, once that is known.
    """

    backfill: Backfill
    is_last: bool = False
    after: Backfill | None = None

    def id_of(self, nominal: int) -> str:
        return _task_id(self.backfill, nominal)


class BackfillSteps:
    """Results of the steps of backfills, which the commit writes."""

    def __init__(self, store: LeaderStore, state: BeatState) -> None:
        self._store = store
        self._state = state
        #: When the last advanced backfill is due again, in epoch ms; ``None`` if it has ended.
        self.due: int | None = None
        #: Id of a backfill that could not send -> its last wait in ms.
        self._waits: dict[str, int] = {}

    def advance(self, job: Job, now: int) -> Advance:
        """Return the values that the commit writes for a step of a backfill.

        This also sets ``job.after``, the backfill after the step, and :attr:`due`.

        Parameters:
            job: the step, after its messages were sent. With ``job.error``, none was sent.
            now: epoch ms.
        """
        assert isinstance(job, BackfillJob)
        before = job.backfill
        sent = job.plan.emit
        if job.error:
            # Nothing was sent, so try again, after a longer wait each time.
            after = before.but(attempts=before.attempts + 1)
            wait = 1000 * retry_delay(after.attempts)
        else:
            # Runs that are left out did not get their once-lock. A later step sends them.
            after = went_out(before, sent, is_all=job.is_last and not job.left_out)
            wait = self._pace(before, len(sent)) if sent else self._back_off(before)
        job.after = after
        self.due = None if after.ended else now + wait
        # The commit writes nothing if the stored backfill is not this text any more.
        guard = (job.stored.state or b"").decode()
        return Advance(job.stored.name, guard, after.state, self.due, job.commands)

    def report_advanced(self, jobs: Sequence[Job]) -> None:
        """Count the messages of steps that were committed, and record backfills that have ended."""
        for job in jobs:
            assert isinstance(job, BackfillJob)
            after = job.after
            # A step with an error has sent nothing.
            if job.error or after is None:
                continue
            self._state.sent += len(job.plan.emit)
            if after.ended:
                line = line_of(BEAT, "backfill", f"{after.id} {after.ended}: {after.sent} sent")
                self._store.record(line, [after.name])

    def _pace(self, backfill: Backfill, sent: int) -> int:
        """Return the milliseconds to wait after a step that has sent ``sent`` messages."""
        self._waits.pop(backfill.id, None)
        # With ``max_active``, the ends of runs set the pace; otherwise ``rate``, in messages per
        # second.
        if backfill.max_active is not None:
            return _STEP
        return round(1000 * sent / backfill.rate)

    def _back_off(self, backfill: Backfill) -> int:
        """Return the milliseconds to wait after a step that could not send: twice the last wait."""
        last_wait = self._waits.get(backfill.id)
        wait = _FIRST_WAIT
        if last_wait is not None:
            wait = min(2 * last_wait, _LONGEST_WAIT)
        if len(self._waits) >= _AT_ONCE:
            self._waits.clear()  # Most of them are of backfills that have ended.
        self._waits[backfill.id] = wait
        return wait


class Backfills:
    """Backfills of a schedule, which the leader sends in turn.

    Parameters:
        entries: store of the entries.
        store: store of the backfills.
        planner: planner of the entries, which also decodes them and makes the claims of once-locks.
        steps: results of the steps, which ``sender`` commits.
    """

    def __init__(
        self,
        entries: LeaderStore,
        store: LeaderStore,
        leader: Leader,
        state: BeatState,
        planner: Planner,
        steps: BackfillSteps,
        sender: BatchSender,
        zone: tzinfo,
    ) -> None:
        self._entries = entries
        self._store = store
        self._leader = leader
        self._state = state
        self._planner = planner
        self._steps = steps
        self._sender = sender
        self._zone = zone
        #: Key of the feed, the stream with the ends of runs.
        self._feed = RunKeys(entries.keys.prefix).feed
        #: Store of the guard's records, which show whether the active runs still have a worker.
        self._guards = LockStore(entries.backend.client, entries.keys.prefix)
        #: Time of the last step, in seconds of :func:`elapsed`.
        self._last_step = 0.0

    def run(self, due: int | None, upcoming: int | None) -> int | None:
        """Take a step of the backfill whose turn it is, unless an entry is due soon.

        Parameters:
            due: when the first backfill is due, in epoch ms; ``None`` if there is none.
            upcoming: when the next entry is due, in epoch ms; ``None`` if there is none.

        Returns:
            when the next entry or backfill is due, in epoch ms.

        Raises:
            BrokerDown: the broker cannot be reached. The step stays due.
            Lost: another process leads.
        """
        now = self._leader.clock.now_ms()
        if due is None:
            self._state.backfill_left = 0
            return upcoming
        if due > now:
            return due if upcoming is None else min(due, upcoming)
        # A step would delay an entry that is due in a moment. But if entries are due all the time,
        # a backfill must not wait for ever, so a step follows after ``_PATIENCE`` nevertheless.
        makes_way = upcoming is not None and upcoming - now < _MAKES_WAY
        if makes_way and elapsed() - self._last_step < _PATIENCE:
            return upcoming
        self._last_step = elapsed()
        # The page is in due order. A backfill that is paused or has ended has no due time (score).
        running = [stored for stored in self._store.page(0, _AT_ONCE) if stored.score is not None]
        backfills = [backfill_of(stored) for stored in running]
        self._state.backfill_left = sum(backfill.left for backfill in backfills if backfill)
        if running:
            # The sender raises Refrozen if the freezes have changed meanwhile. Then the backfill is
            # not advanced, and a later call takes the step.
            with suppress(Refrozen):
                self._take_step(running[0], backfills[0], now)
        # This backfill is due again at ``steps.due``. The next one in due order, if there is one,
        # may be due earlier.
        dues = (upcoming, self._steps.due, *(stored.score for stored in running[1:2]))
        return min((due for due in dues if due is not None), default=None)

    def _take_step(self, stored: Stored, backfill: Backfill | None, now: int) -> None:
        """Send the next runs of a backfill; quarantine it if it is unreadable (``None``)."""
        term = self._leader.term
        self._sender.connect(term)
        if backfill is None:
            bad = quarantined(stored, CorruptEntry("it is no backfill"), now)
            self._sender.send(term, now, Batch(bad=[bad]))
            return
        job = self._plan(stored, backfill, now, self._state.freezes)
        self._sender.send(term, now, Batch([job]))

    def _plan(self, stored: Stored, backfill: Backfill, now: int, freezes: Freezes) -> BackfillJob:
        """Return the next step of a backfill at ``now``, in epoch ms.

        The step has the next runs. If no run may be sent now, it has no runs, and the backfill
        waits. If the entry is gone, was replaced by another one of its name, or cannot be read,
        the step ends the backfill. If its schedule fails, or only another app knows the schedule,
        the step has an error, and the backfill is retried.

        Parameters:
            freezes: the freezes in force. A freeze of the entry holds its backfill, too.
        """
        # The job begins without runs, and with a stand-in for the entry, which is not read yet.
        stand_in = Entry(backfill.name, "unknown", every(1))
        nothing = Plan(emit=(), next=None, skipped=0)
        state = EntryState(version=0, generation="", nominal=None)
        job = BackfillJob(stored, stand_in, state, nothing, backfill=backfill)
        [stored_entry] = self._entries.read([backfill.name])
        try:
            state = state_of(stored_entry)
            entry = self._planner.read_entry(stored_entry)
            if state.generation != backfill.generation:
                job.backfill = _cancelled(backfill, "another one has its name")
            elif freezes.until(now, entry) is None:
                self._add_runs(job, entry, state, now)
        except NotKnownHere as exc:
            job.error = describe(exc)
        except UNREADABLE as exc:
            job.backfill = _cancelled(backfill, exc)
        except Exception as exc:  # noqa: BLE001 - a schedule may raise anything
            job.error = describe(exc)
            text = "beat: backfill %s of %r waits, trying again later: %s"
            logger.error(text, backfill.id, backfill.name, job.error)
        return job

    def _add_runs(self, job: BackfillJob, entry: Entry, state: EntryState, now: int) -> None:
        """Add to a job the next runs of its backfill, as many as may be active now.

        The job also gets the backfill without its ended runs, a copy of the entry for these
        messages, and claims of the once-lock.
        """
        backfill = self._drop_ended(job.backfill)
        job.backfill = backfill
        job.entry = _copy_of(entry, backfill)
        # Without room, the job stays without runs, and the backfill waits.
        most = room(backfill, entry)
        if most < 1:
            return
        # One run more than can be sent shows whether this step sends the last one.
        nominals = [*islice(times(backfill, entry, state, self._zone), most + 1)]
        job.plan = Plan(emit=tuple(nominals[:most]), next=None, skipped=0)
        job.is_last = len(nominals) <= most
        once = job.entry.once
        if once is not None:
            job.claims = [self._planner.claim(job, once, nominal, now) for nominal in job.plan.emit]

    def _drop_ended(self, backfill: Backfill) -> Backfill:
        """Return the backfill without those active runs that have ended or lost their worker.

        The feed has a line for each end that workers have recorded. A run has lost its worker if
        the worker does not renew the run's record any more. If the backfill may send another run
        anyway, its active runs are not checked.
        """
        if backfill.max_active is None or len(backfill.active) < backfill.max_active:
            return backfill
        client: Any = self._entries.backend.client
        # "(" excludes the line itself, which is the last one that an earlier step has read.
        lines = client.xrange(self._feed, f"({backfill.feed}", "+", _LINES)
        ended = {
            text(fields.get(b"id", b""))
            for _, fields in lines
            if fields.get(b"outcome") != _RETRYING
        }
        running = {}
        for nominal in backfill.active:
            task_id = _task_id(backfill, nominal)
            if task_id not in ended:
                running[task_id] = nominal
        records = self._guards.records(running)
        active = [running[task_id] for task_id, record in records.items() if not record.has_lapsed]
        # The next step reads the feed from here on.
        feed = text(lines[-1][0]) if lines else backfill.feed
        return backfill.but(active=active, feed=feed)


def _cancelled(backfill: Backfill, why: object) -> Backfill:
    return backfill.but(ended=f"cancelled, as its entry is gone: {why}")


def _copy_of(entry: Entry, backfill: Backfill) -> Entry:
    """Return a copy of the entry for the messages of a backfill.

    Nothing is expected of runs of the past (``expect``). A header has the backfill's id.
    """
    changed = copy(entry)
    changed.own_part = None  # This cached part of each message has the headers of the entry.
    headers = {**(entry.options.get("headers") or {}), BACKFILL_HEADER: backfill.id}
    changed._put(expect=False, options={**entry.options, "headers": headers})
    once = entry.once
    if once is not None and not once.at_publish and once.on_conflict != "wait":
        # Otherwise the worker would skip a run if another task has its lock.
        changed._put(once=once.but(on_conflict="wait", max_waiters=None))
    if backfill.max_active is not None:
        # Keep more rows, because the end of a run is recorded only if there is room for its
        # row, and rows of past nominal times are the first to be cut.
        changed._put(history=MAX_HISTORY)
    return changed


def _task_id(backfill: Backfill, nominal: int) -> str:
    return backfill_id(backfill.name, backfill.generation, nominal, backfill.again)
