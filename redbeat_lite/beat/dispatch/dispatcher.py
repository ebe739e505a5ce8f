"""Dispatch: every occurrence that is due is published, and its entry advanced.

A batch goes through peek, plan, publish and commit. Only peek and commit talk to the server, in one
round trip each, for any number of entries. A batch with once-locks needs another round trip to
acquire them, and a broker in another Redis one to send.
Each batch is handled to its end before the next one is read.
A failure stays with its entry. An entry that cannot be used is quarantined. A publish that fails is
tried again later, under the same task id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from ..._base.clock import elapsed, wall_ms
from ..._base.text import describe
from ...entries.message import Occurrence
from ...once.claims import headers as once_headers
from ...store.leader_store import LeaderStore
from ...store.records import Bad, Command, Lost, Refrozen, Stored, Term
from ..freezing import Freezing
from ..leader import Leader
from .batch_log import BatchLog
from .committer import Committer, Steps, refuses_all
from .once_locks import OnceLocks
from .planner import LEAST, MOST, Job, Planner
from .publisher import BrokerDown, Publisher
from .redis_batch import refused_for_all

logger = get_logger(f"celery.{__name__}")

#: Seconds after which due entries wait until the beat has done its other work.
_TURN = 10.0

#: Seconds that publishing a batch should take. An entry that becomes due meanwhile waits for its
#: end.
_BATCH = 0.15


class BatchSender:
    """Sends planned batches: acquires their once-locks, publishes, commits."""

    def __init__(
        self,
        store: LeaderStore,
        leader: Leader,
        publisher: Publisher,
        freezing: Freezing,
        locks: OnceLocks,
        log: BatchLog,
        steps: Steps,
    ) -> None:
        self._store = store
        self._leader = leader
        self._publisher = publisher
        self._locks = locks
        self._log = log
        self._committer = Committer(store, leader, publisher, freezing, log, steps)
        #: Most messages of the next batch, by the time that the last one took.
        self.most = MOST

    def send(self, term: Term, now: int, jobs: list[Job]) -> None:
        """Publish a batch, commit it, and release the once-locks of unsent runs.

        Raises:
            BrokerDown: the broker cannot be reached; what was not sent stays due.
            Refrozen: the freezes have changed, so nothing was advanced.
            Lost: another process leads.
        """
        try:
            self._send(term, now, jobs)
        finally:
            self._locks.release_unsent(jobs)

    def quarantine(self, term: Term, bad: Sequence[Bad]) -> None:
        """Put entries that cannot be used in quarantine, unless they have changed meanwhile."""
        if bad:
            results = self._store.quarantine(term, bad)
            self._log.report_quarantined(
                each for each, is_done in zip(bad, results, strict=True) if is_done
            )

    def _send(self, term: Term, now: int, jobs: list[Job]) -> None:
        messages = sum(len(job.plan.emit) for job in jobs)
        if not messages:
            self._committer.commit(term, now, jobs)
            return
        self._leader.progress("connecting to the broker", within=self._publisher.gives_up_after)
        self._publisher.connect(self._store, term)
        began = elapsed()
        self._locks.acquire(jobs)
        try:
            tried, is_connected = self._publish(term, now, jobs)
            # Sent messages are committed before any other is sent.
            self._committer.commit(term, now, tried)
            if not is_connected:
                self._publisher.close()
        except BrokerDown:
            # A channel that was shut stays so as long as the connection is kept, and so does a
            # server that has become a replica.
            self._publisher.close()
            raise
        in_time = messages * _BATCH / max(elapsed() - began, _BATCH / MOST)
        self.most = max(LEAST, min(MOST, int(in_time)))

    def _publish(self, term: Term, now: int, jobs: list[Job]) -> tuple[list[Job], bool]:
        """Publish the jobs in turn; return those that were tried, and whether the connection held.

        The others stay due, for a new connection.
        """
        tried: list[Job] = []
        is_connected = True
        at_once = self._publisher.at_once
        # Prepared messages skip this check, because the commit makes it.
        with self._publisher.batch(self._check_lead) as publish:
            self._log.note_mode(self._publisher.mode)
            for job in jobs:
                if at_once and self._leader.stop.requested:
                    break  # Sent messages are committed; the rest stays due.
                try:
                    is_connected = self._publish_job(publish, job)
                except BrokerDown:
                    if at_once:
                        # These messages were sent, and must not be sent again.
                        self._committer.commit(term, now, tried)
                    raise
                job.out = at_once and not job.error
                tried.append(job)
                if not is_connected:
                    break
        if not self._publisher.one_step and any(job.commands for job in tried):
            self._committer.send(term, now, tried)
        return tried, is_connected

    def _check_lead(self, occurrence: Occurrence) -> None:
        self._committer.check_lead(f"publishing {occurrence.entry.name!r}")

    def _publish_job(self, publish: Callable[[Occurrence], list[Command]], job: Job) -> bool:
        """Publish one job; ``False`` when the connection failed and must be made again."""
        life = job.ahead.life
        locks = {claim.task_id: once_headers(claim) for claim in job.claims} if job.claims else None
        for nominal in job.plan.emit:
            task_id = job.id_of(nominal)
            try:
                commands = publish(
                    Occurrence(job.entry, task_id, nominal, life, locks and locks.get(task_id))
                )
            except Lost:
                raise
            except Exception as exc:  # noqa: BLE001 - see the module's docstring
                return self._keep_failure(job, exc)
            job.commands = [*job.commands, *commands] if job.commands else commands
        return True

    def _keep_failure(self, job: Job, exc: Exception) -> bool:
        """Keep a failure with its entry, and return whether the connection held.

        Raises:
            BrokerDown: the broker does not answer, or refuses every message.
        """
        cause = exc.__cause__
        error = describe(exc)
        if cause is not None and error == type(exc).__name__:
            # If RabbitMQ has refused a message, only the cause of Celery's error says why.
            error = describe(cause)
        self._committer.note_failure(job, error, exc)
        if cause is not None and refused_for_all(cause):
            raise refuses_all(cause) from exc
        # Celery raises an OperationalError for each error that the transport names. Kombu's Redis
        # transport names KeyError, for a key of a message; an unknown compression raises it, too,
        # and has not touched the connection. An answer of the server has not broken the connection
        # either.
        if not isinstance(exc, OperationalError) or isinstance(cause, (LookupError, ResponseError)):
            return True
        self._leader.progress(
            "looking whether the broker answers", within=self._publisher.gives_up_after
        )
        if not self._publisher.answers():
            raise BrokerDown(job.error) from exc
        return False


class Dispatcher:
    """Dispatches due entries, at most ``batch_size`` in a round trip."""

    def __init__(
        self,
        leader: Leader,
        freezing: Freezing,
        planner: Planner,
        sender: BatchSender,
        batch_size: int,
    ) -> None:
        self._leader = leader
        self._freezing = freezing
        self._planner = planner
        self._sender = sender
        self._batch_size = batch_size
        #: Entries of the last batch that lack a part. What is not mended by the next one is
        #: quarantined.
        self._torn: set[bytes] = set()

    def run(self) -> int | None:
        """Dispatch until no entry is due, or for some seconds.

        Returns when the next entry is due, in epoch milliseconds, now if there is more; ``None``
        when none is to come.

        Raises:
            BrokerDown: the broker cannot be reached; what is due stays due.
            Lost: another process leads.
        """
        began = elapsed()
        while True:
            self._leader.stop.check()
            term = self._leader.term
            now = wall_ms()
            self._leader.progress("looking for due entries")
            limit = min(self._batch_size, self._sender.most)
            due, upcoming = self._freezing.peek(term, now, limit)
            if not due:
                return upcoming
            if elapsed() - began > _TURN or self._lost_parts(due):
                return now
            with suppress(Refrozen):  # The next peek brings the new freezes.
                self._dispatch(term, due, now)

    def _lost_parts(self, due: Sequence[Stored]) -> bool:
        """Return whether the schedule must be mended first, because an entry lacks a part."""
        names = {stored.name for stored in due if stored.state is None or stored.definition is None}
        known = self._torn
        self._torn = names
        if names <= known:
            return False
        self._leader.damaged = True
        return True

    def _dispatch(self, term: Term, due: Sequence[Stored], now: int) -> None:
        """Plan a batch, quarantine entries that cannot be used, and send the others."""
        jobs, bad = self._planner.plan(due, now, self._freezing.known, self._sender.most)
        self._sender.quarantine(term, bad)
        self._sender.send(term, now, jobs)
