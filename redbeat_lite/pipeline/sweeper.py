"""Sweeper of pipelines: does what is left to do for a run.

Each process that has changed a run reconciles it: the process publishes the next steps, or records
the end of the run and starts the next run of its entry. A process may die before it has done so.
So the sweeper of the leading beat reconciles every run that has not ended, every few seconds. Two
processes may reconcile one run, because they publish the same tasks under the same ids, and workers
drop the copies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from .._base.celery_app import own_connection
from .._base.errors import RedbeatError
from .._base.text import describe, storable, text_of
from .._base.threads import Ticker
from ..entries.run import NESTING, Attempt, Fate, Outcome
from ..once.errors import LockUnavailable
from ..store.connections import FAULTS
from ..store.redis_values import server_ms, texts
from .definition import Definition, Ref, decode_cached, merge_params
from .pipeline_keys import turn
from .pipeline_store import Check, PipelineStore, store_of
from .publish import publish
from .run_status import LIVE, RunStatus, State, read_status

logger = get_logger(f"celery.{__name__}")

#: Errors after which the sweeper does the rest: an outage, or the time limit of the step that
#: publishes the next stage.
LATER: tuple[type[Exception], ...] = (
    *FAULTS,
    OperationalError,
    LockUnavailable,
    SoftTimeLimitExceeded,
)

#: Error of a step whose worker died, if its task allows no second run.
LOST = "its worker is gone, and the step may not run again"

#: Maximum number of runs of one entry that wait for their turn. Further ones are left out.
MAX_WAITING = 100

#: Maximum number of runs that one sweep checks. The next sweep checks the remaining runs.
LIMIT = 1_000

#: Seconds between two sweeps of the leading beat.
PERIOD = 2.0

#: Maximum number of ms from the due time of a message until the sweeper publishes it. The sweeper
#: may need two checks of the run. Each may come as late as ``PipelineStore.check_period`` plus
#: ``PERIOD``, so both take at most 24 s. After an outage of the server, a beat needs up to 6 s more
#: to lead again.
LATE_MS = 30_000

#: Minimum ms from the first suspicion until a worker counts as dead. The script adds the time
#: between two signs of life of the step.
SUSPICION_MS = 2_000

#: Maximum number of ms until a message that no worker has begun is published again.
_RESEND_MAX_MS = 3_600_000

#: Maximum number of characters of an error.
_MAX_ERROR = 2_000

#: State of an ended run -> its outcome in the record of runs.
_OUTCOMES: dict[State, Outcome] = {
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.ABORTED: "revoked",
}


# -- entrances -------------------------------------------------------------------------------------


def sweep(app: Celery) -> int:
    """Check each run that is due for a check once, and return the number of these runs.

    Any number of processes may sweep at the same time. The leading beat sweeps every two seconds;
    call this function yourself if there is no beat.

    Raises:
        redis.exceptions.RedisError: the server does not answer.
    """
    store = store_of(app)
    now = server_ms(store.client)
    due = texts(store.client.zrangebyscore(store.open, "-inf", now, start=0, num=LIMIT))
    for member in due:
        # Postpone the next check first. If this run kills its sweeper, no other sweeper checks the
        # run at once.
        store.check_later(member)
        _, _, run_id = member.partition(":")
        try:
            if reconcile(store, run_id) not in LIVE:
                # The run has ended, or the process that was to start or to resume it died before.
                store.client.zrem(store.open, member)
        except Exception as exc:  # noqa: BLE001 - one run must not stop the others
            # If the error is no outage, log its traceback, too.
            log = logger.warning if isinstance(exc, LATER) else logger.exception
            log("Pipeline %s cannot be swept; looking at it again later: %s", run_id, text_of(exc))
    return len(due)


def sweeper(app: Celery, is_leading: Callable[[], bool]) -> Ticker:
    """Return the thread that sweeps while this beat leads. The beat's loop does not wait for it."""
    # Text of the log line if a sweep fails.
    failure = "beat: cannot sweep the pipelines"
    return Ticker(
        "redbeat-lite-sweeper", lambda: PERIOD, lambda: is_leading() and sweep(app), failure
    )


