"""Sending a batch: once-locks are acquired, messages are made, and one script commits.

Where broker and schedule share a database, the commit also sends the messages. Elsewhere each is
sent when it is made, before the commit.
"""

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
from ...store.records import IGNORES_FREEZE, Advance, Bad, Command, Frozen, Lost, Term
from ..leader import Leader
from .batch_log import BatchLog
from .planner import MAX_ERROR, Batch, Job
from .publisher import BrokerDown, Publisher, refused_for_all

logger = get_logger(f"celery.{__name__}")


@dataclass(eq=False)
class BatchSender:
    """Sender of planned batches, which notes the result of each job.

    Parameters:
        advance: function of a job and the present time (epoch ms). It returns what the commit
            writes into Redis for the job.
        report_advanced: function that reports jobs whose advance was committed.
    """

    store: LeaderStore
    leader: Leader
    publisher: Publisher
    locks: LockStore
    log: BatchLog
    advance: Callable[[Job, int], Advance]
    report_advanced: Callable[[Sequence[Job]], None]

    def send(self, batch: Batch) -> None:
        """Make the messages of a batch, commit it, and release the once-locks of unsent runs.

        The broker connection must be open. Entries that cannot be used are quarantined.

        Raises:
            BrokerDown: the broker cannot be reached; what was not sent stays due.
            Frozen: a freeze has begun since the planning, so nothing was advanced.
            Lost: another process leads.
        """
        term = self.leader.term
        self._quarantine(term, batch.bad)
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

    def _quarantine(self, term: Term, bad: Sequence[Bad]) -> None:
        """Quarantine entries that cannot be used, unless they have changed since they were read."""
        if bad:
            results = self.store.quarantine(term, bad)
            self.log.report_quarantined(compress(bad, results))

    # -- once-locks --------------------------------------------------------------------------------

    def _acquire_locks(self, jobs: Sequence[Job]) -> None:
        """Acquire the once-locks of a batch in one round trip.

        An occurrence whose lock another task has is left out.
        """
        # Only jobs of entries with a once-lock have claims.
        runs = [(job, nominal) for job in jobs for nominal in job.claims]
        if not runs:
            return
        # First release locks that were acquired for earlier runs and would now block later runs.
        self.locks.give_back([*_claims_of_skipped_runs(jobs)])
        taken = self.locks.take([job.claims[nominal] for job, nominal in runs])
        for (job, nominal), is_taken in zip(runs, taken, strict=True):
            if not is_taken:
                job.leave_out(nominal)

    def _release_unsent(self, jobs: Sequence[Job]) -> None:
        """Release the locks of runs that were not published.

        The next try may be of a later occurrence, which has another task id, so these locks would
        block it. If the server does not answer, the locks expire.
        """
        claims = [claim for job in jobs if not job.is_sent for claim in job.claims.values()]
        if claims:
            with suppress(*FAULTS):
                self.locks.give_back(claims)

    # -- messages ----------------------------------------------------------------------------------

    def make_messages(self, jobs: Sequence[Job], made: list[Job]) -> None:
        """Make the messages of a batch, and send each at once, unless the commit sends them all.

        If the beat stops, or a failure breaks the connection, the remaining jobs stay due.

        Parameters:
            made: list to which each job is added when its messages are made.

        Raises:
            BrokerDown: the broker refuses every message.
            Lost: this process does not lead any more.
        """
        self.publisher.begin_batch()
        self.log.note_mode(self.publisher.mode)
        for job in jobs:
            # Sending a message here may take seconds. If the commit sends them all, making them is
            # fast, so a stop can wait for it.
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
                # These headers name the once-lock of the run.
                extra = None if claim is None else once_headers(claim)
                id_ = job.id_of(nominal)
                occurrence = Occurrence(job.entry, id_, nominal, job.life, extra)
                commands += self.publisher.make(occurrence)
            job.commands = commands
        except (BrokerDown, Lost):
            raise
        except Exception as exc:  # noqa: BLE001 - a failure stays with its entry
            self._keep_failure(job, exc)

    def _keep_failure(self, job: Job, exc: Exception) -> None:
        """Note a failed publish in its job, and whether the connection may be broken.

        Raises:
            BrokerDown: the broker refuses every message.
        """
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
            # The next batch opens a new connection. If the broker does not answer, that fails.
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
        for job in jobs:
            # Assume that the messages are sent even if the commit raises an error, because perhaps
            # only its reply was lost. The exceptions are handled below.
            job.is_sent = not job.error
        try:
            results = self._commit(term, now, jobs)
        except (Lost, Frozen, NoPermissionError) as exc:
            # With each of these errors, the script has done nothing. Redis checks rights before it
            # runs the script. A job has commands if the script was to send its messages.
            unsent = [job for job in jobs if job.commands]
            for job in unsent:
                job.is_sent = False
            # A commit without messages writes to no queue. So if it is refused, another right is
            # missing.
            if not isinstance(exc, NoPermissionError) or not unsent:
                raise
            # Later messages are sent one by one, over the broker's own connection. The entries of
            # this batch stay due.
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
                # The commit was to send its messages. (Without commands, they were sent before.)
                job.is_sent = False  # Edited or removed meanwhile, so nothing was sent.
        self.report_advanced(advanced)
        # Commit the refused jobs once more. Now that they have an error, this stores the error and
        # the time of the retry. An entry that was changed meanwhile needs neither, so ignore the
        # results.
        self._commit(term, now, refused)

    def _commit(self, term: Term, now: int, jobs: Sequence[Job]) -> list[bool | str]:
        """Advance entries.

        Return for each ``True`` if it was advanced, ``False`` if it was changed meanwhile, or the
        error with which the broker refused its messages.
        """
        if not jobs:
            return []
        # If the commit sends the messages and a freeze has begun since the planning, it refuses. If
        # the messages are sent already, a freeze cannot hold them any more.
        planned_at = now if self.publisher.commit_sends else IGNORES_FREEZE
        return self.store.commit(term, [self.advance(job, now) for job in jobs], planned_at)


def _claims_of_skipped_runs(jobs: Sequence[Job]) -> Iterator[Claim]:
    """Yield claims (requests for once-locks) whose locks may block later runs, to be released.

    A beat, or its server, may have died after it acquired the lock of a run, and before the commit.
    If the plan skips this run now, it is not sent any more. But it still has the lock, so the later
    run that is sent instead could not acquire it.
    """
    for job in jobs:
        # The stored state names the run that was due first. The plan may have skipped it.
        first = job.state.nominal
        if first is not None and job.claims and job.plan.emit[0] != first:
            # All runs of an entry need the same lock. Only the task ids of their claims differ.
            yield job.claims[job.plan.emit[0]]._replace(task_id=job.id_of(first))
