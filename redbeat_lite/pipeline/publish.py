"""What follows a change of a run: the end of a step is recorded, what the outbox then holds goes to the broker.

The ids come from the run, the stage, the step and its round, so whoever publishes, and however often, publishes the
same tasks; a copy is dropped where it arrives. Whoever dies in between leaves the outbox to the sweeper.
"""

from __future__ import annotations

from traceback import walk_tb
from typing import Any

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from celery.result import denied_join_result
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from ..broker import own_connection, own_options
from ..errors import CorruptEntry, describe, storable
from ..once.errors import LockUnavailable, OnceRejected
from ..once.store import DOWN
from . import params
from .definition import Definition, Step, task_id
from .keys import run_of, turn
from .recorded import tell_end
from .run_status import LIVE
from .store import Outbox, PipelineStore, Ref
from .task_notes import task_of

logger = get_logger(f"celery.{__name__}")

#: Message header: which step of which run this is. The params stay in Redis.
HEADER = "redbeat_pipeline"

#: What keeps a stage from being published for now: an outage, or the time limit of the step that ended the one before.
_LATER: tuple[type[Exception], ...] = (*DOWN, OperationalError, LockUnavailable, SoftTimeLimitExceeded)

#: Why a step failed whose worker died, where its task allows no second run.
LOST = "its worker is gone, and the step may not run again"

#: Runs of one entry that may wait for their turn; one more is left out.
MAX_WAITING = 100

#: Longest reason that is kept, in characters.
_MAX_ERROR = 2_000


def dispatch(app: Celery, store: PipelineStore, run_id: str, outbox: Outbox) -> None:
    """Publish these steps of a run and take them out of its outbox.

    What the broker does not take stays in the outbox, with a warning; a step that cannot be published at all ends the
    run.

    Raises:
        redis.exceptions.RedisError: the server does not answer; the sweeper repeats what is left.
    """
    if not outbox:
        return
    definition = store.definition(run_id)
    if definition is None:
        return
    stage = definition.stage_of(next(iter(outbox)))
    refs = [Ref(run_id, number, stage, round_, attempt) for number, (round_, attempt) in outbox.items()]
    if stage and not _set_params(app, store, definition, refs[0]):
        return
    steps = definition.steps
    sent: Outbox = {}
    try:
        for ref in refs:
            try:
                _publish(app, definition, steps[ref.step], ref)
            except _LATER as exc:
                logger.warning("Pipeline %s: cannot publish its steps, trying again later: %s", run_id, describe(exc))
                return
            except OnceRejected as exc:
                conclude(app, store, ref, "FAILED", f"was not run: {exc}")
                return
            except Exception as exc:
                if _has_lost_channel(exc):
                    logger.warning("Pipeline %s: its broker was lost, trying again later", run_id)
                    return
                # A router or a serializer may raise anything, and would again.
                logger.exception("Pipeline %s: step %d cannot be published", run_id, ref.step)
                conclude(app, store, ref, "FAILED", f"cannot be published: {describe(exc)}")
                return
            sent[ref.step] = outbox[ref.step]
    finally:
        if sent:
            store.sent(run_id, sent)


def _has_lost_channel(exc: Exception) -> bool:
    """Return whether kombu went on with a closed channel, as it does after a loss of its connection while it declares
    a queue."""
    frames = [frame for frame, _ in walk_tb(exc.__traceback__)]
    module = str(frames[-1].f_globals.get("__name__"))
    return isinstance(exc, AttributeError) and module.startswith("kombu.transport.")


def _set_params(app: Celery, store: PipelineStore, definition: Definition, first: Ref) -> bool:
    """Merge what the stage of this step begins with; false where that is lost, which ends the run."""
    before = first.stage - 1
    own, *found = store.results(first.run, (first.stage, before), definition.numbers(before))
    if own is not None:
        return True  # Somebody else was faster, or died since; those of the stage before may be gone by now.
    try:
        merged = params.merge(found)
    except CorruptEntry as exc:
        conclude(app, store, first, "FAILED", f"its params cannot be read: {exc}")
        return False
    store.set_params(first.run, definition, first.stage, merged)
    return True


