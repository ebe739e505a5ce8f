"""Sweeper of pipelines: does the work that processes left undone when they died.

Every few seconds the sweeper checks every run that has not ended. It publishes the steps of an
outbox that nobody emptied. It publishes a message again if no worker has begun it in time. If the
worker of a step is gone, it runs the step again, or fails it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery import Celery
from celery.utils.log import get_logger

from .._base.text import text_of
from .._base.threads import Ticker
from ..store.connections import FAULTS
from .definition import task_id
from .pipeline_store import Check, PipelineStore, Ref, store_of
from .publish import LOST, conclude, dispatch, finish_run, kill_siblings, take_turn

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
            log = logger.warning if isinstance(exc, FAULTS) else logger.exception
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
    if check.verdict == "gone":
        store.forget(run_id)
    elif check.verdict == "wait":
        take_turn(store, run_id)
    elif check.verdict == "run":
        _repair_steps(store, check)
    else:
        # The verdict is "over": the run has ended. Its running steps are still to be killed.
        if check.running:
            kill_siblings(store, run_id, [step.task_id for step in check.running])
        finish_run(store, run_id)


def _repair_steps(store: PipelineStore, check: Check) -> None:
    """Restart or fail the lost steps of a run that has not ended, and publish its outbox.

    Parameters:
        check: the run as the server has just checked it.
    """
    # The guard's record of a task, which its worker renews, says whether the task still runs.
    records = store.guards.records([step.task_id for step in check.running])
    lost = _find_already_ended(store, check.outbox)
    # Do not publish a lost step in its old round. If it is restarted, it is published in its next
    # round.
    outbox = [ref for ref in check.outbox if ref not in lost]
    for step in check.running:
        if not records[step.task_id].is_alive:
            lost.append(step.ref)
        elif step.suspect:
            # A worker renews the step after all, so withdraw the earlier report.
            store.withdraw_report(step.ref)
    for ref in lost:
        if _restart_or_fail(store, ref):
            # The server has begun the next round of the step, which counts its retries from 0.
            outbox.append(Ref(ref.run, ref.step, ref.round + 1))
    dispatch(store, outbox)


def _find_already_ended(store: PipelineStore, outbox: Sequence[Ref]) -> list[Ref]:
    """Return the steps of an outbox whose attempt has ended, though no outcome is recorded.

    Their worker died after the body, before it recorded the outcome. The guard, which records which
    task ids have run, would drop another message of the same attempt.
    """
    definition = store.definition(outbox[0].run) if outbox else None
    if definition is None:
        return []  # There is nothing to publish, or the record of the run has expired.
    refs_by_task = {}
    for ref in outbox:
        task = task_id(ref.run, definition.stage_of(ref.step), ref.step, ref.round)
        refs_by_task[task] = ref
    records = store.guards.records(refs_by_task)
    return [ref for task, ref in refs_by_task.items() if records[task].has_ended(ref.attempt)]


def _restart_or_fail(store: PipelineStore, ref: Ref) -> bool:
    """Restart or fail a step whose worker is gone. The first report of a step only notes it.

    Returns:
        whether the step is restarted. Then the caller must publish it in its next round.
    """
    verdict = store.report(ref)
    if verdict == "again":
        logger.warning(
            "Pipeline %s: the worker of step %d is gone, so the step is started again",
            ref.run,
            ref.step,
        )
    elif verdict == "dead":
        logger.warning(
            "Pipeline %s: the worker of step %d is gone, and it may not run again",
            ref.run,
            ref.step,
        )
        conclude(store, ref, "FAILED", LOST)
    # "suspect" is the verdict of a first report, and a later check decides. "stale" means that the
    # step is in another state or round by now.
    return verdict == "again"


def sweeper(app: Celery, is_leading: Callable[[], bool]) -> Ticker:
    """Return the thread that sweeps while this beat leads. The beat's loop does not wait for it."""
    # Text of the log line if a sweep fails.
    failure = "beat: cannot sweep the pipelines"
    return Ticker(
        "redbeat-lite-sweeper", lambda: PERIOD, lambda: is_leading() and sweep(app), failure
    )
