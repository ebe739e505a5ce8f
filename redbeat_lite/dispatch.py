"""Dispatch: publish every occurrence that is due, and commit its advance.

A batch goes peek, plan, publish, commit. Only the first and the last talk to the server, one round trip each, whatever
the number of entries; a batch with once-locks needs one more, to take them. What goes wrong with one entry stays with
it: a definition that cannot be used is quarantined, a publish that fails is tried again later, under the same task id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, NamedTuple

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from . import lifecycle
from .clock import wall_ms
from .codec import dumps
from .definition import decode
from .emission import Occurrence
from .entry import Entry
from .errors import CorruptEntry
from .leader import Leader
from .misfire import Plan
from .once.emission import Claim, give_back, take
from .once.emission import headers as once_headers
from .once.policy import Once
from .once.store import LockStore
from .publisher import BrokerDown, Publisher
from .state import State, task_id
from .store import Advance, Bad, Command, Lost, Store, Stored, Term

logger = get_logger(__name__)

#: Longest text of an error that is kept with an entry.
_MAX_ERROR = 500

#: Decoded entries kept between ticks.
_CACHE = 20_000


class _Ahead(NamedTuple):
    """What the schedule says of the time after a batch. Asked for while planning, because a schedule may raise.

    ``score`` is when the entry is due next, ``following`` the first nominal time that is still to come. ``instead`` is
    the nominal time and the score of an entry that has to go on after its last run, because a once-lock left it out.
    """

    score: int | None
    following: int | None
    instead: tuple[int | None, int | None] = (None, None)


@dataclass(slots=True)
class _Job:
    """One due entry on its way through a batch."""

    stored: Stored
    entry: Entry
    state: State
    plan: Plan
    ahead: _Ahead
    wanted: Sequence[Claim] = ()
    claims: Sequence[Claim] = ()
    locked_out: int = 0
    commands: Sequence[Command] = ()
    error: str = ""

    def id_of(self, nominal: int) -> str:
        return task_id(self.entry.name, self.state.generation, nominal)


class Dispatcher:
    """Dispatches what is due.

    Parameters:
        store: the schedule.
        leader: proof that this process may.
        publisher: the way to the broker.
        locks: the once-locks.
        zone: the app's time zone.
        batch_size: entries per round trip.
        tasks: the app's registered tasks by name.
        local: finds the config entry of a name, for those that hold what cannot be stored.
    """

    def __init__(
        self,
        store: Store,
        leader: Leader,
        publisher: Publisher,
        locks: LockStore,
        *,
        zone: tzinfo,
        batch_size: int,
        tasks: Callable[[str], Any],
        local: Callable[[str], Entry | None],
    ) -> None:
        self._store = store
        self._leader = leader
        self._publisher = publisher
        self._locks = locks
        self._zone = zone
        self._batch_size = batch_size
        self._tasks = tasks
        self._local = local
        self._decoded: dict[bytes, tuple[bytes, Entry]] = {}

    def run(self, connect: Callable[[Term], None]) -> int | None:
        """Dispatch until nothing is due any more.

        Parameters:
            connect: called with the term before each publish; opens the broker connection if it is not open.

        Returns:
            when the next entry is due, in epoch milliseconds; ``None`` when none is to come.

        Raises:
            Lost: the term ended.
            BrokerDown: the broker cannot be reached; what is due stays due.
        """
        while True:
            term, now = self._leader.term, wall_ms()
            self._leader.progress("looking for due entries")
            due, upcoming = self._store.peek(term, now, self._batch_size)
            if not due:
                return upcoming
            jobs = self._plan(term, due, now)
            if any(job.plan.emit for job in jobs):
                self._leader.progress("connecting to the broker")
                connect(term)
                self._take_locks(jobs)
                jobs = self._publish(jobs)
            self._commit(term, now, jobs)

    # -- plan ---------------------------------------------------------------------------------------------------------

    def _plan(self, term: Term, due: Iterable[Stored], now: int) -> list[_Job]:
        jobs, bad = [], []
        for stored in due:
            try:
                jobs.append(self._job(stored, now))
            except Exception as exc:  # noqa: BLE001 - whatever is wrong with one entry must not reach the others
                bad.append(_quarantined(stored, exc, now))
        if bad:
            self._store.quarantine(term, bad)
        return jobs

    def _job(self, stored: Stored, now: int) -> _Job:
        if stored.definition is None or stored.state is None:
            raise CorruptEntry("its definition or its state is gone from Redis")
        state = State.decode(stored.state)
        entry = self._entry(stored.name, stored.definition)
        if entry.local:
            own = self._local(entry.name)
            if own is None:
                error = f"holds what only the beat of {entry.owner!r} knows"
                return _Job(stored, entry, state, Plan((), state.nominal, 0), _Ahead(None, None), error=error)
            entry = own
        plan = lifecycle.plan(entry, state, now, self._zone)
        job = _Job(stored, entry, state, plan, self._ahead(entry, state, plan, now))
        if entry.once is not None:
            job.wanted = [self._claim(job, entry.once, nominal) for nominal in plan.emit]
        return job

    def _ahead(self, entry: Entry, state: State, plan: Plan, now: int) -> _Ahead:
        if state.paused or not entry.enabled:
            return _Ahead(None, None)
        if plan.next is not None and plan.next > now and not entry.jitter and entry.once is None:
            return _Ahead(plan.next, plan.next)
        following = lifecycle.following(entry, plan.next, now, self._zone)
        score = lifecycle.score(entry, plan.next, self._zone)
        if entry.once is None or entry.max_runs is None:
            return _Ahead(score, following)
        instead = lifecycle.ahead(entry, state, now, self._zone)
        return _Ahead(score, following, (instead, lifecycle.score(entry, instead, self._zone)))

    def _entry(self, name: bytes, definition: bytes) -> Entry:
        known = self._decoded.get(name)
        if known is not None and known[0] == definition:
            return known[1]
        entry = decode(name.decode("utf-8"), definition)
        if len(self._decoded) >= _CACHE:
            self._decoded.clear()
        self._decoded[name] = (definition, entry)
        return entry

    # -- once-locks ---------------------------------------------------------------------------------------------------

    def _take_locks(self, jobs: Iterable[_Job]) -> None:
        """Take the once-locks of a batch in one round trip; an occurrence whose lock is held is left out."""
        wanted = [(job, claim) for job in jobs for claim in job.wanted]
        if not wanted:
            return
        for (job, claim), taken in zip(wanted, take(self._locks, [claim for _, claim in wanted]), strict=True):
            if taken:
                job.claims = (*job.claims, claim)
                continue
            self._leave_out(job, claim.task_id)
            logger.info("beat: %r is left out this time: its last run is still queued or running", job.entry.name)

    def _leave_out(self, job: _Job, name: str) -> None:
        job.locked_out += 1
        emit = tuple(nominal for nominal in job.plan.emit if job.id_of(nominal) != name)
        job.plan = job.plan._replace(emit=emit)
        if job.plan.next is None:  # planned as the last of max_runs, which it was not
            nominal, score = job.ahead.instead
            job.plan, job.ahead = job.plan._replace(next=nominal), job.ahead._replace(score=score)

    def _claim(self, job: _Job, once: Once, nominal: int) -> Claim:
        entry = job.entry
        return Claim(
            entry.name,
            entry.task,
            entry.args,
            entry.kwargs,
            once,
            job.id_of(nominal),
            task=self._tasks(entry.task),
            queue=str(entry.options.get("queue") or ""),
        )

    # -- publish ------------------------------------------------------------------------------------------------------

    def _publish(self, jobs: list[_Job]) -> list[_Job]:
        """Publish the jobs in turn; returns those that were tried, the others stay due."""
        tried = []
        with self._publisher.batch(self._before_publish) as publish:
            for job in jobs:
                tried.append(job)
                if not self._publish_job(publish, job):
                    break
        if len(tried) < len(jobs):
            self._publisher.close()
        return tried

    def _publish_job(self, publish: Callable[[Occurrence], list[Command]], job: _Job) -> bool:
        """Publish one job; ``False`` when the connection failed and must be made anew."""
        entry, generation, following = job.entry, job.state.generation, job.ahead.following
        locks = {claim.task_id: once_headers(claim) for claim in job.claims} if job.claims else None
        for nominal in job.plan.emit:
            name = task_id(entry.name, generation, nominal)
            try:
                commands = publish(Occurrence(entry, name, nominal, following, locks and locks.get(name)))
            except Lost:
                raise
            except Exception as exc:  # noqa: BLE001 - see the module's docstring
                return self._failed(job, exc)
            job.commands = [*job.commands, *commands] if job.commands else commands
        return True

    def _before_publish(self, occurrence: Occurrence) -> None:
        """What a message that is only filled in, for the commit to send, need not care about."""
        if not self._leader.leading:
            raise Lost
        self._leader.progress(f"publishing {occurrence.entry.name!r}")

    def _failed(self, job: _Job, exc: Exception) -> bool:
        """Keep a failure with its entry, unless the broker turns out to be gone for all."""
        job.commands = ()
        job.error = _describe(exc)
        logger.error("beat: could not publish %r, trying again later: %s", job.entry.name, job.error)
        logger.debug("beat: how it came to that", exc_info=exc)
        if not isinstance(exc, OperationalError):
            return True
        if not self._publisher.answers():
            raise BrokerDown(job.error) from exc
        return False

    # -- commit -------------------------------------------------------------------------------------------------------

    def _commit(self, term: Term, now: int, jobs: list[_Job]) -> None:
        self._leader.progress("committing")
        refused = []
        for job, result in self._advance(term, now, jobs):
            if isinstance(result, str):
                job.error, job.commands = f"the broker refused the message: {result}", ()
                logger.error("beat: could not publish %r, trying again later: %s", job.entry.name, job.error)
                refused.append(job)
            elif result:
                _report(job)
            elif job.commands:
                # Edited or removed meanwhile, so nothing was sent, and nothing will give these locks back.
                give_back(self._locks, job.claims)
        if refused:
            self._advance(term, now, refused)

    def _advance(self, term: Term, now: int, jobs: Sequence[_Job]) -> Iterable[tuple[_Job, bool | str]]:
        if not jobs:
            return ()
        results = self._store.commit(term, now, [self._step(job, now) for job in jobs])
        return zip(jobs, results, strict=True)

    def _step(self, job: _Job, now: int) -> Advance:
        if job.error:
            state = lifecycle.failed(job.state, job.error)
            retry = now + 1000 * lifecycle.retry_delay(state.attempts)
            return Advance(job.stored.name, job.state.guard, state.encode(), retry)
        state = lifecycle.dispatched(job.state, job.plan, job.locked_out)
        if state.finished and job.entry.remove_when_done:
            return Advance(job.stored.name, job.state.guard, None, None, job.commands)
        return Advance(job.stored.name, job.state.guard, state.encode(), job.ahead.score, job.commands)


def _quarantined(stored: Stored, exc: Exception, now: int) -> Bad:
    name = stored.name.decode("utf-8", "backslashreplace")
    error = _describe(exc)
    logger.error("beat: entry %r cannot be used and is quarantined: %s", name, error)
    record = {"error": error, "definition": _shown(stored.definition), "state": _shown(stored.state), "at": now}
    return Bad(stored, dumps(record))


def _shown(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def _describe(exc: BaseException) -> str:
    text, kind = str(exc), type(exc).__name__
    return (f"{kind}: {text}" if text else kind)[:_MAX_ERROR]


def _report(job: _Job) -> None:
    if job.plan.skipped:
        policy = job.entry.misfire.policy
        logger.warning(
            "beat: %r missed %d occurrences, left out by its policy %r", job.entry.name, job.plan.skipped, policy
        )
    if job.plan.next is None and not job.error:
        logger.info("beat: %r has finished", job.entry.name)
