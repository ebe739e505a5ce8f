"""The once-locks of a batch: taken before it is published, given back for what is not sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from celery.utils.log import get_logger

from ...once.claims import Claim, give_back, take
from ...once.store import DOWN, LockStore
from .planner import Job

logger = get_logger(f"celery.{__name__}")

#: Of so many locks it is remembered that the log has them; entries that are removed meanwhile never give theirs back.
_TOLD = 10_000


class Claiming:
    """Takes the once-locks of jobs, and gives them back."""

    def __init__(self, locks: LockStore) -> None:
        self._locks = locks
        #: Entries and keys of which the log says that the lock is held, until it is taken for them again.
        self._held: set[tuple[str, str]] = set()

    def take(self, jobs: Iterable[Job]) -> None:
        """Take the once-locks of a batch in one round trip; an occurrence whose lock is held is left out."""
        wanted = [(job, *each) for job in jobs for each in zip(job.plan.emit, job.wanted, strict=False)]
        if not wanted:
            return
        claims = [claim for *_, claim in wanted]
        give_back(self._locks, list(_overtaken(jobs)))
        for (job, nominal, claim), taken in zip(wanted, take(self._locks, claims), strict=True):
            if taken:
                job.claims = (*job.claims, claim)
                self._held.discard((job.entry.name, claim.key))
                continue
            _leave_out(job, nominal)
            self._tell_held(job.entry.name, claim.key)

    def _tell_held(self, name: str, key: str) -> None:
        """Say so once, and not at each run: a lock may be held for hours."""
        if (name, key) in self._held:
            return
        if len(self._held) >= _TOLD:
            self._held.clear()
        self._held.add((name, key))
        logger.info(
            "beat: %r is left out while its once-lock is held: a run is queued or running, or no worker with "
            "install() gives the lock back",
            name,
        )

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Give back the locks of what was not published. What is tried in its place may be a later occurrence."""
        claims = [claim for job in jobs if not job.out for claim in job.claims]
        if claims:
            with suppress(*DOWN):
                give_back(self._locks, claims)


def _leave_out(job: Job, left_out: int) -> None:
    job.left_out = (*job.left_out, left_out)
    emit = tuple(nominal for nominal in job.plan.emit if nominal != left_out)
    job.plan = job.plan._replace(emit=emit)
    if job.plan.next is None:  # planned as the last of max_runs, which it was not
        nominal, score = job.ahead.instead
        job.plan, job.ahead = job.plan._replace(next=nominal), job.ahead._replace(score=score)


def _overtaken(jobs: Iterable[Job]) -> Iterator[Claim]:
    """What may have been taken for a run that is not sent any more, because a later one is sent in its place.

    A beat that died, or whose server did, between taking and committing has left it, and it would block its key.
    """
    for job in jobs:
        first = job.state.nominal
        if first is not None and job.wanted and job.plan.emit[0] != first:
            yield replace(job.wanted[0], task_id=job.id_of(first))
