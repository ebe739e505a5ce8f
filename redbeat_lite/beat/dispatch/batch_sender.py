"""Sending a batch: once-locks are acquired, messages are made, and one script commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from redis.exceptions import NoPermissionError, ResponseError

from ..._base.text import describe, text_of
from ...entries.message import Occurrence
from ...once.claims import Claim
from ...once.claims import headers as once_headers
from ...once.lock_store import LockStore
from ...store.connections import FAULTS
from ...store.leader_store import LeaderStore
from ...store.records import IGNORES_FREEZE, Advance, Command, Frozen, Lost, Term
from ..leader import Leader
from .batch_log import BatchLog
from .planner import MAX_ERROR, Batch, Job
from .publisher import BrokerDown, Publisher, refused_for_all

logger = get_logger(f"celery.{__name__}")


@dataclass(eq=False)
class BatchSender:
    """Sender of planned batches.

    Parameters:
        advance: returns what the commit writes for a job at this time (epoch ms).
        report_advanced: reports jobs whose advance was committed.
    """

    store: LeaderStore
    leader: Leader
    publisher: Publisher
    locks: LockStore
    log: BatchLog
    advance: Callable[[Job, int], Advance]
    report_advanced: Callable[[Sequence[Job]], None]

    def send(self, batch: Batch) -> None:
        """Send a batch over the open broker connection, and quarantine its bad entries.

        Raises:
            BrokerDown: the broker cannot be reached; what was not sent stays due.
            Frozen: a freeze has begun since the planning, so nothing was advanced.
            Lost: another process leads.
        """
        term = self.leader.term
        if batch.bad:
            # An entry that has changed since it was read is not quarantined.
            results = self.store.quarantine(term, batch.bad)
            self.log.report_quarantined(compress(batch.bad, results))
        made: list[Job] = []
        try:
            self._acquire_locks(batch.jobs)
            self.make_messages(batch.jobs, made)
        finally:
            try:
                # After a failure, too. If messages are sent one by one, some of them were sent
                # before the failure, and without a commit they would be sent again.
                self.commit(term, batch.now, made)
            finally:
                if self.publisher.is_broken:
                    self.publisher.close()
                self._release_unsent(batch.jobs)

    # -- once-locks --------------------------------------------------------------------------------

    def _acquire_locks(self, jobs: Sequence[Job]) -> None:
        """Acquire the once-locks of a batch. Leave out each run whose lock another task holds."""
        runs = [(job, nominal) for job in jobs for nominal in job.claims]
        if not runs:
            return
        self.locks.give_back([*_claims_of_skipped_runs(jobs)])
        taken = self.locks.take([job.claims[nominal] for job, nominal in runs])
        for (job, nominal), is_taken in zip(runs, taken, strict=True):
            if not is_taken:
                job.leave_out(nominal)

    def _release_unsent(self, jobs: Sequence[Job]) -> None:
        """Release the locks of unsent runs. They would block later runs, which have other ids."""
        claims = [claim for job in jobs if not job.is_sent for claim in job.claims.values()]
        if claims:
            with suppress(*FAULTS):  # Without an answer, the locks expire.
                self.locks.give_back(claims)

    # -- messages ----------------------------------------------------------------------------------

    def make_messages(self, jobs: Sequence[Job], made: list[Job]) -> None:
        """Make the messages of a batch, and send each at once, unless the commit sends them all.

        If the beat stops, or a failure breaks the connection, the remaining jobs stay due.
        ``made`` gets each job whose messages are made.
        """
        self.publisher.begin_batch()
        self.log.note_mode(self.publisher.mode)
        for job in jobs:
            # Sending a message may take seconds. A stop can wait for messages that are only made.
            if self.leader.stop.requested and not self.publisher.commit_sends:
                return
            self._publish_job(job)
            made.append(job)
            if self.publisher.is_broken:
                return

    def _publish_job(self, job: Job) -> None:
        """Make the messages of one job. If one fails, the job keeps the error and no messages."""
        commands: list[Command] = []
        try:
            for nominal in job.plan.emit:
                claim = job.claims.get(nominal)
                extra = None if claim is None else once_headers(claim)
                id_ = job.id_of(nominal)
                occurrence = Occurrence(job.entry, id_, nominal, job.life, extra)
                commands += self.publisher.make(occurrence)
            job.commands = commands
            # This holds even if the commit raises an error, because perhaps only its reply was
            # lost. :meth:`commit` handles the exceptions.
            job.is_sent = True
        except (BrokerDown, Lost):
            raise
        except Exception as exc:  # noqa: BLE001 - a failure stays with its entry
            self._keep_failure(job, exc)

    def _keep_failure(self, job: Job, exc: Exception) -> None:
        """Note a failed publish in its job, and whether the connection may be broken."""
        cause = exc.__cause__
        error = describe(exc)
        if cause is not None and error == type(exc).__name__:
            # The error has no text, as when RabbitMQ has refused a message. Its cause says why.
            error = describe(cause)
        self._note_failure(job, error, exc)
        if cause is not None and refused_for_all(cause):
            # If the server has become a replica, only a new connection leads to the new master.
            self.publisher.is_broken = True
            raise BrokerDown(f"it refuses every message: {text_of(cause)}") from exc
        # Celery raises an OperationalError for every error that kombu's transport lists. The list
        # for Redis has KeyError, which an unknown compression raises, too. Such an error does not
        # break the connection, nor does a refusal by the server.
        is_refusal = isinstance(cause, (LookupError, ResponseError))
        if isinstance(exc, OperationalError) and not is_refusal:
            self.publisher.is_broken = True

    def _note_failure(self, job: Job, error: str, exc: BaseException | None = None) -> None:
        """Store in a job why its messages were not published, and report it."""
        job.error = error[:MAX_ERROR]
        job.commands = ()
        job.is_sent = False
        self.log.report_failed(job, exc)

    # -- commit ------------------------------------------------------------------------------------

    def commit(self, term: Term, now: int, jobs: Sequence[Job]) -> None:
        """Advance the entries of these jobs, send messages that were not sent yet, note results."""
        self.leader.progress("committing")
        try:
            results = self._commit(term, now, jobs)
        except (Lost, Frozen, NoPermissionError) as exc:
            # After any of these errors, nothing was written or sent. A job has commands if the
            # script was to send its messages.
            unsent = [job for job in jobs if job.commands]
            for job in unsent:
                job.is_sent = False
            # Only a missing right to write to a queue is handled here. Without messages, the script
            # writes to no queue, so another right is missing.
            if not isinstance(exc, NoPermissionError) or not unsent:
                raise
            # Later messages are sent one by one. The entries of this batch stay due.
            why = "the schedule's user may not write to a queue"
            self.publisher.refusal = why
            logger.warning("beat: %s, so the broker's user writes: %s", why, text_of(exc))
            return
        refused: list[Job] = []
        advanced: list[Job] = []
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, str):
                self._note_failure(job, f"the broker refused the message: {result}")
                refused.append(job)
            elif result:
                advanced.append(job)
            elif job.commands:
                job.is_sent = False  # Edited or removed meanwhile, so nothing was sent.
        self.report_advanced(advanced)
        # This stores the errors and the times of the retries. An entry that was changed meanwhile
        # needs neither, so ignore the results.
        self._commit(term, now, refused)

    def _commit(self, term: Term, now: int, jobs: Sequence[Job]) -> list[bool | str]:
        """Advance the entries of jobs, and return the results of :meth:`LeaderStore.commit`."""
        if not jobs:
            return []
        # A freeze that has begun since the planning cannot hold messages that are sent already.
        planned_at = now if self.publisher.commit_sends else IGNORES_FREEZE
        return self.store.commit(term, [self.advance(job, now) for job in jobs], planned_at)


def _claims_of_skipped_runs(jobs: Sequence[Job]) -> Iterator[Claim]:
    """Yield the claims of runs whose locks would block the runs that are sent in their place.

    A beat, or its server, may have died after it acquired the lock of a run, and before the commit.
    If the plan skips this run now, the run still has the lock.
    """
    for job in jobs:
        first = job.state.nominal
        if first is not None and job.claims and job.plan.emit[0] != first:
            # All runs of an entry need the same lock. Only the task ids of their claims differ.
            yield job.claims[job.plan.emit[0]]._replace(task_id=job.id_of(first))
