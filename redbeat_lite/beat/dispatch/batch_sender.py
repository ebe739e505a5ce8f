"""Sending a batch: messages are made, and one script commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from redis.exceptions import NoPermissionError, ResponseError

from ..._base.text import describe, text_of
from ...entries.message import Occurrence
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
        advance: function that takes a job and the present (epoch ms), and returns what the commit
            writes for this job.
        report_advanced: function that reports the jobs that a commit has advanced.
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
        results = self.store.quarantine(term, batch.bad)
        for bad, is_quarantined in zip(batch.bad, results, strict=True):
            # An entry that has changed since it was read is not quarantined.
            if is_quarantined:
                self.log.report_quarantined(bad)
        try:
            self._leave_out(batch.jobs)
            self.make_messages(batch.jobs)
        finally:
            try:
                # Commit the jobs that were handled before a failure, too. If messages go one by
                # one, those of these jobs are sent already. Without a commit, they would be sent
                # again.
                handled = [job for job in batch.jobs if job.is_handled]
                self.commit(term, batch.now, handled)
            finally:
                if self.publisher.is_broken:
                    self.publisher.close()

    # -- messages ----------------------------------------------------------------------------------

    def make_messages(self, jobs: Sequence[Job]) -> None:
        """Make the messages of a batch, and send each at once, unless the commit sends them all.

        If the beat stops, or a failure breaks the connection, the remaining jobs stay due.
        """
        self.publisher.begin_batch()
        self.log.log_mode(self.publisher.mode)
        # Keys of the once-locks that the commit acquires for messages made so far.
        claimed: set[str] = set()
        for job in jobs:
            # To send a message may take seconds, so stop before the next one. If the commit sends
            # the messages, making them takes so little time that the stop can wait.
            if self.leader.stop.requested and not self.publisher.commit_sends:
                return
            if job.claim and job.claim.key in claimed:
                # Leave this run out on the condition that the commit acquires the lock for the
                # earlier job. Otherwise this run stays due.
                job.commands = [("claimed", self.locks.keys.lock(job.claim.key), "")]
                job.leave_out()
            else:
                self._publish_job(job)
            if job.claim and job.commands:
                claimed.add(job.claim.key)
            job.is_handled = True
            if self.publisher.is_broken:
                return

    def _leave_out(self, jobs: Sequence[Job]) -> None:
        """Leave out the runs whose once-lock another task has, so that no message is made of them.

        If a lock is taken after this call, the message is not sent: see :meth:`_publish_job` and
        :meth:`commit`.
        """
        taken = self.locks.taken([job.claim for job in jobs if job.claim])
        for job in jobs:
            if job.claim in taken:
                job.leave_out()

    def _publish_job(self, job: Job) -> None:
        """Make the messages of one job, and send those that the commit does not send.

        If one fails, the job keeps the error and no messages.
        """
        commands: list[Command] = []
        try:
            if job.claim and not self.publisher.commit_sends:
                # Check the lease first. If another beat leads, it may have sent this message, and
                # the run may have ended. Then nobody would release the lock.
                self.publisher.check_lead("acquiring a once-lock")
                if not self.locks.take(job.claim):
                    job.leave_out()
            for nominal in job.plan.emit:
                occurrence = Occurrence(
                    job.entry, job.id_of(nominal), nominal, job.life, job.headers
                )
                commands += self.publisher.make(occurrence)
            if job.claim and commands:
                commands.append(self.locks.claim_command(job.claim))
            job.commands = commands
        except Lost:
            raise
        except Exception as exc:
            # Another leader that has sent this message meanwhile needs the lock.
            if job.claim and not self.publisher.commit_sends and self.leader.holds_lease:
                with suppress(*FAULTS):
                    self.locks.leave(job.claim.key, job.claim.task_id)
            if isinstance(exc, BrokerDown):
                raise
            self._handle_failure(job, exc)

    def _handle_failure(self, job: Job, exc: Exception) -> None:
        """Note in a job the error of its publish. Find out if the connection may be broken.

        Raises:
            BrokerDown: the server refuses every message.
        """
        cause = exc.__cause__
        error = describe(exc)
        if cause is not None and error == type(exc).__name__:
            # The error has no text, for example when RabbitMQ has refused a message. Its cause says
            # why.
            error = describe(cause)
        self._fail(job, error)
        logger.debug("beat: how it came to that", exc_info=exc)
        if cause is not None and refused_for_all(cause):
            # The server may have become a replica. Only a new connection leads to the new master.
            self.publisher.is_broken = True
            raise BrokerDown(f"it refuses every message: {text_of(cause)}") from exc
        # An OperationalError may mean a broken connection. But kombu raises it for each error that
        # its transport lists as one of the connection or the channel. The list for Redis has
        # KeyError, which an unknown compression raises, too. Neither a LookupError nor a refusal by
        # the server breaks the connection.
        is_refusal = isinstance(cause, (LookupError, ResponseError))
        if isinstance(exc, OperationalError) and not is_refusal:
            self.publisher.is_broken = True

    def _fail(self, job: Job, error: str) -> None:
        """Store in a job why its messages were not published, and report it."""
        job.error = error[:MAX_ERROR]
        job.commands = ()
        self.log.report_failed(job)

    # -- commit ------------------------------------------------------------------------------------

    def commit(self, term: Term, now: int, jobs: Sequence[Job]) -> None:
        """Advance the entries of these jobs, and send messages that were not sent yet.

        A job counts as handled as soon as its messages are made. If the commit raises an error,
        perhaps only the reply was lost. If the script has surely not sent the messages, this
        function sets ``is_handled`` back to false.

        Parameters:
            now: when the jobs were planned, in epoch ms.
            jobs: jobs whose messages were made or have failed.
        """
        self.leader.progress("committing")
        try:
            results = self._advance_entries(term, now, jobs)
        except (Lost, Frozen, NoPermissionError) as exc:
            # The script has written and sent nothing. The jobs with commands have messages that it
            # was to send, or depend on such a message.
            unsent = [job for job in jobs if job.commands]
            for job in unsent:
                job.is_handled = False
            # A NoPermissionError is about a queue if there were messages to send. Otherwise the
            # script wrote to no queue, so another right is missing.
            if not unsent or not isinstance(exc, NoPermissionError):
                raise
            # From now on, messages are sent one by one. The entries of this batch stay due.
            why = "the schedule's user may not write to a queue"
            self.publisher.refusal = why
            logger.warning("beat: %s, so the broker's user writes: %s", why, text_of(exc))
            return
        refused: list[Job] = []
        advanced: list[Job] = []
        for job, result in zip(jobs, results, strict=True):
            # A text says why the broker refused the messages.
            if isinstance(result, str):
                self._fail(job, f"the broker refused the message: {result}")
                refused.append(job)
            elif result:
                advanced.append(job)
            elif job.commands:
                # The entry has changed, its once-lock is taken, or the message of the earlier job
                # was not sent. So the script has neither sent messages nor advanced the entry.
                job.is_handled = False
        self.report_advanced(advanced)
        # Store the errors of the refused jobs, and the times of their retries. An entry that was
        # changed meanwhile needs neither, so ignore the results.
        self._advance_entries(term, now, refused)

    def _advance_entries(self, term: Term, now: int, jobs: Sequence[Job]) -> list[bool | str]:
        """Call :meth:`LeaderStore.commit` for these jobs, and return its results."""
        if not jobs:
            return []
        # If the messages are sent already, a freeze that has begun since the planning cannot hold
        # them any more. So the commit must go through.
        planned_at = now if self.publisher.commit_sends else IGNORES_FREEZE
        return self.store.commit(term, [self.advance(job, now) for job in jobs], planned_at)