def conclude(store: PipelineStore, ref: Ref, outcome: str, result: str) -> None:
    """Record the end of a step, and go on with its run.

    Parameters:
        outcome: ``"SUCCEEDED"``, ``"FAILED"`` or ``"REVOKED"``.
        result: the result of a step that succeeded, as JSON; otherwise the error.
    """
    if outcome != "SUCCEEDED":
        result = storable(result)[:_MAX_ERROR]
    word, due = store.complete(ref, outcome, result)
    if word == "stale":
        logger.info("Pipeline %s: step %d had been taken over by another copy", ref.run, ref.step)
    if word == "next":
        go_on(store, ref.run, due)


def go_on(store: PipelineStore, run_id: str, due: Sequence[Ref] = ()) -> None:
    """Go on with a run after a change of it.

    An error in ``LATER`` is logged, because the sweeper does the rest.

    Parameters:
        due: the steps to publish, if the script of the change has returned them; otherwise the run
            is reconciled.
    """
    try:
        if due:
            dispatch(store, due)
        else:
            reconcile(store, run_id)
    except LATER as exc:
        logger.warning(
            "Pipeline %s: cannot go on, leaving it to the sweeper: %s", run_id, describe(exc)
        )


def reconcile(store: PipelineStore, run_id: str, turn: str = "") -> str:
    """Do what is left to do for a run, and return its state.

    Parameters:
        turn: as for :meth:`PipelineStore.check`.

    Raises:
        Exception: one of ``LATER``: the server or the broker does not answer.
    """
    check = store.check(run_id, turn)
    if check.state == State.WAITING:
        _take_turn(store, run_id)
    elif check.state == State.RUNNING:
        _repair_steps(store, run_id, check)
    elif check.state:
        _finish(store, run_id, check.running)
    return check.state


# -- steps -----------------------------------------------------------------------------------------


def _repair_steps(store: PipelineStore, run_id: str, check: Check) -> None:
    """Restart or fail the lost steps of a run that has not ended, and publish those that wait."""
    # The guard's record of a task, which its worker renews, says whether the task still runs.
    records = store.guards.records([ref.task_id for ref in [*check.due, *check.running]])
    # If the guard says that an attempt has ended, and the step still waits, the worker died before
    # it recorded the outcome. Another message of the same attempt is no help, because the guard
    # would drop it.
    lost = [ref for ref in check.due if records[ref.task_id].has_ended(ref.attempt)]
    lost += [ref for ref in check.running if not records[ref.task_id].is_alive]
    changes = [_restart_or_fail(store, ref, records[ref.task_id].until_ms) for ref in lost]
    if any(changes):
        # A restarted step must be published, and a failed one has ended the run. So check again.
        reconcile(store, run_id)
    else:
        dispatch(store, [ref for ref in check.due if ref not in lost])


def _restart_or_fail(store: PipelineStore, ref: Ref, until_ms: float) -> bool:
    """Restart or fail a step whose worker is gone. The first call only notes the suspicion.

    Parameters:
        until_ms: epoch ms at which the guard's record of the step should have been renewed.

    Returns:
        whether the step waits to be published in its next round, or has failed.
    """
    verdict = store.run("pipeline/lost", ref.run, ref, until_ms=until_ms, patience_ms=SUSPICION_MS)
    # The verdict is "suspect" until the worker has had the time to renew its record, and "stale" if
    # the step is in another state or round by now.
    if verdict not in (b"again", b"dead"):
        return False
    logger.warning("Pipeline %s: the worker of step %d is gone", ref.run, ref.step)
    if verdict == b"dead":
        store.complete(ref, "FAILED", LOST)
    return True