def conclude(app: Celery, store: PipelineStore, ref: Ref, outcome: str, text: str) -> str:
    """Record how a step ended, and do what follows: publish the next stage, revoke siblings.

    Returns the word of ``pipeline/complete.lua``.
    """
    done = store.complete(ref, outcome, storable(text)[:_MAX_ERROR] if outcome != "SUCCEEDED" else text)
    if done.word == "stale":
        logger.info("Pipeline %s: step %d had been taken over by another copy", ref.run, ref.step)
    elif done.over:
        logger.info("Pipeline %s ended: %s", ref.run, done.state)
    try:
        if done.revoke:
            revoke(app, store, ref.run, done.revoke)
        if done.over:
            over(app, store, ref.run)
        dispatch(app, store, ref.run, done.outbox)
    except _LATER as exc:
        # The step has ended, whatever becomes of the next ones.
        logger.warning("Pipeline %s: cannot go on, leaving it to the sweeper: %s", ref.run, describe(exc))
    return done.word


def revoke(app: Celery, store: PipelineStore, run_id: str, task_ids: list[str]) -> None:
    """End the running siblings of a step that failed."""
    app.control.revoke(task_ids, terminate=True, connection=own_connection())
    store.revoked(run_id)


def over(app: Celery, store: PipelineStore, run_id: str) -> None:
    """What follows from the end of a run: it is recorded among those of its entry, the next one of that has its turn,
    and the sweeper need not look."""
    state, entry, resumed = store.fields(run_id, "state", "entry", "resumed")
    if state in LIVE:
        return  # It goes on: who resumed it has done this first.
    if entry:
        tell_end(store, run_id)
        pass_on(app, store, entry, turn(run_id, int(resumed or 0)))
    store.index.ended(run_id)
    if store.fields(run_id, "state")[0] in LIVE:
        store.index.reopen(run_id)  # As it was resumed just now.


def stand_in_line(app: Celery, store: PipelineStore, run_id: str, entry: str, resumed: int) -> str:
    """Have a run stand in the line of its entry; returns why it cannot, or nothing."""
    definition = store.definition(run_id)
    wait = definition is not None and definition.overlap == "wait"
    pass_on(app, store, entry)  # Who has ended there, and has told nobody, makes room.
    joined, before = store.line(entry, turn(run_id, resumed), most=1 + MAX_WAITING * wait)
    if joined:
        return ""
    return f"run {run_of(before)} of its entry has not ended" + f", and {MAX_WAITING} wait" * wait


def take_turn(app: Celery, store: PipelineStore, run_id: str) -> str:
    """Have a run that waits for its turn stand in line, and begin if it is the first; or end it, left out: why."""
    entry, resumed = store.fields(run_id, "entry", "resumed")
    if not entry:
        return ""
    why = stand_in_line(app, store, run_id, entry, int(resumed or 0))
    if not why:
        pass_on(app, store, entry)
        return ""
    logger.info("Pipeline %s is left out: %s", run_id, why)
    ended, _ = store.cancel(run_id, f"left out: {why}")
    if ended != 1:
        return ""  # Its turn has come meanwhile, by somebody else who starts it.
    over(app, store, run_id)
    return why


def pass_on(app: Celery, store: PipelineStore, entry: str, gone: str = "") -> None:
    """Let the first run in the line of an entry begin, unless it has; ``gone`` is the turn of one that has ended."""
    while first := store.line(entry, gone=gone)[1]:
        run_id, word, outbox = store.go(first)
        if word == "run":
            dispatch(app, store, run_id, outbox)
            return
        gone = first


def _publish(app: Celery, definition: Definition, step: Step, ref: Ref) -> None:
    header: dict[str, Any] = {
        "run": ref.run, "step": ref.step, "stage": ref.stage, "round": ref.round, "name": step.name,
        "process": definition.data_of(ref.stage),
    }  # fmt: skip
    options = dict(step.options)
    options["headers"] = {**(options.get("headers") or {}), HEADER: header}
    options |= {"task_id": task_id(ref.run, ref.stage, ref.step, ref.round), **own_options()}
    if ref.attempt:
        options["retries"] = ref.attempt
    # The body gets the params in place of the run's id.
    args = (ref.run, *step.args)
    task = task_of(app, step, options)
    once = task.once_policy
    if once is not None and once.scope == "queue" and (options.get("on_conflict") or once.on_conflict) == "skip":
        # A call that is skipped looks like one that was published, and nothing would ever be heard of its step.
        options["on_conflict"] = "raise"
    # A step publishes the next stage from within its own task, and is nobody's parent for that.
    with denied_join_result():
        task.apply_async(args, dict(step.kwargs), add_to_parent=False, **options)
