"""Scheduler of ``celery beat -S redbeat_lite.Scheduler``: lead, dispatch, wait; or stand by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import celery.beat
import click
from celery.beat import ScheduleEntry, SchedulingError
from celery.utils.log import get_logger

from ._base.clock import elapsed
from ._base.errors import ConfigurationError
from ._base.public import public
from .beat.parts import Parts
from .beat.stop import Stop
from .entries.configured import config_entry
from .entries.entry import Entry
from .events import Ticked
from .store.records import Lost

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(f"celery.{__name__}")


@public
class Scheduler(celery.beat.Scheduler):  # type: ignore[misc]  # Celery ships no types
    """A beat scheduler whose schedule is in Redis.

    Celery makes two objects of this class, and uses the first one (``lazy=True``) only for the
    banner. So an object does not connect, start threads or acquire the lease before the first
    :meth:`tick`.

    Parameters:
        app: the Celery app.
        max_interval: longest wait in seconds; by default ``beat_max_loop_interval``, or 300.

    Raises:
        click.ClickException: a setting is wrong. The command line prints the error in one line, and
            exits with 1.
    """

    Entry = Entry
    #: celery-redbeat, if it is imported, too, acquires a lock for every scheduler that has a
    #: ``lock_key``. So this scheduler has no key.
    lock_key = None

    def __init__(
        self,
        app: Celery,
        schedule: Any = None,
        max_interval: float | None = None,
        **kwargs: Any,
    ) -> None:
        self._stop = Stop()
        # Celery passes ``lazy=False`` for the object that it runs. It has installed its own signal
        # handlers by then, so replace them.
        if kwargs.get("lazy") is False:
            self._stop.take_signals()
        # Celery's get_schedule() returns the entries that code has added to this object.
        try:
            parts = Parts(app, self, self.get_schedule, self._stop)
        except ConfigurationError as exc:
            raise click.ClickException(str(exc)) from exc
        self._parts = parts
        self._stop.last_work = self._leave_at_once
        self.settings = parts.settings
        self.store = parts.store
        self.leader = parts.leader
        #: Error of the entry that is being published, from _keep_failure() to emit().
        self._failure: BaseException | None = None
        super().__init__(app, schedule=schedule, max_interval=max_interval, **kwargs)
        # Celery's apply_entry calls this attribute.
        self.apply_async = self._apply_async  # type: ignore[method-assign]

    # -- lead, dispatch, wait ---------------------------------------------------------------------

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Take one turn: lead or stand by, dispatch due entries, wait for the next due time.

        Celery sleeps for the seconds that this method returns, and notices no change meanwhile. So
        this method waits itself, and returns 0. In the main thread it replaces the handlers of
        SIGTERM and SIGINT, unless the constructor has done so; :meth:`close` restores them.

        Raises:
            SystemExit: the beat must stop, or the worker that runs this beat has ended.
        """
        self._stop.take_signals()
        self._stop.check()
        try:
            seconds = self._turn()
            self._wait(seconds)
        except Exception as exc:  # noqa: BLE001 - the beat stays alive, whatever fails
            # If another thread has called close(), the error comes from the closed connections, and
            # is no failure. In this case, check() raises SystemExit.
            self._stop.check()
            seconds = self._parts.outage.handle(exc)
            self._wait(seconds, after_failure=True)
        self._stop.check()
        return 0

    def _turn(self) -> float:
        """Lead or stand by, and dispatch due entries. Return the seconds to wait."""
        parts = self._parts
        # Start the threads that run beside the main loop. If they run already, this does nothing.
        for ticker in parts.tickers:
            ticker.start()
        # If the lease is lost, this turn only ends the term. It must do so even if Redis is out of
        # reach, so do not connect before.
        if parts.leader.holds_lease or not parts.leader.has_term:
            parts.wakeup.listen()
        started = elapsed()
        seconds = self.run_due()
        leads = parts.leader.has_term
        if leads:
            parts.state.announce(Ticked(elapsed() - started))
        # A turn is a success if the beat leads, or has found that another beat leads. Otherwise
        # this beat has failed before and leaves the lease to others for a while. It has not tried
        # to lead in this turn, so it has not shown that it works again.
        if leads or parts.leadership.standing_by:
            parts.outage.handle_success()
        return seconds

    def run_due(self) -> float:
        """Dispatch all due entries, if this process leads or can begin to lead.

        Returns:
            seconds until the next due time; for a stand-by, until the leader's lease expires. At
            most ``max_interval``.
        """
        parts = self._parts
        longest = float(self.max_interval)
        # Clear the flag before looking for due entries. If more become due later, the thread that
        # renews the lease sets the flag again.
        parts.leader.has_due_work = False
        try:
            # Seconds until the next try to lead; 0 if this beat leads.
            waiting = parts.leadership.enter()
            if waiting:
                return min(waiting, longest)
            next_entry = parts.dispatcher.run()
            # When the dispatcher read the due entries, the store noted when a backfill is due.
            next_due = parts.backfills.run(parts.store.backfill_due, next_entry)
        except Lost:
            # Perhaps a flush of the database has removed the lease. It may also have removed queues
            # that kombu has declared. A new connection declares them again.
            parts.publisher.close()
            why = parts.leadership.leave()
            logger.warning("beat: no longer leading: %s", why)
            return 0.0
        # The repair reschedules entries for a limited time per turn, so that due entries are
        # dispatched in between. If entries are left, begin the next turn at once.
        if parts.leadership.repair.unfinished:
            return 0.0
        if next_due is None:
            return longest
        left_ms = next_due - parts.leader.clock.now_ms()
        return min(max(left_ms / 1000, 0.0), longest)

    def _wait(self, seconds: float, *, after_failure: bool = False) -> None:
        """Wait for these seconds, or until a change or a stop.

        Parameters:
            after_failure: whether the wait is a pause after a failed turn.
        """
        # Tell the watchdog how long the wait is. Otherwise it would take the silence for a hang.
        self.leader.progress("waiting", within=seconds)
        leads = self.leader.has_term
        # New work ends a wait, but not the pause after a failure. Otherwise the beat would try
        # again without a pause while the server does not answer.
        ends_for_work = leads and not after_failure

        def must_end() -> bool:
            """Give a sign of life, and return whether to end the wait."""
            self._parts.state.give_sign_of_life()
            return self._stop.is_due or (ends_for_work and self._has_work())

        self._parts.wakeup.wait(seconds, until=must_end, leads=leads)

    def _has_work(self) -> bool:
        """Return whether a leader has something to do that cannot wait."""
        if not self.leader.holds_lease:
            return True  # The next turn ends the term.
        # A change wakes the beat by a message in the wake channel, which may be lost. So a wait
        # also ends when a renewal has counted entries that are due.
        return self.leader.has_due_work or self._parts.leadership.has_work

    def close(self) -> None:
        """Release the lease, close all connections, and end a tick that another thread runs.

        The method may be called twice.
        """
        parts = self._parts
        self._stop.requested = True
        for ticker in parts.tickers:
            ticker.stop()
        # Release the lease first, so that a stand-by can lead even if a later step hangs.
        steps = [
            self._leave_at_once,
            parts.state.close,
            parts.publisher.close,
            parts.wakeup.close,
            parts.store.backend.close,
        ]
        if parts.exporter is not None:
            steps.append(parts.exporter.close)
        for step in steps:
            try:
                step()
            except Exception as exc:  # noqa: BLE001 - the other steps must run nevertheless
                logger.debug("beat: %s failed while stopping: %r", step, exc)
        self._stop.return_signals()
        if parts.outage.gave_up:
            # The beat has ended because of an error, so the exit code has to be 1. If tick() raises
            # SystemExit, Celery's loop catches it, calls close(), and exits with 0. But the loop
            # does not catch a SystemExit that close() raises.
            raise SystemExit(1)

    def _leave_at_once(self) -> None:
        """Remove the heartbeat file, and release the lease so that another beat can lead."""
        self._parts.state.remove_heartbeat()
        self.leader.resign()

    # -- the schedule, as Celery sees it ----------------------------------------------------------

    def setup_schedule(self) -> None:
        """Do nothing, because the leader stores the configuration in Redis.

        The leader does so when its term begins, when a part of the schedule is lost, and when
        others have edited config entries. While it refuses an entry, it also does so every few
        leases. If a subclass overrides this method and adds entries, for example by
        :meth:`update_from_dict`, these are config entries, too.
        """

    def add(self, **fields: Any) -> Any:
        """Add an entry to the configuration, and return it. At runtime, prefer :class:`Schedules`.

        Parameters:
            fields: ``name``, and the fields of an entry in ``beat_schedule``.

        Raises:
            InvalidEntry: a field is wrong. The error names the field, the expectation and the
                value.
        """
        name = fields.pop("name")
        self.update_from_dict({name: fields})
        return self.schedule[name]

    def merge_inplace(self, b: Mapping[str, Any]) -> None:
        """Replace the entries that code has added by those of ``b``.

        Parameters:
            b: entries in the form of Celery's ``beat_schedule``.

        Raises:
            InvalidEntry: a field is wrong, as for :meth:`add`.
        """
        self.schedule.clear()
        self.update_from_dict(b)

    def _maybe_entry(self, name: str, entry: Any) -> ScheduleEntry:
        """Make an entry for :meth:`update_from_dict`, with the defaults of the settings."""
        return config_entry(self.settings, name, entry, self.app)

    @property
    def info(self) -> str:
        """Lines for Celery's start banner."""
        settings = self.settings
        store = self.store
        rows = {
            "schedule": f"{store.backend.display_url} under {store.keys.prefix}",
            "owner": settings.owner,
            "lease": f"{settings.lease:g} s",
            "dispatch": settings.dispatch,
        }
        return "\n".join(f"    . {name} -> {value}" for name, value in rows.items())

    def should_sync(self) -> bool:
        """Return ``False``, because every change is written to Redis at once."""
        return False

    # -- one message, sent as Celery's own scheduler does -----------------------------------------

    def apply_async(
        self,
        entry: Any,
        producer: Any = None,
        advance: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Publish an entry as Celery's own scheduler does.

        ``advance`` has no effect, because the commit advances the entry afterwards.
        """
        return super().apply_async(entry, producer=producer, advance=False, **kwargs)

    def emit(self, entry: ScheduleEntry, producer: Any) -> None:
        """Publish an entry by Celery's ``apply_entry``, and raise the error if that fails.

        Tools may wrap ``apply_entry``, so it is called although it would only log the error.
        """
        self._failure = None
        self.apply_entry(entry, producer=producer)
        if self._failure is not None:
            raise self._failure

    def _apply_async(self, entry: ScheduleEntry, *args: Any, **kwargs: Any) -> Any:
        """Call :meth:`apply_async` of this object's class, and keep its error for :meth:`emit`.

        Celery's ``apply_entry`` calls this method. If ``apply_entry`` got the error, it would log
        the error with two tracebacks at each attempt, and would not raise it. So the run would
        count as sent.
        """
        try:
            return type(self).apply_async(self, entry, *args, **kwargs)
        except Exception as exc:  # noqa: BLE001 - a subclass may raise anything
            self._keep_failure(entry, exc)
            return None

    def _keep_failure(self, entry: ScheduleEntry, exc: Exception) -> None:
        """Keep the error of a failed publish for :meth:`emit`, except in eager mode."""
        failure: BaseException = exc
        # Celery raises a SchedulingError while it handles the error of the broker or of the entry.
        # So this error is the ``__context__``.
        if isinstance(exc, SchedulingError) and exc.__context__ is not None:
            failure = exc.__context__
        # In eager mode the task has run in this process, and has failed itself. A retry would run
        # it again, so only log the error.
        if self.app.conf.task_always_eager and entry.task in self.app.tasks:
            text = "beat: task %s ran in the beat (task_always_eager) and failed: %r"
            logger.error(text, entry.task, failure)
            return
        self._failure = failure
        # Drop the traceback, because it would keep the error alive until a garbage collection.
        exc.__traceback__ = None
