"""Consequences of a change of a run: record ends, and publish the next steps.

The id of each message is derived from the run, the step and its round. So all publishers publish
the same tasks, however often, and workers drop the copies. If a process dies before it has
published the next steps, the sweeper publishes them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from celery.result import denied_join_result
from celery.utils.log import get_logger
from kombu.entity import Queue
from kombu.exceptions import OperationalError

from .._base.celery_app import own_connection, own_options
from .._base.errors import InvalidEntry, RedbeatError
from .._base.json_values import pack, unpack
from .._base.text import describe, storable, text_of
from ..entries.run import NESTING, Attempt, Fate, Outcome
from ..once.errors import LockUnavailable
from ..store.connections import FAULTS
from .definition import Definition, Ref, Step, merge_params, takes_name
from .pipeline_keys import run_of, turn
from .pipeline_store import PipelineStore
from .run_status import LIVE

logger = get_logger(f"celery.{__name__}")

#: Message header with the run and the step. The params stay in Redis.
HEADER = "redbeat_pipeline"

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

#: Maximum number of characters of an error.
_MAX_ERROR = 2_000

#: State of an ended run -> its outcome in the record of runs.
_OUTCOMES: dict[str, Outcome] = {
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "ABORTED": "revoked",
}


@contextmanager
def rest_by_sweeper(run_id: str) -> Iterator[None]:
    """Log an error after which the sweeper does the rest, instead of raising it."""
    try:
        yield
    except LATER as exc:
        logger.warning(
            "Pipeline %s: cannot go on, leaving it to the sweeper: %s", run_id, describe(exc)
        )


def dispatch(store: PipelineStore, due: Sequence[Ref]) -> None:
    """Publish steps of a run, and note that they are published.

    If a step can never be published, the run fails.

    Raises:
        Exception: one of ``LATER``: the server or the broker does not answer. The steps that are
            not noted still wait to be published.
    """
    if not due:
        return
    definition = store.definition(due[0].run)
    if definition is None:
        return  # The record of the run has expired.
    ref = due[0]
    # All of these steps belong to the current stage.
    stage = definition.steps[ref.step].stage
    try:
        if stage:  # For stage 0, the start of the run has stored the params.
            _set_params(store, definition, stage, ref.run)
        for ref in due:
            _publish(store.app, definition, ref)
            store.note_published(ref)
    except LATER:
        raise
    except Exception as exc:
        if _is_lost_channel(exc):
            raise OperationalError("the connection to the broker is lost") from exc
        if isinstance(exc, RedbeatError):
            # The once-lock is taken and the policy says "raise", or the params are lost.
            why = text_of(exc)
            traceback = None
        else:
            # A router or a serializer has raised an error, and would raise it again.
            why = describe(exc)
            traceback = exc
        text = "Pipeline %s: step %d cannot be published: %s"
        logger.warning(text, ref.run, ref.step, why, exc_info=traceback)
        conclude(store, ref, "FAILED", f"cannot be published: {why}")


def _is_lost_channel(exc: Exception) -> bool:
    """Return whether kombu has published over a channel without a connection.

    If kombu loses its connection while it declares a queue, it closes the channel and continues.
    The next use of the channel fails, because the attribute ``client`` of ``None`` is read.
    """
    return isinstance(exc, AttributeError) and exc.name == "client" and exc.obj is None


def _set_params(store: PipelineStore, definition: Definition, stage: int, run_id: str) -> None:
    """Store the params of a stage: those of the stage before, merged with its results.

    Raises:
        CorruptEntry: the params or a result are lost, or cannot be read.
    """
    steps = definition.numbers(stage - 1)
    # ``own`` has the params of this stage. ``parts`` has the params of the stage before, and then
    # the results of that stage.
    names = [f"stage:{stage}", f"stage:{stage - 1}", *map(str, steps)]
    own, *parts = store.results(run_id, names)
    # If another process has stored the params of this stage already, do not merge again, because
    # the params of the stage before may be deleted by now.
    if own is None:
        store.set_params(run_id, stage, merge_params(parts))


def conclude(store: PipelineStore, ref: Ref, outcome: str, text: str) -> None:
    """Record the end of a step. Then publish the next steps, or finish the run.

    Parameters:
        outcome: ``"SUCCEEDED"``, ``"FAILED"`` or ``"REVOKED"``.
        text: the result of a step that succeeded, as JSON; otherwise the error.
    """
    if outcome != "SUCCEEDED":
        text = storable(text)[:_MAX_ERROR]
    word, due = store.complete(ref, outcome, text)
    if word == "stale":
        logger.info("Pipeline %s: step %d had been taken over by another copy", ref.run, ref.step)
    # The end of the step is recorded, even if the next steps cannot be published.
    with rest_by_sweeper(ref.run):
        if word in _OUTCOMES:  # This end of a step has ended the run.
            logger.info("Pipeline %s ended: %s", ref.run, word)
            finish_run(store, ref.run)
        dispatch(store, due)


def finish_run(store: PipelineStore, run_id: str) -> None:
    """Do what has to follow the end of a run. A second call does no harm.

    Running steps are killed if that is wanted. The end is recorded in the history of the run's
    entry, and the entry's next run is started. After this, the sweeper does not check the run any
    more.
    """
    check = store.check(run_id)
    # Of a run that has ended, these are the steps to be killed.
    if check.running and check.state not in LIVE:
        task_ids = [ref.task_id for ref in check.running]
        store.app.control.revoke(task_ids, terminate=True, connection=own_connection())
    names = ("state", "entry", "resumed", "attempt", "since", "ended", "error_step", "error")
    run = store.read_fields(run_id, *names)
    if run["state"] in LIVE:
        return  # Another process has called this function, and then has resumed the run.
    if run["entry"]:
        # ``attempt`` is empty if runs of the entry are not recorded.
        if run["attempt"]:
            store.runs.record([_fate_of(store, run_id, run)])
        # turn() returns the member that stands for the run in the waiting line of the entry.
        start_next(store, run["entry"], ended=turn(run_id, int(run["resumed"] or 0)))
    store.move_to_ended(run_id)
    if store.read_fields(run_id, "state")["state"] in LIVE:
        # Another process has resumed the run between the two reads of its state. So put the run on
        # the list of unended runs again.
        store.check_later(run_id)


def _fate_of(store: PipelineStore, run_id: str, run: Mapping[str, str]) -> Fate:
    """Return the end of a run as a fate (the end of an attempt), for the record of runs.

    Parameters:
        run: fields of the ended run.
    """
    # The record keeps the outcome with the highest attempt number. So give this end a higher number
    # than that of the task that started the run, and of the ends before each resume. NESTING is
    # larger than any count of retries.
    start = Attempt(*json.loads(run["attempt"]))
    number = start.number + NESTING * (1 + int(run["resumed"] or 0))
    attempt = start._replace(number=number)
    error = run["error"]
    if run["state"] == "ABORTED" and error:
        # Only a run that was left out is aborted with an error. A cancelled one has none.
        return Fate(attempt, "left out", error=error)
    if run["error_step"]:
        definition = store.definition(run_id)
        if definition is not None:
            error = f"{definition.steps[int(run['error_step'])].name}: {error}"
    # ``since`` is the instant at which the run's turn came, or at which it was resumed. A fate has
    # its start by the monotonic clock. So compute the start as if the run had ended just now.
    seconds = (int(run["ended"] or 0) - int(run["since"] or 0)) / 1000
    return Fate(attempt, _OUTCOMES[run["state"]], time.monotonic() - seconds, seconds, error=error)


def join_line(store: PipelineStore, run_id: str, entry: str, resumed: int, overlap: str) -> str:
    """Add a run to the waiting line of its entry.

    Parameters:
        resumed: number of resumes of the run, including the one that this call prepares. The text
            that stands for the run in the line contains it.
        overlap: policy of the run: ``"skip"`` or ``"wait"``.

    Returns:
        the reason why the run cannot join; empty if it has joined.
    """
    may_wait = overlap == "wait"
    # If the process that ended a run died, that run may still be the first in the line. This call
    # removes it, and so makes room.
    start_next(store, entry)
    # The first place of the line belongs to the run that is under way. If runs may not wait, there
    # is no other place.
    most = 1 + MAX_WAITING if may_wait else 1
    joined, first = store.change_line(entry, add=turn(run_id, resumed), most=most)
    if joined:
        return ""
    reason = f"run {run_of(first)} of its entry has not ended"
    return f"{reason}, and {MAX_WAITING} wait" if may_wait else reason


def take_turn(store: PipelineStore, run_id: str) -> None:
    """Start a waiting run if its turn has come. End it if it cannot join the line of its entry."""
    run = store.read_fields(run_id, "entry", "resumed", "overlap")
    entry = run["entry"]
    resumes = int(run["resumed"] or 0)
    if not entry or run["overlap"] == "allow":
        # Only runs of an entry whose runs may not overlap wait for each other.
        _start_waiting(store, turn(run_id, resumes))
        return
    why = join_line(store, run_id, entry, resumes, run["overlap"])
    if not why:
        start_next(store, entry)  # The first run in line may be this one.
        return
    logger.info("Pipeline %s is left out: %s", run_id, why)
    # cancel() does not return 1 if the run's turn came meanwhile, and another process started it.
    if store.cancel(run_id, f"left out: {why}") == 1:
        finish_run(store, run_id)


def start_next(store: PipelineStore, entry: str, ended: str = "") -> None:
    """Start the first run in the waiting line of an entry. If it runs already, do nothing.

    Parameters:
        ended: member of the line that stands for a run that has ended, so that it is removed from
            the line; empty: none.
    """
    while True:
        # Remove ``ended``, and read which run is the first afterwards. The first value would say
        # whether a run was added, and this call adds none.
        _, first = store.change_line(entry, remove=ended)
        if not first or _start_waiting(store, first):
            return
        # Remove this member from the line in the next pass of the loop, and try the run after it.
        ended = first


def _start_waiting(store: PipelineStore, member: str) -> bool:
    """Start a run whose turn has come, and publish its first steps.

    Parameters:
        member: member that stands for the run in its line.

    Returns:
        ``False`` if the run has ended, was resumed since, or does not exist any more.
    """
    state, due = store.start_waiting(member)
    if state == "SUCCEEDED":
        # The run was resumed, and no step was left to run.
        finish_run(store, run_of(member))
    dispatch(store, due)
    return state == "RUNNING"


def _publish(app: Celery, definition: Definition, ref: Ref) -> None:
    """Publish the message of one step.

    Raises:
        OnceRejected: another task has the once-lock of the step.
        Exception: the broker does not answer, or a router or a serializer refuses the message.
    """
    step = definition.steps[ref.step]
    options = _options_of(definition, ref)
    # The body gets the params in place of the run's id.
    args: tuple[Any, ...] = (ref.run, *step.args)
    task = app.tasks.get(step.task)
    # Without this block, the result backend would subscribe to the result of each step.
    with denied_join_result():
        if task is None:
            named_options = _options_by_name(step, options)
            app.send_task(step.task, args, dict(step.kwargs), **named_options)
            return
        once = getattr(task, "once_policy", None)
        # With this scope, the call itself acquires the once-lock, and skips the task on a conflict.
        if once is not None and once.scope == "queue":
            on_conflict = options.get("on_conflict") or once.on_conflict
            if on_conflict == "skip":
                # A skipped call looks like a published one, and no worker would ever end its step.
                # The exception of "raise" ends it.
                options["on_conflict"] = "raise"
        if definition.process is not None:
            # Celery checks the number of arguments against the body, which takes the data, or the
            # data and the name.
            args = (ref.run, step.name) if takes_name(task.run) else (ref.run,)
        task.apply_async(args, dict(step.kwargs), **options)


def _options_of(definition: Definition, ref: Ref) -> dict[str, Any]:
    """Return the options of the message of one step, with the header that names the step."""
    step = definition.steps[ref.step]
    header = {
        "run": ref.run,
        "step": ref.step,
        "stage": step.stage,
        "round": ref.round,
        "name": step.name,
        "process": definition.data_of(step.stage),
    }
    # Inside a block of short_publish_timeout(), own_options() returns the block's connection.
    options: dict[str, Any] = {**step.options, **own_options()}
    options["headers"] = {**(options.get("headers") or {}), HEADER: header}
    options["task_id"] = ref.task_id
    # A step that publishes the next stage must not become the parent of the steps in that stage.
    options["add_to_parent"] = False
    # For a retry, this message replaces one that the broker did not accept or has lost.
    if ref.attempt:
        options["retries"] = ref.attempt
    return options


def _options_by_name(step: Step, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options to publish a step whose task is not registered in this process.

    Any process may publish a stage: the process that ended the stage before, or the beat. It may
    have another code base than the tasks of the stage.
    """
    merged = {**step.noted, **options}
    queue = merged.get("queue")
    if isinstance(queue, str):
        # Only the code base of the queue knows its settings, so the queue is not declared here.
        merged["queue"] = Queue(queue)  # type: ignore[no-untyped-call]
        merged["declare"] = []
    return merged


def task_values(app: Celery, name: str) -> dict[str, Any]:
    """Return the options of a task, for a process that publishes it and has not registered it.

    A queue or an exchange is stored by its name. An option that cannot be stored is left out.
    """
    task = app.tasks[name]
    options = {**task._get_exec_options(), "ignore_result": task.ignore_result}
    options = {option: value for option, value in options.items() if value is not None}
    # A router may raise anything. Ignore it here, because publishing will report it.
    with suppress(Exception):
        options = app.amqp.router.route({**options}, name, (), {}, task)
    stored: dict[str, Any] = {}
    for option, value in options.items():
        with suppress(InvalidEntry):
            # A queue or an exchange is an object with a name; other values have none.
            stored[option] = unpack(pack(getattr(value, "name", value), option))
    return stored
