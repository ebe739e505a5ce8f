"""Commit: what was published moves on; where the commit sends it, it goes out then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from functools import partial

from celery.utils.log import get_logger
from redis.exceptions import NoPermissionError

from ...errors import text_of
from ...runs.keys import RunKeys
from ...storage.leader_store import LeaderStore
from ...storage.stored import Look, Lost, Refrozen, Term
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

logger = get_logger(__name__)


class Committer:
    """Commits jobs, and looks at what came of it: at once, or while the next ones are planned."""

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
        #: What is out and not committed, with its term and its time: the messages of these jobs, and of nothing else.
        self._out: tuple[Term, int, list[Job]] | None = None
        #: Looks at what came of the commit that was sent last, if nobody has done so yet.
        self._under_way: Callable[[], None] | None = None

    def finish(self, store: LeaderStore) -> None:
        """Commit what is out, for a beat that is told to stop in the middle of a batch.

        The store has a connection of its own: what was interrupted may be using the other one.
        """
        out, self._out = self._out, None
        if out is not None:
            term, now, jobs = out
            done = self._advance(store, term, now, jobs := [*jobs])()
            self._reports.committed(job for job, is_done in zip(jobs, done, strict=True) if is_done)

    def _still_leading(self, doing: str) -> None:
        if not self._leader.leading:
            raise Lost
        self._leader.progress(doing)

    def _send(self, term: Term, now: int, jobs: list[Job]) -> None:
        """Send what was collected and is not left to the commit; what the broker refuses of it fails alone."""
        self._still_leading("sending a batch")
        down, left = None, []
        for job, error in zip(jobs, self._publisher.send([job.commands for job in jobs]), strict=True):
            job.commands = ()
            if isinstance(error, BrokerDown) or refused_for_all(error):
                down = error
                continue
            if error is not None:
                self._note_failure(job, f"the broker refused the message: {text_of(error)}", error)
            left.append(job)
        self._out = term, now, left
        if down is not None:
            self._commit(term, now, left)
            raise down if isinstance(down, BrokerDown) else refuses_all(down)

    def _commit(self, term: Term, now: int, jobs: list[Job], *, wait: bool = True, look: Look | None = None) -> None:
        """Commit jobs; what came of it is looked at now, or without ``wait`` before the next commit."""
        self._settle()
        self._leader.progress("committing")
        for job in jobs:
            # Also if the commit fails: its reply may be all that was lost.
            job.out = not job.error
        results = self._advance(self._store, term, now, jobs, self._publisher.one_step, look)
        self._under_way = partial(self._committed, term, now, jobs, results)
        if wait:
            self._settle()

    def _settle(self) -> None:
        """Look at what came of the commit that is under way."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        try:
            under_way()
        except BrokerDown:  # to which it had to be sent apart
            self._publisher.close()
            raise

    def _committed(self, term: Term, now: int, jobs: list[Job], results: Callable[[], list[bool | str]]) -> None:
        try:
            done = zip(jobs, results(), strict=True)
            self._out = None
        except (Lost, Refrozen):
            for job in jobs:
                job.out = not job.error and not job.commands  # which nobody has sent
            raise
        except NoPermissionError as exc:
            if not any(job.commands for job in jobs):
                raise
            # The server looks before it runs a script, so nothing was done. The broker's own user may be another.
            for job in jobs:
                job.out = False
            logger.warning("beat: the schedule's user may not write to a queue, so the broker's will: %s", text_of(exc))
            self._publisher.send_apart("the schedule's user may not write to a queue")
            self._send(term, now, jobs)
            self._commit(term, now, jobs)
            return
        refused, advanced = [], []
        for job, result in done:
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
            self._advance(self._store, term, now, refused)()
        self._reports.committed(advanced)

    def _advance(
        self,
        store: LeaderStore,
        term: Term,
        now: int,
        jobs: Sequence[Job],
        one_step: bool = False,
        look: Look | None = None,
    ) -> Callable[[], list[bool | str]]:
        steps = [self._advances.of(job, now) for job in jobs]
        revision = self._freezing.known.revision if one_step else b"|"  # what is out is out
        return store.commit(term, now, steps, self._advances.deadlines, revision, look) if steps else list

    def _note_failure(self, job: Job, error: str, exc: BaseException | None = None) -> None:
        job.error, job.commands = error[:MAX_ERROR], ()
        self._reports.failed(job, exc)


def refuses_all(error: BaseException) -> BrokerDown:
    """The broker is down, in a way: it answers this whatever the message."""
    return BrokerDown(f"it refuses every message: {text_of(error)}")
