"""Once-locks of a batch: acquired before it is published, released for runs that are not sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from ...once.claims import Claim
from ...once.lock_store import LockStore
from ...store.connections import FAULTS
from .planner import Job


def acquire_locks(locks: LockStore, jobs: Iterable[Job]) -> None:
    """Acquire the once-locks of a batch in one round trip.

    An occurrence whose lock another task has is left out.
    """
    # Entries without a once-lock have no claims, and give no requests.
    requests = [
        (job, nominal, claim)
        for job in jobs
        for nominal, claim in zip(job.plan.emit, job.claims, strict=False)
    ]
    if not requests:
        return
    # First release locks that were acquired for earlier runs and would now block the later ones.
    locks.give_back(list(_overtaken(jobs)))
    taken = locks.take([claim for *_, claim in requests])
    for (job, nominal, claim), is_taken in zip(requests, taken, strict=True):
        if is_taken:
            job.acquired = (*job.acquired, claim)
        else:
            _leave_out(job, nominal)


def release_unsent(locks: LockStore, jobs: Iterable[Job]) -> None:
    """Release the locks of runs that were not published.

    The next try may be of a later occurrence, whose task id differs, so that the lock would block
    it. If the server does not answer, the locks expire.
    """
    claims = [claim for job in jobs if not job.is_sent for claim in job.acquired]
    if claims:
        with suppress(*FAULTS):
            locks.give_back(claims)


def _leave_out(job: Job, left_out: int) -> None:
    """Take an occurrence out of a plan.

    Parameters:
        left_out: its nominal time, in epoch ms.
    """
    job.left_out = (*job.left_out, left_out)
    emit = tuple(nominal for nominal in job.plan.emit if nominal != left_out)
    job.plan = job.plan._replace(emit=emit)
    if job.plan.next is None:  # It was planned as the last of max_runs, which it is not now.
        nominal, due = job.instead
        job.plan = job.plan._replace(next=nominal)
        job.due = due


def _overtaken(jobs: Iterable[Job]) -> Iterator[Claim]:
    """Yield claims of earlier runs, in place of which a later run is sent.

    A beat, or its server, may have died between acquiring the lock of the earlier run and the
    commit. That lock would block its key.
    """
    for job in jobs:
        # The stored state names the run that was due first. The plan may have skipped it.
        first = job.state.nominal
        if first is not None and job.claims and job.plan.emit[0] != first:
            yield job.claims[0]._replace(task_id=job.id_of(first))
