"""``PipelineRun``: one run of a pipeline, usable from any process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any
from uuid import UUID

from celery import Celery
from celery.utils.log import get_logger
from redis.exceptions import NoPermissionError, ResponseError

from .._base.actors import who
from .._base.errors import ConfigurationError, CorruptEntry, InvalidEntry, RedbeatError
from .._base.fields import checked_kind, length, whole
from .._base.json_values import dumps
from .._base.public import public
from .._base.text import describe, is_short_text, storable, text_of
from .._base.times import Duration
from ..entries.changes import Action, line_of
from ..store.connections import FAULTS, UNREACHABLE
from ..store.keys import Keys
from ..store.redis_values import UNREADABLE, text, texts
from ..store.scripts import Scripts
from ..store.transact import record_change
from .definition import MAX_STEPS, Definition, decode_params, merge_params
from .pipeline_keys import turn
from .pipeline_store import PipelineStore, store_of
from .run_status import BRIEF, LIVE, RunStatus, State, brief_status, read_status
from .sweeper import go_on, join_line, reconcile

logger = get_logger(f"celery.{__name__}")

#: Seconds within which the server must create a run. After that, the sweeper checks the run, and
#: takes it off the list if it does not exist.
_CREATION = 10.0

#: Note for the record of changes.
_NOTE = checked_kind("TEXT", "text", lambda value: isinstance(value, str))

#: Seconds between two polls of :meth:`PipelineRun.wait`.
_POLL = 0.2

#: Errors that reading a record raises if another program has overwritten it.
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
    state = create(store, run.id, definition, entry, attempt)
    if state == "gone":
        raise PipelineNotFound(
            f"pipeline run {run.id!r} has ended and its record is gone; it is not run again"
        )
    if state in LIVE:
        # Put the run on the sweeper's list once more. A sweeper that looked for the run before it
        # was stored may have taken it off the list.
        store.check_later(turn(run.id, 0))
        go_on(store, run.id)
    return run


def create(
    store: PipelineStore, run_id: str, definition: Definition, entry: str = "", attempt: str = ""
) -> str:
    """Create a run that waits for its turn, and return its state, or ``"gone"``.

    A run that exists is left unchanged.
    """
    # Put the run on the sweeper's list before it exists. If this process dies right after the
    # script, the sweeper finds the run there. At ``until_ms`` a sweeper that finds no run takes it
    # off the list, so the server must not create the run after that.
    until_ms = store.check_later(turn(run_id, 0), _CREATION)
    deadline = definition.deadline
    word = store.run(
        "pipeline/start",
        run_id,
        # The params have a field of their own, so that publishing does not read them.
        definition=definition.but(params={}).encode(),
        params=dumps(definition.params),
        ends=dumps(list(accumulate(map(len, definition.names())))),
        ttl_ms=round(definition.ttl * 1000),
        revoke_siblings=int(definition.revoke_siblings),
        # Without a limit, all steps of a stage may be published.
        most=definition.at_once or MAX_STEPS,
        deadline_ms=None if deadline is None else round(deadline * 1000),
        entry=entry,
        attempt=attempt,
        # Only runs of an entry wait for each other.
        overlap=definition.overlap if entry else "allow",
        until_ms=until_ms,
    )
    return text(word)


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
        last = max(limit, _LEAST_READ) - 1
        pipe = store.client.pipeline(transaction=False)
        pipe.zrange(store.open, 0, last)
        pipe.zrevrange(store.ended, 0, last)
        unended, ended = pipe.execute()
        # A turn is ``<resumed>:<run id>``. A run is in both lists while it is moved, or if it was
        # resumed. So drop duplicates.
        turns = [member.partition(":")[2] for member in texts(unended)]
        ids = list(dict.fromkeys([*turns, *texts(ended)]))
        for run_id in ids:
            pipe.hmget(store.keys(run_id).run, BRIEF)
        runs = []
        for run_id, reply in zip(ids, pipe.execute(raise_on_error=False), strict=True):
            # A missing permission concerns all runs. Any other error concerns this run alone.
            if isinstance(reply, NoPermissionError):
                raise reply
            try:
                values = zip(BRIEF, reply, strict=True)
                fields = {name: text(value) for name, value in values if value}
                if fields:  # A record that has expired has no fields.
                    runs.append(brief_status(run_id, fields))
            except _GARBAGE as exc:
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
            status = read_status(self.id, run, steps)
        except _GARBAGE as exc:
            if isinstance(exc, (NoPermissionError, *UNREACHABLE)):
                raise  # The record itself may be sound.
            why = f"the record of pipeline run {self.id!r} cannot be read: {describe(exc)}"
            raise CorruptEntry(why) from exc
        if status.state is State.GONE and not store.client.exists(store.keys(self.id).gone):
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
        store = store_of(self.app)
        parts = store.client.hmget(store.keys(self.id).results, ["stage:0", *succeeded])
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
            whether this call ended the run; ``False`` if it had ended before. Also ``False``, with
            no line in the record of changes, if the connection broke after the server ended it.

        Raises:
            InvalidEntry: the note is no text.
            PipelineNotFound: no such run is known, or its record is gone.
        """
        store = store_of(self.app)
        _NOTE.read("note", note)
        # The result is 1 if this call has ended the run, 0 if it had ended, -1 if it is not known.
        result = store.run("pipeline/cancel", self.id, why=None, terminate=int(terminate))
        if result < 0:
            raise self._not_found()
        if result:
            _record_change(store, self.id, "pipeline cancelled", note)
        # Also reconcile a run that had ended before, because the process that ended it may have
        # died too early to do so.
        go_on(store, self.id)
        return bool(result)

    def resume(self, *, note: str = "") -> bool:
        """Resume a run that has failed or was cancelled, at the stage in which it ended.

        The steps of this stage that have not succeeded run under new task ids, and then the later
        stages. Results of succeeded steps stay, and running steps continue. The deadline counts
        from the resume. If runs of its entry may not overlap, the run waits for its turn.

        Parameters:
            note: the reason, for the record of changes.

        Returns:
            whether this call resumed the run; ``False`` if it runs already. Also ``False``, with no
            line in the record of changes, if the connection broke after the server resumed it.

        Raises:
            InvalidEntry: the note is no text.
            NotResumable: the run has succeeded; the server has lost its steps; a step of it may be
                about to be killed; or another run of its entry has not ended, and the pipeline says
                ``overlap="skip"``, or 100 runs wait.
            PipelineNotFound: no such run is known, or its record is gone.
            TimeoutError: the server was asked more than 10 s late, and has resumed nothing.
        """
        store = store_of(self.app)
        _NOTE.read("note", note)
        # Read the number of resumes before the status. If another process resumes the run in
        # between, the script resume.lua compares this old number and does nothing.
        run, _ = store.read(self.id)
        resumes = int(run.get("resumed", 0))
        status = self.status()
        if status.state is State.GONE:
            raise self._not_found()
        if status.state is State.SUCCEEDED:
            raise NotResumable(f"pipeline run {self.id!r} has succeeded")
        if not status.ended:
            return False
        # These steps still run. They go on, so the script does not let them run again.
        alive = [number for number, step in enumerate(status.steps) if step.state is State.RUNNING]
        # The process that ended the run may have died before it did what follows the end, such as
        # recording it. Do that now, because no process does it once the run is resumed.
        reconcile(store, self.id)
        if run.get("overlap", "allow") != "allow":
            # Ask whether the line of the entry has room. The run joins the line when it is resumed.
            # Before that, its place would be removed as that of an ended run.
            why_not = join_line(store, run["entry"], "", run["overlap"])
            if why_not:
                raise NotResumable(f"pipeline run {self.id!r} cannot go on: {why_not}")
        # Put the run on the sweeper's list before it is resumed; see :func:`create`.
        until_ms = store.check_later(turn(self.id, resumes + 1), _CREATION)
        word = store.run(
            "pipeline/resume", self.id, resumed=resumes, until_ms=until_ms, alive=alive
        )
        if word == b"lost":
            raise NotResumable(f"the server has lost the steps of pipeline run {self.id!r}")
        if word == b"killed":
            raise NotResumable(
                f"pipeline run {self.id!r} has a step that is being killed; wait for its end"
            )
        # Go on in any case. If the connection broke, the client has sent the script twice, and the
        # second call also answers "stale".
        go_on(store, self.id)
        if word == b"stale":
            return False  # Another process has resumed it first, or the first of two calls.
        _record_change(store, self.id, "pipeline resumed", note)
        return True

    def _not_found(self) -> PipelineNotFound:
        return PipelineNotFound(f"there is no pipeline run {self.id!r}")


def _log_unlisted(run_id: str, why: Exception) -> None:
    logger.warning("Pipeline %r cannot be listed: %s", run_id, describe(why))


def _record_change(store: PipelineStore, run_id: str, action: Action, note: str) -> None:
    """Write a line into the record of changes. If the server does not answer, log a warning.

    The script that edits the run cannot write this line, because in a cluster the keys of the run
    and of the record lie in different slots.
    """
    keys = Keys.of(store.runs.keys.prefix)
    line = line_of(who(), action, storable(note))
    try:
        record_change(Scripts(store.client), keys, line, [run_id])
    except FAULTS as exc:
        logger.warning(
            "Pipeline run %r: what was done is not in the record of changes: %s",
            run_id,
            text_of(exc),
        )
