"""The sweeper: no run waits for somebody who died.

It looks at every run that has not ended, now and then, and repeats what whoever should have done it did not do: publish
an outbox, publish again a message that does not begin, run again or give up a step whose worker is gone.
"""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery
from celery.utils.log import get_logger

from ..errors import text_of
from ..once.store import DOWN
from ..threads import Ticker
from .definition import task_id
from .publish import LOST, conclude, dispatch, over, revoke, take_turn
from .store import Outbox, PipelineStore, Ref, store_of

logger = get_logger(f"celery.{__name__}")

#: Most runs of one sweep; the rest is due at the next one.
LIMIT = 1_000

#: Seconds between two sweeps of the leading beat.
PERIOD = 2.0

#: ms after a message is due by which it is published: two looks at its run, each ``Index.period`` and ``PERIOD`` after
#: the one before it, that is 12 s at most, and six seconds for a beat that has to lead again as its server was away.
LATE_MS = 30_000


def sweep(app: Celery, *, limit: int = LIMIT) -> int:
    """Look once at every run that is due for a look, and return how many. Any number of processes may do so at once.

    The leading beat does it every two seconds; call it where there is no beat.

    Parameters:
        limit: how many runs at most.

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
            logger.warning("Pipeline %s cannot be swept; looking at it again later: %s", run_id, text_of(exc))
        except Exception:
            logger.exception("Pipeline %s cannot be swept; looking at it again later", run_id)
        store.index.look_again(run_id)
    return len(due)


def _look(app: Celery, store: PipelineStore, run_id: str) -> None:
    # First of all, so that a run which kills its sweeper does not kill every one at once.
    store.index.look_again(run_id)
    look = store.check(run_id)
    word, outbox, running = look[:3]
    if word == "over" and running:
        revoke(app, store, run_id, [each.task_id for each in running])
    if word == "gone":
        store.index.forget(run_id)
    elif word == "over":
        over(app, store, run_id)
    elif word == "wait":
        take_turn(app, store, run_id)
    if word != "run":
        return
    alive = store.guards.alive([each.task_id for each in running])
    for each in running:
        if each.suspect and alive[each.task_id]:
            store.lost(each.ref, lives=True)  # A later suspicion begins anew.
    lost = [each.ref for each in running if not alive[each.task_id]]
    for ref in [*lost, *_dropped(store, run_id, outbox)]:
        outbox.pop(ref.step, None)
        outbox.update(_lost(app, store, ref))
    dispatch(app, store, run_id, outbox)
    if look.entry:
        # The server may have lost its line. Should it have ended just now, whoever stands there next sees that.
        store.line(look.entry, look.turn, runs=True)


def _dropped(store: PipelineStore, run_id: str, outbox: Outbox) -> list[Ref]:
    """Steps that wait for a message which the guard would drop: it ran, and its outcome never came to be known."""
    definition = store.definition(run_id) if outbox else None
    if definition is None:
        return []
    refs = {
        task_id(run_id, definition.stage_of(step), step, round_): Ref(run_id, step, -1, round_, attempt)
        for step, (round_, attempt) in outbox.items()
    }
    over = store.guards.over({name: ref.attempt for name, ref in refs.items()})
    return [ref for name, ref in refs.items() if name in over]


def _lost(app: Celery, store: PipelineStore, ref: Ref) -> Outbox:
    """Deal with a step that nothing will be heard of; returns what is to be published because of it."""
    word = store.lost(ref)
    if word == "again":
        logger.warning("Pipeline %s: the worker of step %d is gone, it is started anew", ref.run, ref.step)
        return {ref.step: (ref.round + 1, 0)}
    if word == "dead":
        logger.warning("Pipeline %s: the worker of step %d is gone, and it may not run again", ref.run, ref.step)
        conclude(app, store, ref, "FAILED", LOST)
    return {}


def sweeper(app: Celery, leading: Callable[[], bool]) -> Ticker:
    """What sweeps in the leading beat, in a thread that shares nothing with the beat's own loop."""
    failure = "beat: cannot sweep the pipelines"
    return Ticker("redbeat-lite-sweeper", lambda: PERIOD, lambda: leading() and sweep(app), failure)
