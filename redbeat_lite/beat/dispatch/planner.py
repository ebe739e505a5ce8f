"""Planning: which runs of due entries are published, and when they are due next.

The planner talks to no server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

from ..._base.clock import elapsed
from ..._base.errors import ConfigOwned, NotKnownHere
from ..._base.text import describe
from ..._base.times import delay_ms
from ...entries import lifecycle
from ...entries.apply_options import check_destination
from ...entries.entry import Entry
from ...entries.freezes import Freezes
from ...entries.message import life_ms, lock_life_ms
from ...entries.state import EntryState, task_id
from ...entries.stored_entry import shown_name, state_of
from ...once.claims import Claim, call_key, queue_of
from ...policies import Once
from ...rules import every
from ...rules.celery_schedules import AnsweringRule, ForeignRule
from ...rules.misfire import Plan
from ...store.json_values import MAX_BYTES, dumps
from ...store.records import Bad, Command, Stored
from ..decoded_entries import DecodedEntries

#: Longest text of an error that is kept with an entry.
MAX_ERROR = 500

#: Seconds of one turn in which users' own schedules are asked. One is asked in any case.
_ASKING = 0.05

#: If two runs are at least this many ms apart, the later one may take over the once-lock of an
#: earlier one that has not started.
_FAR = 60_000

#: Clock tolerance in ms for that takeover.
_EARLY = 1000


@dataclass(slots=True)
class Job:
    """One due entry on its way through a batch."""

    stored: Stored
    entry: Entry
    state: EntryState
    plan: Plan
    due: int | None = None  #: when the entry is due next, in epoch ms
    life: int | None = None  #: life of its messages, in ms
    #: Next nominal time and due time, if the last run of ``max_runs`` is left out because its
    #: once-lock is held.
    instead: tuple[int | None, int | None] = (None, None)
    claims: Sequence[Claim] = ()  #: once-locks that the messages need
    acquired: Sequence[Claim] = ()  #: those of the claims whose lock was acquired
    left_out: Sequence[int] = ()  #: nominal times whose once-lock another task has
    commands: Sequence[Command] = ()  #: Redis commands that are still to send its messages
    error: str = ""  #: why a message was not published; empty: nothing has failed
    is_sent: bool = False  #: published, or sent by the commit
    frozen: bool = False  #: a freeze holds the entry

    def id_of(self, nominal: int) -> str:
        return task_id(self.entry.name, self.state.generation, nominal)


@dataclass(slots=True)
class Batch:
    """Planned entries, and those that cannot be used."""

    jobs: list[Job] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    #: Entries with a user's own schedule class, to be planned when the others have been sent.
    asking: list[Stored] = field(default_factory=list)


class Planner:
    """Plans batches, and remembers decoded entries between them.

    Parameters:
        zone: time zone of rules that name none.
        tasks: finds the task of a name in this process.
        completed: returns an entry with the parts that only the app's configuration holds.
        prefix: of the schedule's keys.
        slack: milliseconds by which the clocks of beats and workers may differ.
        progress: called now and then with a text for the log.
    """

    def __init__(
        self,
        *,
        zone: tzinfo,
        tasks: Callable[[str], Any],
        completed: Callable[[Entry], Entry],
        prefix: str,
        slack: int,
        progress: Callable[[object], None],
    ) -> None:
        self._zone = zone
        self._tasks = tasks
        self._completed = completed
        self._slack = slack
        self._progress = progress
        self._decoded = DecodedEntries(lambda entry: check_destination(entry.options, prefix))

    def plan(self, due: Sequence[Stored], now: int, freezes: Freezes, most: int) -> Batch:
        """Plan a batch at ``now``, in epoch ms. Entries that do not fit into it stay due.

        ``due`` has the oldest and the newest due entries in turn. Each of the two gets half of the
        messages, so that neither waits for the other.

        Parameters:
            most: number of messages from which on no further entry is planned.
        """
        self._progress("planning")
        batch = Batch()
        oldest = due[::2]
        newest = due[1::2]
        planned = self._plan_half(oldest, now, freezes, most / 2, batch)
        # If the newest entries leave room, more of the others follow, the newest of them first.
        others = reversed(oldest[planned:])
        half = len(batch.jobs)
        self._plan_half([*newest, *others], now, freezes, most / 2, batch)
        # The second half was planned from the newest on, but messages are sent in the order of
        # their due times.
        batch.jobs[half:] = reversed(batch.jobs[half:])
        return batch

    def _plan_half(
        self, due: Sequence[Stored], now: int, freezes: Freezes, most: float, batch: Batch
    ) -> int:
        """Plan entries into a batch, until they have at least ``most`` messages.

        Returns the number of entries that were planned.
        """
        messages = 0
        for number, stored in enumerate(due):
            if messages >= most:
                return number
            messages += self._add(stored, now, freezes, batch, may_ask=False)
        return len(due)

    def ask(self, entries: Sequence[Stored], now: int, freezes: Freezes) -> Batch:
        """Plan entries with a user's own schedule class, as many as the time of a turn allows.

        The other entries stay due.
        """
        batch = Batch()
        until = elapsed() + _ASKING
        for stored in entries:
            self._progress(f"asking the schedule of {shown_name(stored)!r}")
            self._add(stored, now, freezes, batch, may_ask=True)
            if elapsed() >= until:
                break
        return batch

    def _add(
        self, stored: Stored, now: int, freezes: Freezes, batch: Batch, *, may_ask: bool
    ) -> int:
        """Plan an entry into a batch; return the number of its messages.

        Parameters:
            may_ask: whether a user's own schedule class may be asked now. If not, an entry with
                such a class is put into ``batch.asking``.
        """
        try:
            job = self._plan_entry(stored, now, freezes, may_ask=may_ask)
        except Exception as exc:  # noqa: BLE001 - one faulty entry must not affect the others
            batch.bad.append(quarantined(stored, exc, now))
            return 0
        if job is None:
            batch.asking.append(stored)
            return 0
        batch.jobs.append(job)
        return len(job.plan.emit)

    def _plan_entry(
        self, stored: Stored, now: int, freezes: Freezes, *, may_ask: bool
    ) -> Job | None:
        """Return the job of a due entry, or ``None`` if it has a user's schedule to ask later.

        Parameters:
            may_ask: whether a user's own schedule class may be asked now.

        Raises:
            Exception: the entry or its state cannot be read, or its rule raises.
        """
        state = state_of(stored)
        # A plan that sends and skips nothing.
        unchanged = Plan((), state.nominal)
        try:
            entry = self.read_entry(stored)
        except (ConfigOwned, NotKnownHere) as exc:
            # The beat of another app or of a newer version may know the entry. So it is not
            # quarantined: the error puts it off to a retry. The stand-in is never sent.
            stand_in = Entry(stored.name.decode(), "unknown", every(1))
            return Job(stored, stand_in, state, unchanged, error=str(exc)[:MAX_ERROR])
        frozen_until = freezes.until(now, entry)
        if frozen_until is not None:
            return Job(stored, entry, state, unchanged, due=frozen_until, frozen=True)
        if not may_ask and isinstance(entry.rule(self._zone), (ForeignRule, AnsweringRule)):
            return None
        job = Job(stored, entry, state, lifecycle.plan(entry, state, now, self._zone))
        if entry.enabled and not state.paused:
            self._look_ahead(job, now)
        if entry.once is not None:
            job.claims = [self.claim(job, entry.once, nominal, now) for nominal in job.plan.emit]
        return job

    def _look_ahead(self, job: Job, now: int) -> None:
        """Note the life of the messages, and when the entry is due next.

        The planner does this, because a rule may raise, and then the entry is quarantined.
        """
        entry = job.entry
        plan = job.plan
        if plan.emit:
            job.life = life_ms(entry, plan, now, self._slack)
        job.due = lifecycle.score(entry, plan.next, self._zone)
        if job.due is not None and job.due < now:
            # The plan has left runs to the next round. With this due time, the entry goes behind
            # all others that are due, so that they need not wait for its backlog.
            job.due = now
        if plan.emit and entry.once is not None and entry.max_runs is not None:
            # If the last allowed run is left out, the entry needs another one after it.
            nominal = lifecycle.ahead(entry, job.state, now, self._zone)
            job.instead = (nominal, lifecycle.score(entry, nominal, self._zone))

    def read_entry(self, stored: Stored) -> Entry:
        """Return a stored entry; raise if this beat cannot use it."""
        entry = self._completed(self._decoded.decode(stored))
        if entry.unstored:
            raise ConfigOwned(f"only the configuration of {entry.owner!r} has all of its parts")
        return entry

    def claim(self, job: Job, once: Once, nominal: int, now: int) -> Claim:
        """Return the claim on the once-lock of one occurrence.

        The claim names the queue, because a worker keeps the lock while the message may wait there.
        After ``yields_ms`` a later run of the entry may take over a lock whose message has not
        started, because that message may be lost.

        Parameters:
            once: the entry's policy.
            nominal: nominal time of the occurrence, in epoch ms.
            now: epoch ms.
        """
        entry = job.entry
        task = self._tasks(entry.task)
        delay = delay_ms(entry.options, now)
        return Claim(
            key=call_key(once, task, entry.task, entry.args, entry.kwargs),
            task_id=job.id_of(nominal),
            once=once,
            holder=f"entry {entry.name}",
            queue=queue_of(task, entry.task, entry.args, entry.kwargs, entry.options),
            delay_ms=delay,
            life_ms=lock_life_ms(entry, job.life, now),
            yields_ms=_until_the_next(job, now, delay),
        )


def _until_the_next(job: Job, now: int, delay: int) -> int:
    """Return in how many ms the next run may take over the once-lock of this run; 0 for never.

    So a lock whose message was lost delays only the next run, and no run after it. The message has
    had the whole gap between the two runs to start. There is no takeover if the runs are close,
    because then one message waits for all of them, nor if the message outlives the gap.
    """
    plan = job.plan
    if job.life is None or plan.next is None or plan.next - plan.emit[-1] < _FAR:
        return 0
    # At least 1, because 0 means never. A delay puts off the earliest start of this message.
    return max(plan.next - now - _EARLY, 1) + delay


def quarantined(stored: Stored, exc: Exception, now: int) -> Bad:
    """Return the entry with the error and the record that the quarantine keeps of it."""
    error = describe(exc)[:MAX_ERROR]
    record = {
        "error": error,
        "definition": _shown(stored.definition),
        "state": _shown(stored.state),
        "at": now,
    }
    return Bad(stored, error, dumps(record))


def _shown(raw: bytes | None) -> str | None:
    """Return a stored text for the quarantine.

    A text that is too long to be stored is cut, because it cannot be released anyway.
    """
    return None if raw is None else raw[: MAX_BYTES + 1].decode("utf-8", "backslashreplace")
