"""Planning: from what lies in Redis to what is to be published and what comes after. Talks to nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, NamedTuple

from ...clock import elapsed
from ...entries import lifecycle
from ...entries.entry import Entry
from ...entries.fields import check_destination
from ...entries.freezes import Freezes
from ...entries.message import life_ms, lock_life_ms
from ...entries.state import EntryState, task_id
from ...entries.stored_entry import entry_of, shown_name, state_of
from ...errors import ConfigOwned, NotKnownHere, describe
from ...instants import delay_ms
from ...once.claims import Claim, queue_of
from ...once.policy import Once
from ...schedules import every
from ...schedules.misfire import Plan
from ...storage.json_values import MAX_BYTES, dumps
from ...storage.stored import Bad, Command, Stored

#: Longest text of an error that is kept with an entry.
MAX_ERROR = 500

#: Messages of one batch, at most and where they take long: entries that send each of many missed occurrences come in as
#: many batches as that takes.
MOST, LEAST = 2_000, 100

#: Bytes of their definitions, of which arguments are most, for each half of a batch: what becomes of them is there
#: several times over, here and in the server, until it is sent.
_MAX_BYTES = 8_000_000

#: Seconds in which half a batch may look for missed occurrences one by one, each entry to its end as long as they last,
#: and how many of them every entry may look at all the same.
_WALKING, _FEW = 0.08, 3

#: Seconds after which the rest of half a batch is left to the next one, whatever it is that takes so long.
_LONGEST = 0.12

#: Seconds from one sign of progress to the next, while entries are planned.
_REPORT = 0.1

#: Bytes that the decoded entries kept between ticks may take: some 45,000 entries of an argument or two.
#: Where more take turns, the oldest is the next to come: dropping it would find no more than dropping all.
_CACHE = 64_000_000

#: Milliseconds from one run to the next from which on the next may have the once-lock of one that is still queued, and
#: by how many it may come sooner, as seen by the server.
_FAR, _EARLY = 60_000, 1000

#: What one of them takes, about: so much for itself, and so much for each byte of its definition.
_CACHED, _PER_BYTE = 1000, 4


class Ahead(NamedTuple):
    """What the schedule says of the time after a batch. Asked for while planning, because a schedule may raise.

    ``score`` is when the entry is due next, ``life`` for how many milliseconds its messages live. ``instead`` is the
    nominal time and the score of an entry that has to go on after its last run, because a once-lock left it out.
    """

    score: int | None
    life: int | None
    instead: tuple[int | None, int | None] = (None, None)


@dataclass(slots=True)
class Job:
    """One due entry on its way through a batch."""

    stored: Stored
    entry: Entry
    state: EntryState
    plan: Plan
    ahead: Ahead
    wanted: Sequence[Claim] = ()
    claims: Sequence[Claim] = ()
    left_out: Sequence[int] = ()  #: nominal times whose once-lock is held
    commands: Sequence[Command] = ()
    error: str = ""
    out: bool = False  #: published, or left to the commit to send
    frozen: bool = False  #: a freeze holds the entry

    def id_of(self, nominal: int) -> str:
        return task_id(self.entry.name, self.state.generation, nominal)


class Planner:
    """Plans batches, and remembers decoded entries between them.

    Parameters:
        completed: returns an entry with the parts that only the app's configuration holds.
        prefix: of the schedule's keys.
        slack: by how many milliseconds the clocks of beats and workers may differ.
        progress: told before each entry, with words for a log.
        sends: called with each entry that is sent.
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
        sends: Callable[[Entry], None] | None = None,
    ) -> None:
        self._zone = zone
        self._tasks = tasks
        self._completed = completed
        self._prefix = prefix
        self._slack = slack
        self._progress = progress
        self._sends = sends
        self._decoded: dict[bytes, tuple[bytes, Entry]] = {}
        self._alike: dict[str, Entry] = {}
        self._room = _CACHE

    def plan(self, due: Sequence[Stored], now: int, freezes: Freezes, most: int = MOST) -> tuple[list[Job], list[Bad]]:
        """What to do about these entries at ``now`` (epoch ms) under these freezes, and those that cannot be used.

        Stops where there is enough to send for one batch, or it has taken long enough; the rest stays due. What has
        waited longest and what has just come due, which are in ``due`` in turn, have half of a batch each, so that
        neither waits for the other.
        """
        bad: list[Bad] = []
        oldest = self._half(due[::2], now, freezes, most / 2, bad)
        left = due[::2][len(oldest) + len(bad) :]
        # No more for these than those had: so those are through in twice the time that they would take alone.
        work = sum(max(len(job.plan.emit), 1) for job in oldest)
        newest = self._half([*due[1::2], *reversed(left)], now, freezes, max(work, LEAST / 2), bad)
        jobs = [*oldest, *reversed(newest)]
        _take_turns(jobs, now)
        return jobs, bad

    def _half(self, due: Iterable[Stored], now: int, freezes: Freezes, most: float, bad: list[Bad]) -> list[Job]:
        time, doing = _Time(), _Doing()
        jobs: list[Job] = []
        messages, size, reported = 0, 0, -_REPORT
        for stored in due:
            spent = time.spent
            if messages >= most or size >= _MAX_BYTES or spent >= _LONGEST:
                break
            doing.stored = stored
            if spent - reported >= _REPORT:
                reported = spent
                self._progress(doing)
            try:
                jobs.append(self._job(stored, now, time, freezes, has_a_turn=spent < _WALKING))
                emitted = len(jobs[-1].plan.emit)
                messages += emitted
                size += emitted * len(stored.definition or b"")
            except Exception as exc:  # noqa: BLE001 - whatever is wrong with one entry must not reach the others
                bad.append(quarantined(stored, exc, now))
        return jobs

    def _job(self, stored: Stored, now: int, time: _Time, freezes: Freezes, *, has_a_turn: bool) -> Job:
        state = state_of(stored)
        try:
            entry = self._entry(stored)
        except (ConfigOwned, NotKnownHere) as exc:
            # The beat of another app or of a newer version may know the entry. The stand-in is never sent.
            stand_in = Entry(stored.name.decode(), "unknown", every(1))
            unchanged = Plan((), state.nominal, 0)
            return Job(stored, stand_in, state, unchanged, Ahead(None, None), error=str(exc)[:MAX_ERROR])
        frozen_until = freezes.until(now, entry)
        if frozen_until is not None:
            unchanged = Plan((), state.nominal, 0)
            return Job(stored, entry, state, unchanged, Ahead(frozen_until, None), frozen=True)
        plan = lifecycle.plan(entry, state, now, self._zone, time.is_left_for)
        if not has_a_turn and not plan.emit and plan.next is not None and plan.next <= now:
            # It has its turn in another batch, and begins there: a few steps are not worth a line in the log each time.
            plan = Plan((), state.nominal, 0)
        if plan.emit and self._sends:
            self._sends(entry)
        job = Job(stored, entry, state, plan, self._ahead(entry, state, plan, now))
        if entry.once is not None:
            job.wanted = [self._claim(job, entry.once, nominal, now) for nominal in plan.emit]
        return job

    def _ahead(self, entry: Entry, state: EntryState, plan: Plan, now: int) -> Ahead:
        if state.paused or not entry.enabled:
            return Ahead(None, None)
        life = life_ms(entry, plan, now, self._slack) if plan.emit else None
        if plan.next is not None and plan.next > now and not entry.jitter:
            return Ahead(int(plan.next), life)
        score = lifecycle.score(entry, plan.next, self._zone)
        if not plan.emit or entry.once is None or entry.max_runs is None:
            return Ahead(score, life)
        instead = lifecycle.ahead(entry, state, now, self._zone, _few)
        return Ahead(score, life, (instead, lifecycle.score(entry, instead, self._zone)))

    def _entry(self, stored: Stored) -> Entry:
        entry = self._completed(self._decoded_entry(stored))
        if entry.unstored:
            raise ConfigOwned(f"holds what only the beat of {entry.owner!r} knows")
        return entry

    def _decoded_entry(self, stored: Stored) -> Entry:
        known = self._decoded.get(stored.name)
        if known is not None and known[0] == stored.definition:
            return known[1]
        entry, definition = entry_of(stored, self._alike), stored.definition or b""
        check_destination(entry.options, self._prefix)
        if known is not None:
            self._room += _size(known[0])
        self._room -= _size(definition)
        if self._room < 0:
            self._decoded.clear()
            self._room = _CACHE - _size(definition)
        self._decoded[stored.name] = (definition, entry)
        return entry

    def _claim(self, job: Job, once: Once, nominal: int, now: int) -> Claim:
        entry, task, delay = job.entry, self._tasks(job.entry.task), delay_ms(job.entry.options, now)
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
            life_ms=lock_life_ms(entry, job.ahead.life, now),
            yields_ms=_until_the_next(job, now, delay),
        )


