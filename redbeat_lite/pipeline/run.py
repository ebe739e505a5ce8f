"""``PipelineRun``: one run of a pipeline, from anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from celery import Celery
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from redis.exceptions import NoPermissionError, ResponseError

from ..broker import own_connection
from ..durations import Duration
from ..errors import ConfigurationError, CorruptEntry, InvalidEntry, RedbeatError, text_of
from ..once.policy import check_seconds
from ..once.store import DOWN
from ..public import public
from ..storage.connections import UNREACHABLE
from ..storage.replies import text
from . import params, run_status
from .definition import Definition
from .errors import NotResumable, PipelineNotFound
from .publish import dispatch, over, stand_in_line, take_turn
from .recorded import line_by_hand, record
from .run_status import RunStatus, State
from .store import Outbox, PipelineStore, store_of

logger = get_logger(f"celery.{__name__}")

#: Seconds between two looks of :meth:`PipelineRun.wait`: at first, and at most.
_POLL = (0.05, 0.5)

#: Errors after which the sweeper cleans up instead.
_NOT_NOW: tuple[type[Exception], ...] = (*DOWN, OperationalError)

#: Runs, of those that have ended and of the others, that are looked at, at least.
_LOOKED_AT = 500


def begin(app: Celery, definition: Definition, run_id: str, entry: str = "", attempt: str = "") -> PipelineRun:
    """Begin a run, by an ``attempt`` of an ``entry`` where one starts it; see :meth:`redbeat_lite.Pipeline.start`."""
    if app.conf.task_always_eager:
        raise ConfigurationError("task_always_eager: a pipeline needs workers; set it to False")
    run, store = PipelineRun(app, run_id), store_of(app)
    word, outbox = store.start(run.id, definition, params.encode(definition.params), entry, attempt)
    if word == "gone":
        raise PipelineNotFound(f"pipeline run {run.id!r} has ended and its record is gone; it is not run again")
    _go_on(app, store, run.id, outbox, waits=word == "wait")
    return run


def _go_on(app: Celery, store: PipelineStore, run_id: str, outbox: Outbox, *, waits: bool) -> str:
    """Publish the outbox of a run, or have it wait for its turn among those of its entry; returns why it cannot."""
    try:
        if waits:
            return take_turn(app, store, run_id)
        dispatch(app, store, run_id, outbox)
    except DOWN as exc:
        logger.warning("Pipeline %s goes on; leaving its next steps to the sweeper: %s", run_id, exc)
    return ""


@public
class PipelineRun:
    """A run of a pipeline. Making one opens no connection and does not tell whether there is such a run.

    Parameters:
        app: the Celery app whose settings say where the runs are.
        run_id: of the run.

    Raises:
        InvalidEntry: no run has such an id.
    """

    def __init__(self, app: Celery, run_id: str) -> None:
        written = str(run_id) if isinstance(run_id, (str, UUID)) else ""
        if not 0 < len(written) <= 200 or not written.isprintable() or set(written) & set("{}"):
            raise InvalidEntry("run_id", "1 to 200 printable characters, no braces", run_id)
        self.app, self.id = app, written

    def __repr__(self) -> str:
        return f"<PipelineRun {self.id}>"

    @classmethod
    def list(cls, app: Celery, states: Collection[State] = tuple(State), *, limit: int = 100) -> Sequence[RunStatus]:
        """How the runs stand, as :meth:`brief` finds them. One round trip for each, two for one that waits.

        Parameters:
            states: that are wanted.
            limit: how many at most.

        Raises:
            InvalidEntry: the limit is no positive number.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidEntry("limit", "a number of runs, at least 1", limit)
        found = []
        for each in cls.brief(app, states, limit=limit):
            try:
                found.append(cls(app, each.id).status())
            except RedbeatError as exc:
                _unlisted(each.id, exc)
        return tuple(run for run in found if run.state in states)

    @classmethod
    def brief(cls, app: Celery, states: Collection[State] = tuple(State), *, limit: int = 100) -> Sequence[RunStatus]:
        """How the runs stand, without the steps: those that have not ended, the latest start in front; then those that
        have, the latest end in front. Two round trips for all of them.

        Parameters:
            states: that are wanted.
            limit: how many at most. So many runs that have not ended, and of the latest 10,000 that have the latest so
                many, are looked at, but 500 of each in any case; one whose record is gone is left out.
        """
        store, looked_at = store_of(app), max(limit, _LOOKED_AT)
        ids, pipe, found = store.index.latest(looked_at), store.client.pipeline(transaction=False), []
        for run_id in ids:
            pipe.hmget(store.keys(run_id).run, run_status.BRIEF)
        for run_id, reply in zip(ids, pipe.execute(raise_on_error=False), strict=True):
            if isinstance(reply, NoPermissionError):
                raise reply
            try:
                told = {name: text(value) for name, value in zip(run_status.BRIEF, reply, strict=True) if value}
                if told:
                    found.append(run_status.brief(run_id, told))
            except (TypeError, LookupError, ValueError, ArithmeticError) as exc:  # anything may lie there
                _unlisted(run_id, CorruptEntry(f"the record of pipeline run {run_id!r} cannot be read: {exc!r}"))
        found.sort(key=lambda run: (not run.ended, run.ended_at or run.created_at), reverse=True)
        return [run for run in found if run.state in states][:limit]

    def status(self) -> RunStatus:
        """How the run stands. ``State.GONE`` where it ended longer ago than its record lives.

        Raises:
            PipelineNotFound: nobody knows of such a run.
            CorruptEntry: what Redis holds for it cannot be read.
        """
        store = store_of(self.app)
        run, steps, gone = self._stored(store)
        if not run:
            if not gone:
                raise self._not_found()
            return RunStatus(self.id, State.GONE)
        found = run_status.read(self.id, run, steps, {})
        if found.state is State.WAITING and found.entry:
            first = store.first(found.entry)
            found = replace(found, waits_for=first if first != self.id else None)
        running = [step.task_id for step in found.steps if step.state is State.RUNNING]
        if not found.ended or not running:
            return found
        # Whoever still works for a run that has ended may have died since, and nobody looks after it any more.
        return run_status.read(self.id, run, steps, store.guards.alive(running))

    def params(self) -> dict[str, Any]:
        """The params so far: those of the start, and what the steps that succeeded have returned, merged in the order
        of the stages and of the steps within them.

        Raises:
            PipelineNotFound: nobody knows of such a run, or its record is gone.
            CorruptEntry: what Redis holds for it cannot be read.
        """
        store = store_of(self.app)
        run, steps, _ = self._stored(store)
        if not run:
            raise self._not_found()
        found = run_status.read(self.id, run, steps, {}).steps
        numbers = [number for number, step in enumerate(found) if step.state is State.SUCCEEDED]
        return params.decode(params.merge(store.results(self.id, (0,), numbers)))

    def _stored(self, store: PipelineStore) -> tuple[dict[str, str], str, str]:
        try:
            return store.read(self.id)
        except ResponseError as exc:
            if "WRONGTYPE" not in str(exc):
                raise
            raise CorruptEntry(f"the record of pipeline run {self.id!r} cannot be read: {exc}") from exc

    def wait(self, timeout: Duration | None = None, progress: Callable[[RunStatus], None] | None = None) -> RunStatus:
        """Wait until the run has ended, however it did, and return how. A server that restarts meanwhile is waited for.

        Parameters:
            timeout: to wait at most: seconds, a timedelta or a text such as ``"5m"``; ``None``: for ever.
            progress: called with the status at first and at every change; :func:`progress_line` makes a line of it.

        Raises:
            TimeoutError: it has not ended in time.
            PipelineNotFound: nobody knows of such a run.
        """
        longest = None if timeout is None else check_seconds("timeout", timeout, 0)
        deadline = None if longest is None else time.monotonic() + longest
        pause, seen = _POLL[0], None
        while True:
            try:
                found = self.status()
            except UNREACHABLE as exc:
                logger.warning("Pipeline %s: cannot look at it, trying again: %s", self.id, text_of(exc))
            else:
                if found != seen:
                    seen, pause = found, _POLL[0]
                    if progress is not None:
                        progress(found)
                if found.ended:
                    return found
            left = pause if deadline is None else min(pause, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"pipeline {self.id} has not ended within {longest:g} s")
            time.sleep(left)
            pause = min(pause * 1.5, _POLL[1])

    def cancel(self, *, terminate: bool = False, note: str = "") -> bool:
        """End the run before its time: nothing of it starts any more.

        Parameters:
            terminate: also kill what runs (``revoke(terminate=True)``); otherwise it runs to its end, for nothing.
            note: why, for the record of changes.

        Returns:
            whether this call ended it; ``False`` if it had ended.

        Raises:
            InvalidEntry: the note is no text.
            PipelineNotFound: nobody knows of such a run, or its record is gone.
        """
        store, line = store_of(self.app), line_by_hand("pipeline cancelled", note)
        result, running = store.cancel(self.id, terminate=terminate)
        if result < 0:
            raise self._not_found()
        if result == 1:
            record(store, self.id, line)
        try:
            if terminate and running:
                self.app.control.revoke(running, terminate=True, connection=own_connection())
            over(self.app, store, self.id)
        except _NOT_NOW as exc:
            # The run has ended already, so an error here would tell the caller the opposite.
            logger.warning("Pipeline %s is cancelled; the sweeper does the rest: %s", self.id, text_of(exc))
        return result == 1

    def resume(self, *, note: str = "") -> bool:
        """Go on with a run that has ended before its time, at the stage in which it did: its steps that have not
        succeeded run, under new task ids, and then the stages after it. What has succeeded keeps its results, and what
        still runs goes on. A deadline counts anew; a run of an entry waits for its turn, where these do not overlap.

        Parameters:
            note: why, for the record of changes.

        Returns:
            whether this call resumed it; ``False`` where it goes on already.

        Raises:
            InvalidEntry: the note is no text.
            NotResumable: it has succeeded; a step of it is being killed, and may be; another run of its entry has not
                ended, and the pipeline says ``overlap="skip"``.
            PipelineNotFound: nobody knows of such a run, or its record is gone.
        """
        store, line = store_of(self.app), line_by_hand("pipeline resumed", note)
        # First how often it was resumed: what is read after that is of this end, or the script sees that it is not.
        fields = store.fields(self.id, "resumed", "entry", "waits", "revoke_siblings", "revoke")
        found, resumed, entry = self.status(), int(fields[0] or 0), fields[1] or ""
        if found.state is State.GONE:
            raise self._not_found()
        if found.state is State.SUCCEEDED:
            raise NotResumable(f"pipeline run {self.id!r} has succeeded")
        if not found.ended:
            return False
        running = [step.task_id for step in found.steps if step.state is State.RUNNING]
        if running and "1" in fields[3:]:
            raise NotResumable(f"pipeline run {self.id!r} has a step that is being killed; wait for its end")
        over(self.app, store, self.id)  # Who ended it may not have come to that; later it would be of the wrong end.
        why = stand_in_line(self.app, store, self.id, entry, resumed + 1) if fields[2] == "1" else ""
        if not why:
            now, outbox = store.resume(self.id, resumed, running)
            if now == State.SUCCEEDED:
                over(self.app, store, self.id)
            why = _go_on(self.app, store, self.id, outbox, waits=now == State.WAITING)
            if now and not why:
                record(store, self.id, line)
        if why:
            raise NotResumable(f"pipeline run {self.id!r} cannot go on: {why}")
        return bool(now)

    def _not_found(self) -> PipelineNotFound:
        return PipelineNotFound(f"there is no pipeline run {self.id!r}")


def _unlisted(run_id: str, why: RedbeatError) -> None:
    logger.warning("Pipeline %r cannot be listed: %s", run_id, text_of(why))
