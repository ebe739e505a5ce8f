"""Sending a batch: once-locks are acquired, messages are made, and one script commits.

Where broker and schedule share a database, the commit also sends the messages. Elsewhere they are
sent before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from redis.exceptions import NoPermissionError, ResponseError

from ..._base.text import describe, text_of
from ...entries.message import Occurrence
from ...once.claims import headers as once_headers
from ...once.lock_store import LockStore
from ...store.leader_store import LeaderStore
from ...store.records import ANY_REVISION, Advance, Bad, Command, Lost, Refrozen, Term
from ..leader import Leader
from .batch_log import BatchLog
from .once_locks import acquire_locks, release_unsent
from .planner import MAX_ERROR, Batch, Job
from .publisher import BrokerDown, Publisher
from .redis_batch import refused_for_all

logger = get_logger(f"celery.{__name__}")


class BatchSender:
    """Sends planned batches, and notes the result of each job.

    Parameters:
        advance: returns what the commit writes for a job at an instant, in epoch ms.
        report_advanced: reports jobs whose advance was committed.
    """

    def __init__(
        self,
        store: LeaderStore,
        leader: Leader,
        publisher: Publisher,
        locks: LockStore,
        log: BatchLog,
        *,
        advance: Callable[[Job, int], Advance],
        report_advanced: Callable[[Sequence[Job]], None],
    ) -> None:
        self._store = store
        self._leader = leader
        self._publisher = publisher
        self._locks = locks
        self._log = log
        self._advance = advance
        self._report_advanced = report_advanced

    def connect(self, term: Term) -> bool:
        """Open the broker connection, if it is not open. Return whether this call opened it.

        A new connection looks in the store whether the broker is the database of the schedule, by a
        mark of this term.

        Raises:
            BrokerDown: the broker cannot be reached.
            Lost: another process leads.
        """
        self._leader.progress("connecting to the broker", within=self._publisher.gives_up_after)
        return self._publisher.connect(self._store, term)

    def send(self, term: Term, now: int, batch: Batch) -> None:
        """Make the messages of a batch, commit it, and release the once-locks of unsent runs.

        The broker connection must be open. Entries that cannot be used are quarantined.

        Raises:
            BrokerDown: the broker cannot be reached; what was not sent stays due.
            Refrozen: the freezes have changed, so nothing was advanced.
            Lost: another process leads.
        """
        self._quarantine(term, batch.bad)
        try:
            acquire_locks(self._locks, batch.jobs)
            tried = self.make_messages(term, now, batch.jobs)
            self.commit(term, now, tried)
        except BrokerDown:
            # Only a new connection has an open channel again, or leads to the new master of a
            # server that has become a replica.
            self._publisher.is_broken = True
            raise
        finally:
            # A failure of one entry may have broken the connection without an error here.
            if self._publisher.is_broken:
                self._publisher.close()
            release_unsent(self._locks, batch.jobs)

    def _quarantine(self, term: Term, bad: Sequence[Bad]) -> None:
        """Quarantine entries that cannot be used, unless they have changed since they were read."""
        if bad:
            results = self._store.quarantine(term, bad)
            self._log.report_quarantined(
                entry for entry, is_done in zip(bad, results, strict=True) if is_done
            )

    # -- messages ----------------------------------------------------------------------------------

    def make_messages(self, term: Term, now: int, jobs: list[Job]) -> list[Job]:
        """Make the messages of a batch in turn, and send those that the commit does not send.

        There are three ways, as the publisher says. ``at_once``: each message is sent as it is
        made. ``one_step``: all are collected, and the commit sends them. Otherwise all are
        collected, and this function sends them apart from the commit.

        Returns the jobs that were tried. The others stay due, because the beat stops, or because
        a failure has broken the connection.
        """
        tried: list[Job] = []
        at_once = self._publisher.at_once
        with self._publisher.batch() as publish:
            self._log.note_mode(self._publisher.mode)
            for job in jobs:
                # Each publish may take seconds. Collecting is fast, so a stop can wait for it.
                if at_once and self._leader.stop.requested:
                    break
                try:
                    self._publish_job(publish, job)
                except BrokerDown:
                    if at_once:
                        # These jobs come before the failed one. Do not send their messages again.
                        self.commit(term, now, tried)
                    raise
                job.is_sent = at_once and not job.error
                tried.append(job)
                if self._publisher.is_broken:
                    break
        if not self._publisher.one_step and any(job.commands for job in tried):
            self._send_apart(term, now, tried)
        return tried

    def _publish_job(self, publish: Callable[[Occurrence], list[Command]], job: Job) -> None:
        """Make the messages of one job, up to the first that fails.

        Parameters:
            publish: function that makes one message, and sends it or returns its commands.

        Raises:
            BrokerDown: the broker does not answer, or refuses every message.
            Lost: this process does not lead any more.
        """
        locks = {claim.task_id: once_headers(claim) for claim in job.acquired}
        for nominal in job.plan.emit:
            self._check_lead(f"publishing {job.entry.name!r}")
            task_id = job.id_of(nominal)
            # Headers that name the once-lock of the run, if it has one.
            extra = locks.get(task_id)
            try:
                commands = publish(Occurrence(job.entry, task_id, nominal, job.life, extra))
            except Exception as exc:  # noqa: BLE001 - a failure stays with its entry
                self._keep_failure(job, exc)
                return
            job.commands = [*job.commands, *commands]

    def _keep_failure(self, job: Job, exc: Exception) -> None:
        """Keep a failure with its entry, and look whether it has broken the connection.

        Raises:
            BrokerDown: the broker does not answer, or refuses every message.
        """
        cause = exc.__cause__
        error = describe(exc)
        if cause is not None and error == type(exc).__name__:
            # If RabbitMQ has refused a message, only the cause of Celery's error says why.
            error = describe(cause)
        self._note_failure(job, error, exc)
        if cause is not None and refused_for_all(cause):
            raise _refuses_all(cause) from exc
        # Celery raises an OperationalError for every error that kombu's transport lists. The list
        # for Redis has KeyError, which an unknown compression raises, too. Neither that nor a
        # refusal by the server breaks the connection.
        if not isinstance(exc, OperationalError) or isinstance(cause, (LookupError, ResponseError)):
            return
        self._leader.progress(
            "looking whether the broker answers", within=self._publisher.gives_up_after
        )
        if not self._publisher.answers():
            raise BrokerDown(job.error) from exc
        self._publisher.is_broken = True

    def _send_apart(self, term: Term, now: int, jobs: list[Job]) -> None:
        """Send collected messages before the commit. A message that is refused fails alone.

        Raises:
            BrokerDown: the broker refuses every message by now. Jobs whose messages it has
                answered otherwise are committed.
        """
        self._check_lead("sending a batch")
        errors = self._publisher.send([job.commands for job in jobs])
        refused_all: Exception | None = None
        answered: list[Job] = []
        for job, error in zip(jobs, errors, strict=True):
            job.commands = ()  # They are sent, so the commit must not send them again.
            if error is not None and refused_for_all(error):
                refused_all = error
                continue
            if error is not None:
                self._note_failure(job, f"the broker refused the message: {text_of(error)}", error)
            answered.append(job)
        if refused_all is not None:
            # Commit the jobs that got an answer, because the caller commits nothing now.
            self.commit(term, now, answered)
            raise _refuses_all(refused_all)

    def _check_lead(self, doing: str) -> None:
        """Report progress; raise Lost if this process does not lead any more."""
        if not self._leader.leading:
            raise Lost
        self._leader.progress(doing)

    def _note_failure(self, job: Job, error: str, exc: BaseException | None = None) -> None:
        """Store in a job why its message was not published, and report it."""
        job.error = error[:MAX_ERROR]
        job.commands = ()
        self._log.report_failed(job, exc)

    # -- commit ------------------------------------------------------------------------------------

    def commit(self, term: Term, now: int, jobs: list[Job]) -> None:
        """Advance the entries of these jobs, send the messages that are left, and note results."""
        self._leader.progress("committing")
        for job in jobs:
            # This is assumed even if the commit fails, because perhaps only its reply was lost.
            job.is_sent = not job.error
        try:
            results = self._commit(term, now, jobs)
        except (Lost, Refrozen, NoPermissionError) as exc:
            # The script has done nothing. Rights are checked before it runs.
            left_to_the_commit = [job for job in jobs if job.commands]
            for job in left_to_the_commit:
                job.is_sent = False
            # Only the messages need rights on queues. Without messages, other rights are missing.
            if not isinstance(exc, NoPermissionError) or not left_to_the_commit:
                raise
            # Later batches are sent apart from the commit, over the broker's own connection.
            self._publisher.send_apart("the schedule's user may not write to a queue")
            logger.warning(
                "beat: the schedule's user may not write to a queue, so the broker's will: %s",
                text_of(exc),
            )
            return  # These entries stay due, for the next batch.
        self._note_results(term, now, jobs, results)

    def _note_results(
        self, term: Term, now: int, jobs: list[Job], results: list[bool | str]
    ) -> None:
        """Note the result of each job: advanced, changed meanwhile, or refused by the broker."""
        refused: list[Job] = []
        advanced: list[Job] = []
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, str):
                self._note_failure(job, f"the broker refused the message: {result}")
                job.is_sent = False
                refused.append(job)
            elif result:
                advanced.append(job)
            elif job.commands:
                job.is_sent = False  # Edited or removed meanwhile, so nothing was sent.
        self._report_advanced(advanced)
        # Commit the refused jobs once more. Now that they have an error, this stores the error and
        # the time of the retry. An entry that was changed meanwhile needs neither, so ignore the
        # results.
        self._commit(term, now, refused)

    def _commit(self, term: Term, now: int, jobs: Sequence[Job]) -> list[bool | str]:
        """Advance entries; the result of each is as :meth:`.LeaderStore.commit` returns it."""
        if not jobs:
            return []
        advances = [self._advance(job, now) for job in jobs]
        revision = ANY_REVISION  # A freeze cannot hold messages that were sent before the commit.
        if self._publisher.one_step:
            # Nothing is sent yet. If a freeze has begun since the planning, the commit refuses all.
            revision = self._leader.state.freezes.revision
        return self._store.commit(term, advances, revision)


def _refuses_all(error: BaseException) -> BrokerDown:
    """Return the exception for a broker that answers this to every message."""
    return BrokerDown(f"it refuses every message: {text_of(error)}")
