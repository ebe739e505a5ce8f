"""Sweeper of pipelines: does the work that processes left undone when they died.

Every few seconds the sweeper checks every run that has not ended. It publishes the steps that
nobody has published. It publishes a message again if no worker has begun it in time. If the
worker of a step is gone, it runs the step again, or fails it.
"""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery
from celery.utils.log import get_logger

from .._base.text import text_of
from .._base.threads import Ticker
from .definition import Ref
from .pipeline_store import Check, PipelineStore, store_of
from .publish import LATER, LOST, conclude, dispatch, finish_run, take_turn
from .run_status import State

logger = get_logger(f"celery.{__name__}")

#: Maximum number of runs that one sweep checks. The next sweep checks the remaining runs.
LIMIT = 1_000

#: Seconds between two sweeps of the leading beat.
PERIOD = 2.0

#: Maximum number of ms from the due time of a message until the sweeper publishes it. The sweeper
#: may need two checks of the run. Each may come as late as ``PipelineStore.check_period`` plus
#: ``PERIOD``, so both take at most 24 s. After an outage of the server, a beat needs up to 6 s more
#: to lead again.
LATE_MS = 30_000


def sweep(app: Celery, *, limit: int = LIMIT) -> int:
    """Check each run that is due for a check once, and return the number of these runs.

    Any number of processes may sweep at the same time. The leading beat sweeps every two seconds;
    call this function yourself if there is no beat.

    Parameters:
        limit: maximum number of runs to check.

    Raises:
        redis.exceptions.RedisError: the server does not answer.
    """
    store = store_of(app)
    due = store.due_runs(limit)
    for run_id in due:
        try:
            _repair_run(store, run_id)
        except Exception as exc:  # noqa: BLE001 - one run must not stop the others
            # If the error is no outage, log its traceback, too.
            log = logger.warning if isinstance(exc, LATER) else logger.exception
            text = "Pipeline %s cannot be swept; looking at it again later: %s"
            log(text, run_id, text_of(exc))
            store.check_later(run_id)
    return len(due)


def _repair_run(store: PipelineStore, run_id: str) -> None:
    """Do for one run the work that processes left undone when they died."""
    # Postpone the next check first. If this run kills its sweeper, no other sweeper checks the run
    # at once.
    store.check_later(run_id)
    check = store.check(run_id)
    if not check.state:
        store.forget(run_id)  # There is no such run.
    elif check.state == State.WAITING:
        take_turn(store, run_id)
    elif check.state == State.RUNNING:
        _repair_steps(store, check)
    else:
        finish_run(store, run_id)


def _repair_steps(store: PipelineStore, check: Check) -> None:
    """Restart or fail the lost steps of a run that has not ended, and publish the steps that wait.

    Parameters:
        check: the run as the server has just checked it.
    """
    refs = [*check.due, *check.running]
    # The guard's record of a task, which its worker renews, says whether the task still runs.
    records = store.guards.records([ref.task_id for ref in refs])
    due = []
    lost = []
    for ref in check.due:
        # If this attempt has ended though no outcome is recorded, its worker died in between. The
        # guard would drop another message of the same attempt.
        if records[ref.task_id].has_ended(ref.attempt):
            lost.append(ref)
        else:
            due.append(ref)
    for ref in check.running:
        if not records[ref.task_id].is_alive:
            lost.append(ref)
    for ref in lost:
        if _restart_or_fail(store, ref, records[ref.task_id].until_ms):
            # The server has begun the next round of the step, which counts its retries from 0.
            due.append(Ref(ref.run, ref.step, ref.round + 1))
    dispatch(store, due)


def _restart_or_fail(store: PipelineStore, ref: Ref, until_ms: float) -> bool:
    """Restart or fail a step whose worker is gone. The first report of a step only notes it.

    Parameters:
        until_ms: epoch ms at which the guard's record of the step should have been renewed.

    Returns:
        whether the step is restarted. Then the caller must publish it in its next round.
    """
    verdict = store.report(ref, until_ms)
    # "suspect" is the verdict of a first report, and a later check decides. "stale" means that the
    # step is in another state or round by now.
    if verdict in ("again", "dead"):
        logger.warning("Pipeline %s: the worker of step %d is gone", ref.run, ref.step)
    if verdict == "dead":
        conclude(store, ref, "FAILED", LOST)
    return verdict == "again"


def sweeper(app: Celery, is_leading: Callable[[], bool]) -> Ticker:
    """Return the thread that sweeps while this beat leads. The beat's loop does not wait for it."""
    # Text of the log line if a sweep fails.
    failure = "beat: cannot sweep the pipelines"
    return Ticker(
        "redbeat-lite-sweeper", lambda: PERIOD, lambda: is_leading() and sweep(app), failure
    )