def dispatch(store: PipelineStore, due: Sequence[Ref]) -> None:
    """Publish steps of a run, and note that they are published.

    If a step can never be published, the run fails.

    Raises:
        Exception: one of ``LATER``: the server or the broker does not answer. The steps that are
            not noted still wait to be published.
    """
    if not due:
        return
    ref = due[0]
    stored = store.client.hget(store.keys(ref.run).run, "definition")
    if stored is None:
        return  # The record of the run has expired.
    definition = decode_cached(stored)
    try:
        # All steps in ``due`` are of one stage, so they have the same params.
        _set_params(store, definition, ref)
        for ref in due:
            publish(store.app, definition, ref)
            # If no worker begins the step, it is published again: first after ``resend_ms``, then
            # after twice as long each time.
            due_ms = min(store.resend_ms * 2**ref.tries, _RESEND_MAX_MS)
            store.change(ref, due_ms, tries=ref.tries + 1)
    except LATER:
        raise
    except Exception as exc:
        # If kombu loses its connection while it declares a queue, it closes the channel, and then
        # uses it again. It reads the attribute ``client`` of ``None``.
        if isinstance(exc, AttributeError) and exc.name == "client" and exc.obj is None:
            raise OperationalError("the connection to the broker is lost") from exc
        if isinstance(exc, RedbeatError):
            # The once-lock is taken and the policy says "raise", or the params are lost.
            why = text_of(exc)
            traceback = None
        else:
            # A router or a serializer has raised an error, and would raise it again.
            why = describe(exc)
            traceback = exc
        failure = "Pipeline %s: step %d cannot be published: %s"
        logger.warning(failure, ref.run, ref.step, why, exc_info=traceback)
        conclude(store, ref, "FAILED", f"cannot be published: {why}")


def _set_params(store: PipelineStore, definition: Definition, ref: Ref) -> None:
    """Store the params of a step's stage: those of the stage before, merged with its results.

    Raises:
        CorruptEntry: the params or a result are lost, or cannot be read.
    """
    stage = definition.steps[ref.step].stage
    if stage == 0:
        return  # The start of the run has stored the params.
    before = f"stage:{stage - 1}"
    names = [f"stage:{stage}", before]
    names += [
        str(number) for number, step in enumerate(definition.steps) if step.stage == stage - 1
    ]
    key = store.keys(ref.run).results
    # ``own`` has the params of this stage. ``parts`` has the params of the stage before, and then
    # the results of that stage.
    own, *parts = store.client.hmget(key, names)
    # If another process has stored the params of this stage already, do not merge again, because
    # the params of the stage before may be deleted by now.
    if own is None:
        store.client.hset(key, f"stage:{stage}", merge_params(parts))
        if stage > 1:  # The params of the whole run start from those of the first stage.
            store.client.hdel(key, before)


# -- the end ---------------------------------------------------------------------------------------


def _finish(store: PipelineStore, run_id: str, to_kill: Sequence[Ref]) -> None:
    """Do what has to follow the end of a run.

    Running steps are killed if that is wanted. The end is recorded in the history of the run's
    entry, and the entry's next run is started. After this, the sweeper does not check the run any
    more.
    """
    if to_kill:
        task_ids = [ref.task_id for ref in to_kill]
        store.app.control.revoke(task_ids, terminate=True, connection=own_connection())
    run, steps = store.read(run_id)
    if run.get("state") in LIVE:
        return  # Another process has called this function, and then has resumed the run.
    resumes = int(run.get("resumed", 0))
    if run.get("entry"):
        if run["attempt"]:  # It is empty if runs of the entry are not recorded.
            status = read_status(run_id, run, steps)
            store.runs.record([_fate_of(status, run, resumes)])
        start_next(store, run["entry"], ended=turn(run_id, resumes))
    logger.info("Pipeline %s ended: %s", run_id, run.get("state"))
    store.move_to_ended(run_id, resumes)


