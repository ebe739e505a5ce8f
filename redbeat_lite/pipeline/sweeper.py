"""Sweeper of pipelines: it repeats the work of processes that died, so that no run waits for them.

It looks at every run that has not ended, every few seconds. It publishes a full outbox, publishes a
message again that does not begin, and runs a step again, or fails it, if its worker is gone.
"""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery
from celery.utils.log import get_logger

from .._base.text import text_of
from .._base.threads import Ticker
from ..once.lock_store import DOWN
from .definition import task_id
from .pipeline_store import NO_STAGE, Outbox, PipelineStore, Ref, store_of
from .publish import LOST, conclude, dispatch, finish_run, revoke, take_turn

logger = get_logger(f"celery.{__name__}")

#: Most runs of one sweep. The others are due at the next one.
LIMIT = 1_000

#: Seconds between two sweeps of the leading beat.
PERIOD = 2.0

#: Most ms from the due time of a message until the sweeper publishes it. Two looks at its run take
#: at most ``Index.period`` and ``PERIOD`` each, 24 s together. A beat that has to lead again,
#: because its server was away, takes 6 s.
LATE_MS = 30_000


def sweep(app: Celery, *, limit: int = LIMIT) -> int:
    """Look once at every run that is due for a look, and return how many.

    Any number of processes may do so at once. The leading beat does it every two seconds; call it
    if there is no beat.

    Parameters:
        limit: most runs.

    Raises:
        redis.exceptions.RedisError: the server does not answer.
    """
    store = store_of(app)
    due = store.index.due(limit)
    for run_id in due:
        try:
            _look(app, store, run_id)
            continue
        except DOWN as exc:
            text = "Pipeline %s cannot be swept; looking at it again later: %s"
            logger.warning(text, run_id, text_of(exc))
        except Exception:
            logger.exception("Pipeline %s cannot be swept; looking at it again later", run_id)
        store.index.look_again(run_id)
    return len(due)


def _look(app: Celery, store: PipelineStore, run_id: str) -> None:
    """Do for one run what processes that died have left undone."""
    # Do this first, so that a run which kills its sweeper does not kill every sweeper at once.
    store.index.look_again(run_id)
    look = store.check(run_id)
    if look.word == "over":
        if look.running:
            revoke(app, store, run_id, [running.task_id for running in look.running])
        finish_run(app, store, run_id)
    elif look.word == "gone":
        store.index.forget(run_id)
    elif look.word == "wait":
        take_turn(app, store, run_id)
    if look.word != "run":
        return
    outbox = look.outbox
    alive = store.guards.alive([running.task_id for running in look.running])
    lost = []
    for running in look.running:
        if not alive[running.task_id]:
            lost.append(running.ref)
        elif running.suspect:
            store.clear_suspicion(running.ref)
    for ref in [*lost, *_dropped(store, run_id, outbox)]:
        outbox.pop(ref.step, None)
        outbox.update(_handle_lost(app, store, ref))
    dispatch(app, store, run_id, outbox)
    if look.entry:
        # A server that was restarted may have lost the line of the entry's runs, so put this run in
        # front again. If the run has ended since the look, the next run of the entry removes it.
        store.line(look.entry, look.turn, runs=True)


def _dropped(store: PipelineStore, run_id: str, outbox: Outbox) -> list[Ref]:
    """Return steps whose message the guard would drop, because this attempt has ended already.

    Their worker died after the body, before it recorded the outcome.
    """
    definition = store.definition(run_id) if outbox else None
    if definition is None:
        return []
    refs_by_task = {}
    for step, (round_, attempt) in outbox.items():
        task = task_id(run_id, definition.stage_of(step), step, round_)
        refs_by_task[task] = Ref(run_id, step, NO_STAGE, round_, attempt)
    attempts = {task: ref.attempt for task, ref in refs_by_task.items()}
    ended = store.guards.ended(attempts)
    return [ref for task, ref in refs_by_task.items() if task in ended]


def _handle_lost(app: Celery, store: PipelineStore, ref: Ref) -> Outbox:
    """Suspect, restart or fail a step that no process will report. Return steps to publish."""
    word = store.lost(ref)
    if word == "again":
        text = "Pipeline %s: the worker of step %d is gone, it is started anew"
        logger.warning(text, ref.run, ref.step)
        return {ref.step: (ref.round + 1, 0)}
    if word == "dead":
        text = "Pipeline %s: the worker of step %d is gone, and it may not run again"
        logger.warning(text, ref.run, ref.step)
        conclude(app, store, ref, "FAILED", LOST)
    return {}


def sweeper(app: Celery, leading: Callable[[], bool]) -> Ticker:
    """Return the thread that sweeps in the leading beat.

    It shares nothing with the beat's own loop.
    """
    failure = "beat: cannot sweep the pipelines"
    return Ticker("redbeat-lite-sweeper", lambda: PERIOD, lambda: leading() and sweep(app), failure)
