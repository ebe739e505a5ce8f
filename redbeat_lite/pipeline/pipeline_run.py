"""``PipelineRun``: one run of a pipeline, usable from any process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from celery import Celery
from celery.utils.log import get_logger
from redis.exceptions import NoPermissionError, ResponseError

from .._base.actors import who
from .._base.errors import ConfigurationError, CorruptEntry, InvalidEntry, RedbeatError
from .._base.fields import length, whole
from .._base.public import public
from .._base.text import describe, is_short_text, text_of
from .._base.times import Duration
from ..entries.changes import Action, Line, line_of
from ..store.connections import FAULTS, UNREACHABLE
from ..store.keys import Keys
from ..store.redis_values import UNREADABLE, text
from ..store.scripts import Scripts
from ..store.transact import record_change
from . import run_status
from .definition import Definition, decode_params, encode_params, merge_params
from .pipeline_store import PipelineStore, store_of
from .publish import finish_run, join_line, rest_by_sweeper, take_turn
from .run_status import LIVE, RunStatus, State

logger = get_logger(f"celery.{__name__}")

#: Seconds between two polls of :meth:`PipelineRun.wait`.
_POLL = 0.2

#: Errors of a record that another program has overwritten.
_GARBAGE = (*UNREADABLE, ArithmeticError, AttributeError, IndexError, ResponseError)

#: Minimum number of unended runs, and also of ended ones, that :meth:`PipelineRun.brief` reads in
#: search of the states that the caller wants.
_LEAST_READ = 500


@public
class NotResumable(RedbeatError):
    """This run of a pipeline cannot be resumed; the text says why."""


@public
class PipelineNotFound(RedbeatError, LookupError):
    """There is no run of this id, and Redis does not remember an ended one."""


def begin(
    app: Celery, definition: Definition, run_id: str, entry: str = "", attempt: str = ""
) -> PipelineRun:
    """Start a run; see :meth:`redbeat_lite.Pipeline.start`.

    Parameters:
        entry: name of the entry that starts the run; empty: none.
        attempt: JSON of the attempt (:class:`redbeat_lite.entries.run.Attempt`) of the task that
            starts the run; empty if that attempt is not recorded.
    """
    if app.conf.task_always_eager:
        raise ConfigurationError("task_always_eager: a pipeline needs workers; set it to False")
    run = PipelineRun(app, run_id)
    store = store_of(app)
    params = encode_params(definition.params)
    state = store.start(run.id, definition, params, entry, attempt)
    if state == "gone":
        raise PipelineNotFound(
            f"pipeline run {run.id!r} has ended and its record is gone; it is not run again"
        )
    if state in LIVE:
        with rest_by_sweeper(run.id):
            take_turn(store, run.id)
    return run


@public
class PipelineRun:
    """A run of a pipeline.

    Making this object opens no connection, and does not check that the run exists.

    Parameters:
        app: the Celery app whose settings say where the runs are.
        run_id: id of the run.

    Raises:
        InvalidEntry: no run has such an id.
    """

    def __init__(self, app: Celery, run_id: str) -> None:
        written = str(run_id) if isinstance(run_id, (str, UUID)) else ""
        # Braces in a key would choose its place in a Redis cluster.
        if not is_short_text(written, 200) or "{" in written or "}" in written:
            raise InvalidEntry("run_id", "1 to 200 printable characters, no braces", run_id)
        self.app = app
        self.id = written

    def __repr__(self) -> str:
        return f"<PipelineRun {self.id}>"

    @classmethod
    def list(
        cls, app: Celery, states: Collection[State] = tuple(State), *, limit: int = 100
    ) -> Sequence[RunStatus]:
        """Return the status of runs, in the order of :meth:`brief`, with their steps.

        The call takes two round trips per run.

        Parameters:
            states: the states to include.
            limit: maximum number of runs.

        Raises:
            InvalidEntry: the limit is no whole number from 1.
        """
        limit = whole(1).read("limit", limit)
        runs = []
        for brief in cls.brief(app, states, limit=limit):
            try:
                run = cls(app, brief.id).status()
            except RedbeatError as exc:
                # The record of the run may be unreadable, or may have been deleted meanwhile.
                _log_unlisted(brief.id, exc)
                continue
            # The state may have changed since the brief status was read.
            if run.state in states:
                runs.append(run)
        return tuple(runs)

    @classmethod
    def brief(
        cls, app: Celery, states: Collection[State] = tuple(State), *, limit: int = 100
    ) -> Sequence[RunStatus]:
        """Return the status of runs without their steps, in two round trips.

        Unended runs come first, the latest start in front. Ended runs follow, the latest end in
        front.

        Parameters:
            states: the states to include.
            limit: maximum number of runs. The call searches at most ``limit`` unended runs and
                ``limit`` ended ones for these states; 500 of each if ``limit`` is less. A run whose
                record has expired is left out.
        """
        store = store_of(app)
        ids = store.latest_runs(max(limit, _LEAST_READ))
        pipe = store.client.pipeline(transaction=False)
        for run_id in ids:
            pipe.hmget(store.keys(run_id).run, run_status.BRIEF)
        runs = []
        for run_id, reply in zip(ids, pipe.execute(raise_on_error=False), strict=True):
            # A missing permission concerns all runs. Any other error concerns this run alone.
            if isinstance(reply, NoPermissionError):
                raise reply
            try:
                values = zip(run_status.BRIEF, reply, strict=True)
                fields = {name: text(value) for name, value in values if value}
                if fields:  # A record that has expired has no fields.
                    runs.append(run_status.brief(run_id, fields))
            except UNREADABLE as exc:
                # Another program may have written other values under these keys.
                _log_unlisted(run_id, exc)
        # The order is reversed. So unended runs, whose sort key begins with ``True``, come before
        # ended runs, and later runs before earlier ones.
        runs.sort(key=lambda run: (not run.ended, run.ended_at or run.created_at), reverse=True)
        return [run for run in runs if run.state in states][:limit]

    def status(self) -> RunStatus:
        """Return the status of the run: ``State.GONE`` if its record has expired since its end.

        Raises:
            PipelineNotFound: no such run is known.
            CorruptEntry: its record in Redis cannot be read.
        """
        store = store_of(self.app)
        try:
            run, steps = store.read(self.id)
            status = run_status.read(self.id, run, steps)
        except NoPermissionError:
            raise  # The user lacks a permission, and the record itself may be sound.
        except _GARBAGE as exc:
            why = f"the record of pipeline run {self.id!r} cannot be read: {describe(exc)}"
            raise CorruptEntry(why) from exc
        if status.state is State.GONE and not store.has_existed(self.id):
            raise self._not_found()
        running = [step.task_id for step in status.steps if step.state is State.RUNNING]
        if not status.ended or not running:
            return status
        # After the end of a run, no sweeper checks its steps. So check here whether a step that its
        # record shows as running has lost its worker. Only a step with a living worker still runs.
        records = store.guards.records(running)
        ended_steps = []
        for step in status.steps:
            if step.task_id in records and not records[step.task_id].is_alive:
                step = step._replace(state=State.ABORTED)
            ended_steps.append(step)
        return replace(status, steps=tuple(ended_steps))

    def params(self) -> dict[str, Any]:
        """Return the run's params so far: those of its start, merged with its steps' results.

        Only succeeded steps count. They are merged by stage, and in their order within a stage.

        Raises:
            PipelineNotFound: no such run is known, or its record is gone.
            CorruptEntry: its record in Redis cannot be read.
        """
        status = self.status()
        if status.state is State.GONE:
            raise self._not_found()
        succeeded = []
        for number, step in enumerate(status.steps):
            if step.state is State.SUCCEEDED:
                succeeded.append(str(number))
        # Begin with the params at the start of stage 0.
        parts = store_of(self.app).results(self.id, ["stage:0", *succeeded])
        return decode_params(merge_params(parts))

    def wait(
        self,
        timeout: Duration | None = None,
        progress: Callable[[RunStatus], None] | None = None,
    ) -> RunStatus:
        """Wait until the run has ended in any way, and return its status.

        The call goes on waiting while the server restarts.

        Parameters:
            timeout: longest wait: seconds, a timedelta or a text such as ``"5m"``; ``None``: for
                ever.
            progress: function that is called with the first status and with each changed one;
                :func:`progress_line` makes a line of a status.

        Raises:
            TimeoutError: the run has not ended in time.
            PipelineNotFound: no such run is known.
        """
        longest = math.inf if timeout is None else length().read("timeout", timeout)
        deadline = time.monotonic() + longest
        last = None
        while True:
            try:
                status = self.status()
            except UNREACHABLE as exc:
                logger.warning(
                    "Pipeline %s: cannot look at it, trying again: %s", self.id, text_of(exc)
                )
            else:
                if status != last:
                    last = status
                    if progress is not None:
                        progress(status)
                if status.ended:
                    return status
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"pipeline {self.id} has not ended within {longest:g} s")
            time.sleep(min(_POLL, left))

    def cancel(self, *, terminate: bool = False, note: str = "") -> bool:
        """End the run before its time: no further step starts.

        Parameters:
            terminate: also kill the running steps (``revoke(terminate=True)``). Otherwise they run
                to their end, without effect.
            note: the reason, for the record of changes.

        Returns:
            whether this call ended the run; ``False`` if it had ended before.

        Raises:
            InvalidEntry: the note is no text.
            PipelineNotFound: no such run is known, or its record is gone.
        """
        store = store_of(self.app)
        line = _change("pipeline cancelled", note)
        # The result is 1 if this call has ended the run, 0 if it had ended, -1 if it is not known.
        result = store.cancel(self.id, terminate=terminate)
        if result < 0:
            raise self._not_found()
        if result == 1:
            _record_change(store, self.id, line)
        # Do the following also for a run that had ended before, because the process that ended it
        # may have died too early to do it.
        with rest_by_sweeper(self.id):
            finish_run(store, self.id)
        return result == 1

    def resume(self, *, note: str = "") -> bool:
        """Resume a run that has failed or was cancelled, at the stage in which it ended.

        The steps of this stage that have not succeeded run under new task ids, and then the later
        stages. Results of succeeded steps stay, and running steps continue. The deadline counts
        from the resume. If runs of its entry may not overlap, the run waits for its turn.

        Parameters:
            note: the reason, for the record of changes.

        Returns:
            whether this call resumed the run; ``False`` if it runs already.

        Raises:
            InvalidEntry: the note is no text.
            NotResumable: the run has succeeded; the server has lost its steps; a step of it may be
                about to be killed; or another run of its entry has not ended, and the pipeline says
                ``overlap="skip"``.
            PipelineNotFound: no such run is known, or its record is gone.
        """
        store = store_of(self.app)
        line = _change("pipeline resumed", note)
        # Read the number of resumes before the status. If another process resumes the run in
        # between, the script resume.lua compares this old number and does nothing.
        names = ("resumed", "entry", "overlap", "revoke_siblings", "revoke")
        run = store.read_fields(self.id, *names)
        resumes = int(run["resumed"] or 0)
        status = self.status()
        if status.state is State.GONE:
            raise self._not_found()
        if status.state is State.SUCCEEDED:
            raise NotResumable(f"pipeline run {self.id!r} has succeeded")
        if not status.ended:
            return False
        if not store.has_steps(self.id):
            raise NotResumable(f"the server has lost the steps of pipeline run {self.id!r}")
        alive = []
        for number, step in enumerate(status.steps):
            if step.state is State.RUNNING:
                alive.append(number)
        # Running steps are killed by the option ``revoke_siblings`` of the pipeline, or by a call
        # of cancel().
        if alive and "1" in (run["revoke_siblings"], run["revoke"]):
            raise NotResumable(
                f"pipeline run {self.id!r} has a step that is being killed; wait for its end"
            )
        # The process that ended the run may have died before it called finish_run(). If the sweeper
        # called it after the resume, it would take the resumed run for the ended one.
        finish_run(store, self.id)
        if run["entry"] and run["overlap"] != "allow":
            # The runs of this entry wait for their turn in a line. The text that stands for this
            # run in the line has the number of its resumes, with this resume.
            why_not = join_line(store, self.id, run["entry"], resumes + 1, run["overlap"])
            if why_not:
                raise NotResumable(f"pipeline run {self.id!r} cannot go on: {why_not}")
        if not store.resume(self.id, resumes, alive):
            return False  # Another process has resumed it first.
        with rest_by_sweeper(self.id):
            take_turn(store, self.id)
        _record_change(store, self.id, line)
        return True

    def _not_found(self) -> PipelineNotFound:
        return PipelineNotFound(f"there is no pipeline run {self.id!r}")


def _log_unlisted(run_id: str, why: Exception) -> None:
    logger.warning("Pipeline %r cannot be listed: %s", run_id, describe(why))


def _change(action: Action, note: object) -> Line:
    """Return a line for the record of changes; raises InvalidEntry if the note is no text."""
    if not isinstance(note, str):
        raise InvalidEntry("note", "text", note)
    # UTF-8 cannot hold a lone surrogate, so replace it.
    return line_of(who(), action, note.encode("utf-8", "replace").decode())


def _record_change(store: PipelineStore, run_id: str, line: Line) -> None:
    """Write a line into the record of changes. If the server does not answer, log a warning.

    The script that edits the run cannot write this line, because in a cluster the keys of the run
    and of the record lie in different slots.
    """
    keys = Keys.of(store.runs.keys.prefix)
    try:
        record_change(Scripts(store.client), keys, line, [run_id])
    except FAULTS as exc:
        logger.warning(
            "Pipeline run %r: what was done is not in the record of changes: %s",
            run_id,
            text_of(exc),
        )