def _fate_of(status: RunStatus, run: Mapping[str, str], resumes: int) -> Fate:
    """Return the end of a run as a fate (the end of an attempt), for the record of runs.

    Parameters:
        run: fields of the ended run.
        resumes: how often it was resumed.
    """
    # The record keeps the outcome with the highest attempt number. So give this end a higher number
    # than that of the task that started the run, and of the ends before each resume. NESTING is
    # larger than any count of retries.
    start = Attempt(*json.loads(run["attempt"]))
    attempt = start._replace(number=start.number + NESTING * (1 + resumes))
    error = status.why or ""
    if status.state is State.ABORTED and error:
        # Only a run that was left out is aborted with an error. A cancelled one has none.
        return Fate(attempt, "left out", error=error)
    # ``since`` is the instant at which the run's turn came, or at which it was resumed. A fate has
    # its start by the monotonic clock. So compute the start as if the run had ended just now.
    seconds = (int(run["ended"]) - int(run["since"])) / 1000
    return Fate(attempt, _OUTCOMES[status.state], time.monotonic() - seconds, seconds, error=error)


# -- turns -----------------------------------------------------------------------------------------


def _take_turn(store: PipelineStore, run_id: str) -> None:
    """Start a waiting run if its turn has come. End it if it cannot join the line of its entry."""
    run, _ = store.read(run_id)
    overlap = run.get("overlap", "allow")
    resumes = int(run.get("resumed", 0))
    member = turn(run_id, resumes)
    if overlap == "allow":
        _start(store, member)
        return
    if resumes:
        # No other run had its turn when the run was resumed. If one has it by now, the resumed run
        # waits, because it must not be left out: somebody has asked for it.
        overlap = "wait"
    why = join_line(store, run["entry"], member, overlap)
    if not why:
        start_next(store, run["entry"])  # The first run in line may be this one.
        return
    logger.info("Pipeline %s is left out: %s", run_id, why)
    # The run is not ended if its turn came meanwhile, and another process started it.
    store.run("pipeline/cancel", run_id, why=f"left out: {why}", terminate=0)
    reconcile(store, run_id)


def join_line(store: PipelineStore, entry: str, member: str, overlap: str) -> str:
    """Add a run to the waiting line of its entry.

    Parameters:
        member: member of the line that stands for the run; empty: only ask whether the line has
            room.
        overlap: policy of the run: ``"skip"`` or ``"wait"``.

    Returns:
        the reason why the run cannot join; empty if it has joined, or can join.
    """
    # If the process that ended a run died, that run may still be the first in the line. This call
    # removes it, and so makes room.
    start_next(store, entry)
    # The first place of the line belongs to the run that is under way. If runs may not wait, there
    # is no other place.
    most = 1
    if overlap == "wait":
        most += MAX_WAITING
    has_room, first = store.change_line(entry, add=member, most=most)
    if has_room:
        return ""
    _, _, first_id = first.partition(":")
    reason = f"run {first_id} of its entry has not ended"
    return f"{reason}, and {most - 1} wait" if most > 1 else reason


def start_next(store: PipelineStore, entry: str, ended: str = "") -> None:
    """Start the first run in the waiting line of an entry, unless it runs already.

    Parameters:
        ended: member of the line that stands for a run that has ended, so that it is removed from
            the line; empty: none.
    """
    while True:
        # Remove ``ended``, and read which run is the first afterwards.
        _, first = store.change_line(entry, remove=ended)
        # The first run cannot start if it has ended, was resumed after it had joined the line, or
        # does not exist any more. Then the next pass of the loop removes its member, and tries the
        # run after it.
        if not first:
            return
        if _start(store, first) == State.RUNNING:
            # A fail-over may have undone the end of this run. Then it is not in the list of unended
            # runs any more, so add it, or the sweeper would never end it.
            store.client.zadd(store.open, {first: 0}, nx=True)
            return
        ended = first


def _start(store: PipelineStore, member: str) -> str:
    """Start the run of a member of a line, whose turn has come, and return its state."""
    resumed, _, run_id = member.partition(":")
    return reconcile(store, run_id, resumed)
