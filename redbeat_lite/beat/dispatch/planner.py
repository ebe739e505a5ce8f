"""Planning: which runs of due entries are published, and when they are due next.

The planner talks to no server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
from ...entries.stored_entry import entry_of, shown_name, state_of
from ...once.claims import Claim, queue_of
from ...policies import Once
from ...rules import every
from ...rules.misfire import Plan
from ...store.json_values import MAX_BYTES, dumps
from ...store.records import Bad, Command, Stored

#: Longest text of an error that is kept with an entry.
MAX_ERROR = 500

#: Most messages of one batch. An entry that sends many missed occurrences takes several batches.
MOST = 2_000

#: Most messages of one batch if they take very long.
LEAST = 100

#: Most bytes of definitions for the messages of half a batch. Several copies of the arguments
#: exist, here and in the server, until the batch is sent.
_MAX_BYTES = 8_000_000

#: Seconds in which entries of half a batch may look for missed occurrences one by one.
_WALKING = 0.08

#: Missed occurrences that an entry may look at after that.
_FEW = 3

#: Seconds after which the rest of half a batch is left to the next one.
_LONGEST = 0.12

#: Seconds from one sign of progress to the next, while entries are planned.
_REPORT = 0.1

#: Most bytes of decoded entries that are kept between ticks: some 45,000 entries with few
#: arguments. If more entries take turns, all are dropped, because the oldest would be the next to
#: be needed.
_CACHE = 64_000_000

#: If two runs are at least this many ms apart, the later one may take over the once-lock of an
#: earlier one that has not started.
_FAR = 60_000

#: Clock tolerance in ms for that takeover.
_EARLY = 1000

#: Estimated bytes of one cached entry: a fixed part, plus a part per byte of its definition.
_CACHED = 1000
_PER_BYTE = 4


@dataclass(slots=True)
class Job:
    """One due entry on its way through a batch."""

    stored: Stored
    entry: Entry
    state: EntryState
    plan: Plan
    due: int | None = None  #: when the entry is due next, in epoch ms
    life: int | None = None  #: of its messages, in ms
    #: Next nominal time and due time, if the last run of ``max_runs`` is left out because its
    #: once-lock is held.
    instead: tuple[int | None, int | None] = (None, None)
    claims: Sequence[Claim] = ()  #: once-locks that the messages need
    acquired: Sequence[Claim] = ()
    left_out: Sequence[int] = ()  #: nominal times whose once-lock is held
    commands: Sequence[Command] = ()
    error: str = ""
    is_sent: bool = False  #: published, or sent by the commit
    frozen: bool = False  #: a freeze holds the entry

    def id_of(self, nominal: int) -> str:
        return task_id(self.entry.name, self.state.generation, nominal)


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
        self._prefix = prefix
        self._slack = slack
        self._progress = progress
        self._decoded: dict[bytes, tuple[bytes, Entry]] = {}
        self._room = _CACHE

    def plan(
        self, due: Sequence[Stored], now: int, freezes: Freezes, most: int = MOST
    ) -> tuple[list[Job], list[Bad]]:
        """Plan a batch at ``now`` (epoch ms); return its jobs, and the entries that cannot be used.

        Stops when the batch is full, or has taken long enough; the rest stays due. ``due`` has the
        oldest and the newest due entries in turn. Each of the two gets half of the batch, so that
        neither waits for the other.
        """
        bad: list[Bad] = []
        oldest = self._plan_half(due[::2], now, freezes, most / 2, bad)
        left = due[::2][len(oldest) + len(bad) :]
        # The new half gets at most as much work as the old half did, so a backlog drains in at most
        # twice the time it would take alone.
        work = sum(max(len(job.plan.emit), 1) for job in oldest)
        newest = self._plan_half(
            [*due[1::2], *reversed(left)], now, freezes, max(work, LEAST / 2), bad
        )
        jobs = [*oldest, *reversed(newest)]
        _take_turns(jobs, now)
        return jobs, bad

    def _plan_half(
        self, due: Iterable[Stored], now: int, freezes: Freezes, most: float, bad: list[Bad]
    ) -> list[Job]:
        time = _Time()
        progress = _PlanningText()
        jobs: list[Job] = []
        messages = 0
        size = 0
        reported = -_REPORT
        for stored in due:
            spent = time.spent
            if messages >= most or size >= _MAX_BYTES or spent >= _LONGEST:
                break
            progress.stored = stored
            if spent - reported >= _REPORT:
                reported = spent
                self._progress(progress)
            try:
                jobs.append(
                    self._plan_entry(stored, now, time, freezes, has_a_turn=spent < _WALKING)
                )
                emitted = len(jobs[-1].plan.emit)
                messages += emitted
                size += emitted * len(stored.definition or b"")
            except Exception as exc:  # noqa: BLE001 - one faulty entry must not affect the others
                bad.append(quarantined(stored, exc, now))
        return jobs

    def _plan_entry(
        self, stored: Stored, now: int, time: _Time, freezes: Freezes, *, has_a_turn: bool
    ) -> Job:
        state = state_of(stored)
        try:
            entry = self.read_entry(stored)
        except (ConfigOwned, NotKnownHere) as exc:
            # The beat of another app or of a newer version may know the entry. The stand-in is
            # never sent.
            stand_in = Entry(stored.name.decode(), "unknown", every(1))
            unchanged = Plan((), state.nominal, 0)
            return Job(stored, stand_in, state, unchanged, error=str(exc)[:MAX_ERROR])
        frozen_until = freezes.until(now, entry)
        if frozen_until is not None:
            unchanged = Plan((), state.nominal, 0)
            return Job(stored, entry, state, unchanged, frozen_until, frozen=True)
        plan = lifecycle.plan(entry, state, now, self._zone, time.is_left_for)
        if not has_a_turn and not plan.emit and plan.next is not None and plan.next <= now:
            # It begins in another batch. A few steps now would only add a line to the log.
            plan = Plan((), state.nominal, 0)
        job = Job(stored, entry, state, plan)
        if entry.enabled and not state.paused:
            self._look_ahead(job, now)
        if entry.once is not None:
            job.claims = [self.claim(job, entry.once, nominal, now) for nominal in plan.emit]
        return job

    def _look_ahead(self, job: Job, now: int) -> None:
        """Find the times after the batch. This is a part of planning, because a rule may raise."""
        entry = job.entry
        plan = job.plan
        if plan.emit:
            job.life = life_ms(entry, plan, now, self._slack)
        if plan.next is not None and plan.next > now and not entry.jitter:
            job.due = int(plan.next)
            return
        job.due = lifecycle.score(entry, plan.next, self._zone)
        if plan.emit and entry.once is not None and entry.max_runs is not None:
            nominal = lifecycle.ahead(entry, job.state, now, self._zone, _few)
            job.instead = (nominal, lifecycle.score(entry, nominal, self._zone))

    def read_entry(self, stored: Stored) -> Entry:
        """Return the entry that is stored; raise if it cannot be used here."""
        entry = self._completed(self._decoded_entry(stored))
        if entry.unstored:
            raise ConfigOwned(f"only the configuration of {entry.owner!r} has all of its parts")
        return entry

    def _decoded_entry(self, stored: Stored) -> Entry:
        cached = self._decoded.get(stored.name)
        if cached is not None and cached[0] == stored.definition:
            return cached[1]
        entry = entry_of(stored)
        definition = stored.definition or b""
        check_destination(entry.options, self._prefix)
        if cached is not None:
            self._room += _size(cached[0])
        self._room -= _size(definition)
        if self._room < 0:
            self._decoded.clear()
            self._room = _CACHE - _size(definition)
        self._decoded[stored.name] = (definition, entry)
        return entry

    def claim(self, job: Job, once: Once, nominal: int, now: int) -> Claim:
        """Return the claim on the once-lock of one occurrence."""
        entry = job.entry
        task = self._tasks(entry.task)
        delay = delay_ms(entry.options, now)
        return Claim(
            entry.name,
            entry.task,
            entry.args,
            entry.kwargs,
            once,
            job.id_of(nominal),
            task=task,
            queue=queue_of(task, entry.task, entry.args, entry.kwargs, entry.options),
            delay_ms=delay,
            life_ms=lock_life_ms(entry, job.life, now),
            yields_ms=_until_the_next(job, now, delay),
        )


def _until_the_next(job: Job, now: int, delay: int) -> int:
    """Return the ms after which the next run may take over the once-lock of this one; 0 for never.

    So a lock whose message was lost delays no more than the next run. The message has had the whole
    gap between the two runs to start. The lock is kept if runs are close, where one message waits
    for all of them, and if the message does not expire with its gap.
    """
    plan = job.plan
    if job.life is None or plan.next is None or plan.next - plan.emit[-1] < _FAR:
        return 0
    return max(plan.next - now - _EARLY, 1) + delay


def _take_turns(jobs: Iterable[Job], now: int) -> None:
    """Requeue unfinished entries behind all that are due; those that sent something come last.

    Each gets a due time of its own, in steps of a millisecond up to now, so they stay due in this
    order.
    """
    left = [job for job in jobs if job.due is not None and job.due <= now]
    left.sort(key=lambda job: job.plan.next != job.state.nominal)
    for due, job in enumerate(left, now - len(left) + 1):
        job.due = due


class _Time:
    """Time that planning half a batch takes."""

    def __init__(self) -> None:
        self._began = elapsed()

    @property
    def spent(self) -> float:
        """Return the seconds since planning began."""
        return elapsed() - self._began

    def is_left_for(self, walked: Sequence[int]) -> bool:
        """Return whether an entry that has looked at these missed occurrences may look for more."""
        return _few(walked) or self.spent < _WALKING


class _PlanningText:
    """Text for the watchdog, made only if it is logged."""

    stored: Stored

    def __str__(self) -> str:
        return f"planning {shown_name(self.stored)!r}"


def _few(walked: Sequence[int]) -> bool:
    return len(walked) < _FEW


def _size(definition: bytes) -> int:
    return _CACHED + _PER_BYTE * len(definition)


def quarantined(stored: Stored, exc: Exception, now: int) -> Bad:
    """Return the record of quarantine for an entry that cannot be used."""
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