def _until_the_next(job: Job, now: int, delay: int) -> int:
    """Ms until the next run may have the once-lock of a message that nobody has taken: what lost it, or will not give
    it back, stops none but that run. Not before the message could have run for a whole gap.

    0 for never: where runs are close, one message waits in the place of them all, and one that does not expire with
    its gap waits for as long as it was told to.
    """
    plan = job.plan
    if job.ahead.life is None or plan.next is None or plan.next - plan.emit[-1] < _FAR:
        return 0
    return max(plan.next - now - _EARLY, 1) + delay


def _take_turns(jobs: Iterable[Job], now: int) -> None:
    """Put those who are not through behind what is due, and who has had a turn behind who has not.

    Each gets a millisecond of its own, the last ones up to now: so they stay due, in this order.
    """
    left = [job for job in jobs if job.ahead.score is not None and job.ahead.score <= now]
    left.sort(key=lambda job: job.plan.next != job.state.nominal)
    for score, job in enumerate(left, now - len(left) + 1):
        job.ahead = job.ahead._replace(score=score)


class _Time:
    """The time that one batch takes, and has, to be planned."""

    def __init__(self) -> None:
        self._began = elapsed()

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return elapsed() - self._began

    def is_left_for(self, walked: Sequence[int]) -> bool:
        """Whether an entry that has walked so far may look for more missed occurrences one by one."""
        return _few(walked) or self.spent < _WALKING


class _Doing:
    """What the watchdog is told while a batch is planned; it is put in words only if somebody asks."""

    stored: Stored

    def __str__(self) -> str:
        return f"planning {shown_name(self.stored)!r}"


def _few(walked: Sequence[int]) -> bool:
    return len(walked) < _FEW


def _size(definition: bytes) -> int:
    return _CACHED + _PER_BYTE * len(definition)


def quarantined(stored: Stored, exc: Exception, now: int) -> Bad:
    """What is to be set aside, because of this."""
    error = describe(exc)[:MAX_ERROR]
    record = {"error": error, "definition": _shown(stored.definition), "state": _shown(stored.state), "at": now}
    return Bad(stored, error, dumps(record))


def _shown(raw: bytes | None) -> str | None:
    """Return a stored text for the quarantine. A longer text than can be stored is cut, as nobody can release it."""
    return None if raw is None else raw[: MAX_BYTES + 1].decode("utf-8", "backslashreplace")
