"""Planning: which runs of due entries are sent, and when each entry is due next.

No code here sends a command to a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery import Celery

from ..._base.errors import ConfigOwned, NotKnownHere
from ..._base.json_values import MAX_BYTES, dumps
from ..._base.text import describe
from ...entries import lifecycle
from ...entries.apply_options import check_destination
from ...entries.changes import Stored
from ...entries.entry import Entry
from ...entries.message import life_ms
from ...entries.state import EntryState, task_id
from ...entries.stored_entry import entry_of, state_of
from ...once.claims import ONCE_HEADER, Claim, claim_of, once_header
from ...rules import every
from ...rules.celery_schedules import AnsweringRule, ForeignRule
from ...rules.misfire import Plan
from ...store.records import Bad, Command

#: Maximum number of characters of an error that is stored with an entry.
MAX_ERROR = 500

#: Maximum estimated bytes of the cache of decoded entries: some 45,000 entries with few arguments.
#: A full cache is emptied. To drop only the oldest entry would not help, because it would be the
#: next to be needed.
_CACHE_BYTES = 64_000_000

#: Estimated bytes of one cached entry: a fixed part, plus a part per byte of its definition.
_FIXED_BYTES = 1000
_BYTES_PER_DEFINITION_BYTE = 4

#: If two runs are at least this many ms apart, the later one may take over the once-lock of an
#: earlier one that has not started.
_TAKEOVER_GAP = 60_000

#: Ms by which such a takeover may come before the next run, because clocks differ.
_CLOCK_TOLERANCE = 1000


@dataclass(slots=True)
class Job:
    """One due entry on its way through a batch."""

    stored: Stored
    entry: Entry
    state: EntryState
    plan: Plan
    due: int | None = None  #: when the entry is due next, in epoch ms
    #: Ms from now until its messages expire, because the next run is due then; else ``None``.
    life: int | None = None
    spare_due: int | None = None  #: when the spare occurrence of the plan is due, in epoch ms
    #: Further headers of its messages: those that name the once-lock, if its entry has one.
    headers: Mapping[str, Any] | None = None
    #: Request for the once-lock of its only run; ``None`` if it needs none, or workers acquire it.
    claim: Claim | None = None
    #: Nominal times of runs that are not sent, because another task has their once-lock.
    left_out: list[int] = field(default_factory=list)
    #: Redis commands by which the commit is to send its messages. If its run is left out for the
    #: message of an earlier job, the command that checks that this message is sent.
    commands: Sequence[Command] = ()
    #: Why a message was not published, or why this beat cannot use the entry; empty: no failure.
    error: str = ""
    #: Whether its messages were made, or one has failed, so that the commit stores the result. Set
    #: back to false if the commit shows that it was to send the messages, and has not.
    is_handled: bool = False

    def id_of(self, nominal: int) -> str:
        """Return the task id of the run with this nominal time."""
        return task_id(self.entry.name, self.state.generation, nominal)

    def leave_out(self, most: int = 0) -> None:
        """Take runs out of the plan, because another task has their once-lock.

        Parameters:
            most: number of runs that stay; the latest ones are taken out.
        """
        if len(self.plan.emit) <= most:
            return
        self.left_out = [*self.plan.emit[most:], *self.left_out]
        if not most:
            self.claim = None
        following = self.plan.next
        if following is None:
            # This plan was to be the last one. If ``max_runs`` is the reason, another run follows,
            # because a run that is left out does not count. If the schedule has ended, there is no
            # spare occurrence.
            following = self.plan.spare
            self.due = self.spare_due
        self.plan = Plan(self.plan.emit[:most], following, self.plan.ranges)


@dataclass(slots=True)
class Batch:
    """Result of planning: jobs to send, and entries to quarantine (``bad``).

    Parameters:
        now: time of the planning, in epoch ms.
        may_ask: whether to ask users' own schedule classes, which may be slow. If false, entries
            with such a class get no job, and are put into ``custom_entries``.
    """

    now: int
    may_ask: bool = False
    jobs: list[Job] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    #: Entries with a user's own schedule class, to be planned after the jobs have been sent.
    custom_entries: list[Stored] = field(default_factory=list)


@dataclass(eq=False, kw_only=True)
class Planner:
    """Planner of batches, which remembers decoded entries between them.

    Parameters:
        completed: function that returns an entry with all its fields. Redis cannot hold some fields
            of some config entries, so they are taken from the app's configuration.
        prefix: prefix of the schedule's keys.
        slack: ms by which the clocks of beats and workers may differ.
    """

    app: Celery
    completed: Callable[[Entry], Entry]
    prefix: str
    slack: int

    def __post_init__(self) -> None:
        #: Name of an entry -> its stored definition, and the entry that was decoded from it.
        self._decoded: dict[bytes, tuple[bytes | None, Entry]] = {}
        #: Estimated bytes by which this cache may still grow.
        self._bytes_left = _CACHE_BYTES

    def plan(self, due: Sequence[Stored], now: int, most: int, *, may_ask: bool = False) -> Batch:
        """Plan a batch at ``now``, in epoch ms. Entries that do not fit into it stay due.

        The oldest entries and the newest ones get half of the messages each, so that a backlog does
        not delay new entries.

        Parameters:
            due: due entries, in due order.
            most: number of messages with which the batch is full.
            may_ask: whether to ask users' own schedule classes, as in :class:`Batch`.
        """
        batch = Batch(now, may_ask)
        # Each half is planned until it has at least ``most / 2`` messages. So with ``most=1``, a
        # single entry is still planned.
        middle = len(due) // 2
        oldest = self._plan_half(batch, due[:middle], most / 2)
        newest = self._plan_half(batch, reversed(due[middle:]), most / 2)
        # The newest entry was planned first, and messages are sent in the order of due times.
        batch.jobs = [*oldest, *reversed(newest)]
        return batch

    def _plan_half(self, batch: Batch, entries: Iterable[Stored], most: float) -> list[Job]:
        """Plan these entries in order, until their jobs have ``most`` runs; return the jobs.

        The entries are the older or the newer half of the due entries. Those that are not planned
        stay due. A faulty entry, and one with a user's own schedule class, get no job: they are put
        into ``bad`` and ``custom_entries`` of the batch.
        """
        jobs: list[Job] = []
        messages = 0
        for stored in entries:
            if messages >= most:
                break
            try:
                job = self._plan_entry(batch, stored)
            except Exception as exc:  # noqa: BLE001 - one faulty entry must not affect the others
                batch.bad.append(quarantined(stored, exc, batch.now))
                continue
            if job is None:
                batch.custom_entries.append(stored)
            else:
                jobs.append(job)
                # A run that is left out is recorded by the commit, so count it, too.
                messages += len(job.plan.emit) + len(job.left_out)
        return jobs

    def _plan_entry(self, batch: Batch, stored: Stored) -> Job | None:
        """Return the job of a due entry: what to send, and when the entry is due next.

        An entry with a user's own schedule class may be slow to answer. Unless ``batch.may_ask`` is
        true, return ``None`` for it. Such entries are planned one by one after the others.
        """
        now = batch.now
        state = lifecycle.after_pause(state_of(stored), now)
        try:
            entry = self.read_entry(stored)
        except (ConfigOwned, NotKnownHere) as exc:
            # The beat of another app or of a newer version may be able to use the entry. So do not
            # quarantine it, but have it retried: the job has an error, and no runs to send.
            stand_in = Entry(stored.name.decode(), "unknown", every(1))
            nothing = Plan((), state.nominal)
            return Job(stored, stand_in, state, nothing, error=str(exc)[:MAX_ERROR])
        # Rules of these two classes call a user's own schedule class.
        if not batch.may_ask and isinstance(entry.rule, (ForeignRule, AnsweringRule)):
            return None
        job = Job(stored, entry, state, lifecycle.plan(entry, state, now))
        if entry.enabled and not state.paused:
            self._set_due_and_life(job, now)
        else:
            # The plan has no runs. A paused entry is due when its pause ends. If the pause has no
            # end, or the entry is disabled, it is never due.
            job.due = lifecycle.due_time(entry, state)
        self.add_claim(job, now)
        return job

    def _set_due_and_life(self, job: Job, now: int) -> None:
        """Set the expiry of a job's messages, and the next due time of its entry.

        This may call the rule of the entry, and the rule may raise an error. So do it during the
        planning, which quarantines an entry that raises.
        """
        entry = job.entry
        plan = job.plan
        if plan.emit:
            job.life = life_ms(entry, plan, now, self.slack)
        job.due = _due_after(entry, plan.next, now)
        # If another task has the once-lock of a run, leave_out() takes the run out of the plan, and
        # may need this.
        job.spare_due = _due_after(entry, plan.spare, now)

    def read_entry(self, stored: Stored) -> Entry:
        """Return a stored entry; raise if this beat cannot use it."""
        entry = self.completed(self._decode(stored))
        if entry.unstored:
            raise ConfigOwned(f"only the configuration of {entry.owner!r} has all of its parts")
        return entry

    def _decode(self, stored: Stored) -> Entry:
        """Return a stored entry. It is decoded again only when its definition has changed."""
        cached = self._decoded.get(stored.name)
        if cached is not None and cached[0] == stored.definition:
            return cached[1]
        entry = entry_of(stored, self.app)
        # This raises if messages would go into a key of the schedule.
        check_destination(entry.options, self.prefix)
        # If an earlier definition of the entry was cached, its bytes are not added back. So the
        # cache may have more room than this counts, but never less.
        estimate = _FIXED_BYTES + _BYTES_PER_DEFINITION_BYTE * len(stored.definition or b"")
        if self._bytes_left < estimate:
            self._decoded.clear()
            self._bytes_left = _CACHE_BYTES
        self._bytes_left -= estimate
        self._decoded[stored.name] = (stored.definition, entry)
        return entry

    def add_claim(self, job: Job, now: int) -> None:
        """Name the once-lock of a job's entry in its messages, and make the claim of the job.

        A claim is a request for the lock. If the worker acquires the lock, the job has no claim.
        With a claim, only the first run of the job is sent, because the others need the same lock.
        """
        entry = job.entry
        if entry.once is None or not job.plan.emit:
            return
        # Read ``app.tasks`` only if it is needed. At the first reading Celery finalizes the app,
        # which takes long.
        task = self.app.tasks.get(entry.task)
        task_id = job.id_of(job.plan.emit[0])
        claim = claim_of(entry, entry.once, task, task_id=task_id, life=job.life, now=now)
        job.headers = {ONCE_HEADER: once_header(claim.key, entry.once)}
        if entry.once.at_publish:
            job.claim = claim._replace(takeover_at=_takeover_time(job, claim.delay_ms))
            job.leave_out(most=1)


def _takeover_time(job: Job, delay: int) -> int:
    """Return from when the next run may take over the once-lock of this job, in epoch ms; 0: never.

    After that time, the lock is free even if the message of this job still seems to be queued. The
    message may be lost, and then no worker releases its lock.

    Parameters:
        delay: ms until the message can start.
    """
    plan = job.plan
    # If ``life`` is ``None``, the message does not expire when the next run is due. It can still
    # start, so it keeps its lock. If no run is next, ``life`` is ``None``, too, and only the type
    # checker needs the test of ``plan.next``.
    if job.life is None or plan.next is None:
        return 0
    # If the next run is near, this message keeps its lock. While it is still queued, the next run
    # is left out: one message serves both.
    if plan.next - plan.emit[-1] < _TAKEOVER_GAP:
        return 0
    # The next run may take over the lock just before it is due. If this message has a countdown
    # (``delay``), the takeover comes later by as much.
    return plan.next - _CLOCK_TOLERANCE + delay


def _due_after(entry: Entry, following: int | None, now: int) -> int | None:
    """Return when an entry is due after a plan made at ``now``, if ``following`` is the next run.

    If that occurrence is past, the plan sends only a part of the missed runs. Then put the entry
    behind all other due entries, so that these do not wait for its backlog.
    """
    due = lifecycle.score(entry, following)
    return None if due is None else max(due, now)


def quarantined(stored: Stored, exc: Exception, now: int) -> Bad:
    """Return a faulty entry with its error, and the record that the quarantine keeps."""
    error = describe(exc)[:MAX_ERROR]
    record = {
        "error": error,
        "definition": _readable(stored.definition),
        "state": _readable(stored.state),
        "at": now,
    }
    return Bad(stored, error, dumps(record))


def _readable(raw: bytes | None) -> str | None:
    """Return a stored text for the quarantine.

    A text of more than ``MAX_BYTES`` is cut, because it is too long to be released anyway. One byte
    more than that is kept, so that the text is still too long.
    """
    return None if raw is None else raw[: MAX_BYTES + 1].decode("utf-8", "backslashreplace")
