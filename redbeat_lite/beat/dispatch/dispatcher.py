"""Dispatch: publish every occurrence that is due, and commit its advance.

A batch goes peek, plan, publish, commit. Only the first and the last talk to the server, one round trip each, whatever
the number of entries; a batch with once-locks needs one more, to take them, and a broker in another Redis one to send.
Each batch is handled to its end before the next one is read.
What goes wrong with one entry stays with it: a definition that cannot be used is quarantined, a publish that fails is
tried again later, under the same task id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import tzinfo

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from ...clock import elapsed, wall_ms
from ...entries.message import Occurrence
from ...errors import describe
from ...once.claims import headers as once_headers
from ...once.store import LockStore
from ...storage.leader_store import LeaderStore
from ...storage.stored import Command, Lost, Refrozen, Stored, Term
from ..freezing import Freezing
from ..leader import Leader
from ..vitals import Vitals
from .broker import BrokerDown
from .collector import refused_for_all
from .committer import Committer, refuses_all
from .deadlines import Deadlines
from .once_locks import Claiming
from .planner import LEAST, MOST, Job, Planner
from .publisher import Publisher

logger = get_logger(f"celery.{__name__}")

#: Seconds after which the rest of what is due waits until the beat has looked after its other affairs.
_TURN = 10.0

#: Seconds that a batch takes to go out, about: what comes due meanwhile waits for it.
_BATCH = 0.15


class Dispatcher(Committer):
    """Dispatches what is due, at most ``batch_size`` entries in a round trip."""

    def __init__(
        self,
        store: LeaderStore,
        leader: Leader,
        publisher: Publisher,
        locks: LockStore,
        vitals: Vitals,
        planner: Planner,
        *,
        zone: tzinfo,
        batch_size: int,
        deadlines: Deadlines,
        freezing: Freezing,
    ) -> None:
        super().__init__(store, leader, publisher, vitals, zone=zone, deadlines=deadlines, freezing=freezing)
        self._claiming = Claiming(locks)
        self._batch_size = batch_size
        #: Entries of the batch before of which a part was gone: what has not been mended is set aside.
        self._torn: set[bytes] = set()
        self._planner = planner
        self._most = MOST  #: entries and messages of the next batch, by the time that the last one took

    def run(self) -> int | None:
        """Dispatch until nothing is due any more, or for some seconds.

        Returns when the next entry is due, in epoch milliseconds, now if there is more; ``None`` when none is to come.

        Raises:
            BrokerDown: the broker cannot be reached; what is due stays due.
        """
        began = elapsed()
        while True:
            self._leader.stop.check()
            term = self._leader.term
            now = wall_ms()
            self._leader.progress("looking for due entries")
            due, upcoming = self._freezing.peek(term, now, self._limit)
            if not due:
                return upcoming
            if elapsed() - began > _TURN or self._lost_parts(due):
                return now
            with suppress(Refrozen):  # the next peek brings the new freezes
                self._dispatch(term, due, now)

    def _lost_parts(self, due: Sequence[Stored]) -> bool:
        """Whether to have the schedule mended first: parts of what is due are gone, which no mending has met yet."""
        names = {stored.name for stored in due if stored.state is None or stored.definition is None}
        known, self._torn = self._torn, names
        if names <= known:
            return False
        self._leader.note_damage()
        return True

    def _dispatch(self, term: Term, due: Sequence[Stored], now: int) -> None:
        """Plan a batch, publish it, commit it, and give back the once-locks of unsent runs."""
        jobs = self._plan(term, due, now)
        try:
            self._send_out(term, now, jobs)
        finally:
            self._claiming.give_back(jobs)

    @property
    def _limit(self) -> int:
        """Entries of the next batch."""
        return min(self._batch_size, self._most)

    def _plan(self, term: Term, due: Sequence[Stored], now: int) -> list[Job]:
        jobs, bad = self._planner.plan(due, now, self._freezing.known, self._most)
        if bad:
            done = self._store.quarantine(term, bad)
            self._reports.set_aside(each for each, is_done in zip(bad, done, strict=True) if is_done)
        return jobs

    def _send_out(self, term: Term, now: int, jobs: list[Job]) -> None:
        messages = sum(len(job.plan.emit) for job in jobs)
        if not messages:
            self._commit(term, now, jobs)
            return
        self._leader.progress("connecting to the broker", within=self._publisher.gives_up_after)
        self._publisher.connect(self._store, term)
        began = elapsed()
        self._claiming.take(jobs)
        try:
            tried, line_holds = self._publish(term, now, jobs)
            # What is out already is noted before anything else goes out.
            self._commit(term, now, tried)
            if not line_holds:
                self._publisher.close()
        except BrokerDown:
            # A channel that was shut, a server that has become a replica: so it stays for who keeps the connection.
            self._publisher.close()
            raise
        in_time = messages * _BATCH / max(elapsed() - began, _BATCH / MOST)
        self._most = max(LEAST, min(MOST, int(in_time)))

    # -- publish ------------------------------------------------------------------------------------------------------

    def _publish(self, term: Term, now: int, jobs: list[Job]) -> tuple[list[Job], bool]:
        """Publish the jobs in turn; returns those that were tried, and whether the connection held.

        The others stay due, for a new connection.
        """
        tried: list[Job] = []
        line_holds, at_once = True, self._publisher.at_once
        # What a message that is only filled in, for the commit to send, need not care about.
        with self._publisher.batch(lambda each: self._still_leading(f"publishing {each.entry.name!r}")) as publish:
            self._reports.goes_out(self._publisher.mode)
            for job in jobs:
                if at_once and self._leader.stop.requested:
                    break  # Sent messages are committed; the rest stays due.
                try:
                    line_holds = self._publish_job(publish, job)
                except BrokerDown:
                    if at_once:
                        self._commit(term, now, tried)  # they are out, and need not be sent again
                    raise
                job.out = at_once and not job.error
                tried.append(job)
                if not line_holds:
                    break
        if not self._publisher.one_step and any(job.commands for job in tried):
            self._send(term, now, tried)
        return tried, line_holds

    def _publish_job(self, publish: Callable[[Occurrence], list[Command]], job: Job) -> bool:
        """Publish one job; ``False`` when the connection failed and must be made anew."""
        entry, life = job.entry, job.ahead.life
        locks = {claim.task_id: once_headers(claim) for claim in job.claims} if job.claims else None
        for nominal in job.plan.emit:
            name = job.id_of(nominal)
            try:
                commands = publish(Occurrence(entry, name, nominal, life, locks and locks.get(name)))
            except Lost:
                raise
            except Exception as exc:  # noqa: BLE001 - see the module's docstring
                return self._failed(job, exc)
            job.commands = [*job.commands, *commands] if job.commands else commands
        return True

    def _failed(self, job: Job, exc: Exception) -> bool:
        """Keep a failure with its entry, unless the broker turns out to be gone for all."""
        cause = exc.__cause__
        error = describe(exc)
        if cause is not None and error == type(exc).__name__:
            # If RabbitMQ has refused a message, only the cause of Celery's error says why.
            error = describe(cause)
        self._note_failure(job, error, exc)
        if cause is not None and refused_for_all(cause):
            raise refuses_all(cause) from exc
        # Celery makes an OperationalError of each error that the transport names, and kombu's for Redis names KeyError:
        # for a key of a message. An unknown compression, say, is one too, and has not touched the connection. Nor has
        # what the server answered.
        if not isinstance(exc, OperationalError) or isinstance(cause, (LookupError, ResponseError)):
            return True
        self._leader.progress("looking whether the broker answers", within=self._publisher.gives_up_after)
        if not self._publisher.answers():
            raise BrokerDown(job.error) from exc
        return False
