"""Commit: what was published moves on; where the commit sends it, it goes out then."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

from celery.utils.log import get_logger
from redis.exceptions import NoPermissionError

from ...errors import text_of
from ...runs.keys import RunKeys
from ...storage.leader_store import LeaderStore
from ...storage.stored import ANY_REVISION, Lost, Refrozen, Term
from ..freezing import Freezing
from ..leader import Leader
from ..vitals import Vitals
from .advances import Advances
from .broker import BrokerDown
from .collector import refused_for_all
from .deadlines import Deadlines
from .planner import MAX_ERROR, Job
from .publisher import Publisher
from .reports import Reports

logger = get_logger(f"celery.{__name__}")


class Committer:
    """Commits jobs, and notes the result of each."""

    def __init__(
        self,
        store: LeaderStore,
        leader: Leader,
        publisher: Publisher,
        vitals: Vitals,
        *,
        zone: tzinfo,
        deadlines: Deadlines,
        freezing: Freezing,
    ) -> None:
        self._store = store
        self._leader = leader
        self._publisher = publisher
        self._freezing = freezing
        self._reports = Reports(vitals, zone)
        self._advances = Advances(RunKeys(store.keys.prefix), deadlines, zone)

    def _still_leading(self, doing: str) -> None:
        if not self._leader.leading:
            raise Lost
        self._leader.progress(doing)

    def _send(self, term: Term, now: int, jobs: list[Job]) -> None:
        """Send what was collected and is not left to the commit; what the broker refuses of it fails alone."""
        self._still_leading("sending a batch")
        errors = self._publisher.send([job.commands for job in jobs])
        refused_all: Exception | None = None
        left: list[Job] = []
        for job, error in zip(jobs, errors, strict=True):
            job.commands = ()
            if error is not None and refused_for_all(error):
                refused_all = error
                continue
            if error is not None:
                self._note_failure(job, f"the broker refused the message: {text_of(error)}", error)
            left.append(job)
        if refused_all is not None:
            self._commit(term, now, left)
            raise refuses_all(refused_all)

    def _commit(self, term: Term, now: int, jobs: list[Job]) -> None:
        """Advance the entries of these jobs, send the messages that are left, and note results."""
        self._leader.progress("committing")
        for job in jobs:
            # Also if the commit fails: its reply may be all that was lost.
            job.out = not job.error
        try:
            results = self._advance(term, now, jobs, self._publisher.one_step)
        except (Lost, Refrozen):
            for job in jobs:
                was_left_to_the_commit = bool(job.commands)
                job.out = not job.error and not was_left_to_the_commit
            raise
        except NoPermissionError as exc:
            if not any(job.commands for job in jobs):
                raise
            self._commit_apart(term, now, jobs, exc)
            return
        self._note_results(term, now, jobs, results)

    def _commit_apart(self, term: Term, now: int, jobs: list[Job], exc: NoPermissionError) -> None:
        """Send the messages as the broker's user, then commit as the schedule's, which may not write to a queue."""
        # The server checks the rights before it runs a script, so nothing has been sent or advanced.
        for job in jobs:
            job.out = False
        logger.warning("beat: the schedule's user may not write to a queue, so the broker's will: %s", text_of(exc))
        self._publisher.send_apart("the schedule's user may not write to a queue")
        self._send(term, now, jobs)
        self._commit(term, now, jobs)

    def _note_results(self, term: Term, now: int, jobs: list[Job], results: list[bool | str]) -> None:
        """Note the result of each job: advanced, changed meanwhile, or refused by the broker."""
        refused, advanced = [], []
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, str):
                self._note_failure(job, f"the broker refused the message: {result}")
                job.out = False
                refused.append(job)
            elif result:
                self._reports.advanced(job)
                advanced.append(job)
            elif job.commands:
                job.out = False  # Edited or removed meanwhile, so nothing was sent.
        if refused:
            self._advance(term, now, refused)
        self._reports.committed(advanced)

    def _advance(self, term: Term, now: int, jobs: Sequence[Job], one_step: bool = False) -> list[bool | str]:
        if not jobs:
            return []
        steps = [self._advances.of(job, now) for job in jobs]
        revision = self._freezing.known.revision if one_step else ANY_REVISION
        return self._store.commit(term, now, steps, self._advances.deadlines, revision)

    def _note_failure(self, job: Job, error: str, exc: BaseException | None = None) -> None:
        job.error, job.commands = error[:MAX_ERROR], ()
        self._reports.failed(job, exc)


def refuses_all(error: BaseException) -> BrokerDown:
    """The broker is down, in a way: it answers this whatever the message."""
    return BrokerDown(f"it refuses every message: {text_of(error)}")
