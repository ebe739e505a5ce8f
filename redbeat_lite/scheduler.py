"""The scheduler that ``celery beat -S redbeat_lite.Scheduler`` runs: lead, dispatch, wait; or stand by."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import celery.beat
import click
from celery.beat import ScheduleEntry, SchedulingError
from celery.utils.log import get_logger

from .beat import parent
from .beat.announcer import Announcer
from .beat.backfills import BackfillPlanner, Backfills
from .beat.dispatch.dispatcher import Dispatcher
from .beat.dispatch.planner import Planner
from .beat.dispatch.prepared import obstacle
from .beat.dispatch.publisher import Publisher
from .beat.heartbeat import heartbeat_file
from .beat.heartbeat_url import HeartbeatUrl
from .beat.incidents import IncidentWatch
from .beat.leader import Leader
from .beat.metrics import Exporter
from .beat.notices import hooks_of
from .beat.outage import Outage
from .beat.retry_warnings import RetryWarnings
from .beat.stop import Stop
from .beat.terms import Terms
from .beat.vitals import Vitals
from .beat.wakeup import Wakeup
from .broker import default_queue
from .clock import elapsed, wall_ms
from .entries.configured import config_entry
from .entries.entry import Entry
from .errors import ConfigurationError
from .events import Ticked
from .once.store import LockStore
from .pipeline.sweeper import sweeper
from .public import public
from .settings import Settings, check_timezone
from .storage.leader_store import LeaderStore
from .storage.server_check import check_driver
from .storage.stored import Lost

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(f"celery.{__name__}")


@public
class Scheduler(celery.beat.Scheduler):  # type: ignore[misc]  # Celery ships no types
    """A beat scheduler whose schedule lives in Redis.

    Celery builds it twice, the first time (``lazy=True``) for the banner alone, so nothing connects, starts a thread
    or takes a lease before the first :meth:`tick`.

    Parameters:
        app: the Celery app.
        max_interval: longest sleep in seconds; else ``beat_max_loop_interval``, else 300.

    Raises:
        click.ClickException: a setting is wrong; the command line shows its one line and exits with 1.
    """

    Entry = Entry
    #: For celery-redbeat: where it is imported, it takes a lock for each beat that starts, unless this is empty.
    lock_key = None

    def __init__(self, app: Celery, schedule: Any = None, max_interval: float | None = None, **kwargs: Any) -> None:
        try:
            self.settings = settings = Settings.from_app(app)
            check_driver(app)
            check_timezone(app)
            self.store = store = LeaderStore.of(settings)
            self.backend = backend = store.backend
            locks = LockStore(backend.client, settings.key_prefix)
            self.vitals = vitals = Vitals(Announcer(hooks_of(app, settings)), heartbeat_file(settings.heartbeat_file))
            vitals.queue = default_queue(app)
            port = settings.metrics_port
            self._exporter = None if port is None else Exporter(port, settings, vitals)
        except ConfigurationError as exc:
            raise click.ClickException(str(exc)) from exc
        self.keys = keys = store.keys
        self._stop = Stop()
        self.leader = Leader(backend, keys, settings, vitals, self._stop)
        self._wakeup = Wakeup(backend, keys.wake)
        zone: tzinfo = app.timezone
        self._terms = Terms(app, store, settings, self.leader, vitals, self.get_schedule)
        self._publisher = Publisher(
            app, self._emit, settings, obstacle=lambda channel: obstacle(self, sys.modules[__name__], app, channel)
        )
        self._incidents = IncidentWatch(app, settings, self.leader, vitals)
        #: What the leader does beside its loop: each in a thread that shares nothing with it.
        self._aside = [sweeper(app, lambda: self.leader.leading), self._incidents.ticker]
        if settings.heartbeat_url is not None:
            self._aside.append(HeartbeatUrl(settings.heartbeat_url, self.leader).ticker)
        sending = self.leader, self._publisher, locks, vitals
        by: dict[str, Any] = {"zone": zone, "batch_size": settings.batch_size}
        by |= {"deadlines": self._incidents.deadlines, "freezing": self._terms.freezing}
        planned: dict[str, Any] = {"zone": zone, "prefix": keys.prefix, "slack": settings.slack_ms}
        planned |= {"completed": self._terms.config.completed, "progress": self.leader.progress}
        planned["tasks"] = lambda name: app.tasks.get(name)
        planned["sends"] = RetryWarnings(app, self._incidents.deadlines).look_at
        self._dispatcher = Dispatcher(store, *sending, planner=Planner(**planned), **by)
        self._backfills = Backfills(store, *sending, planner=BackfillPlanner(store, **planned), **by)
        self._failure: BaseException | None = None
        self._outage = Outage(backend, self._terms, self._publisher, self._wakeup, vitals, settings)
        super().__init__(app, schedule=schedule, max_interval=max_interval, **kwargs)
        self.apply_async = self._apply_async  # type: ignore[method-assign]  # what apply_entry calls

    # -- what Celery calls --------------------------------------------------------------------------------------------

    def setup_schedule(self) -> None:
        """Do nothing: the leader brings the configuration into Redis.

        The leader does so when it begins, and when a part is gone or a name becomes free. Entries
        that a subclass adds here, by :meth:`update_from_dict` for example, are config entries, too.
        """

    def add(self, **fields: Any) -> Any:
        """Add an entry to the configuration; returns it. At runtime, prefer :class:`Schedules`.

        Parameters:
            fields: ``name``, and those of an entry of ``beat_schedule``.

        Raises:
            InvalidEntry: a field is wrong; names the field, what was expected and what came.
        """
        name = fields.pop("name")
        self.update_from_dict({name: fields})
        return self.schedule[name]

    def merge_inplace(self, b: Mapping[str, Any]) -> None:
        """Replace the entries that were added by those of ``b``, a ``beat_schedule``; raises as :meth:`add`."""
        self.schedule.clear()
        self.update_from_dict(b)

    def _maybe_entry(self, name: str, entry: Any) -> ScheduleEntry:
        """Make an entry for :meth:`update_from_dict`; it gets the defaults that the settings name."""
        return config_entry(self.settings, name, entry, app=self.app)

    @property
    def info(self) -> str:
        """Lines for Celery's start banner."""
        settings = self.settings
        rows = {
            "schedule": f"{self.backend.display_url} under {self.keys.prefix}",
            "owner": settings.owner,
            "lease": f"{settings.lease:g} s",
            "dispatch": settings.dispatch,
        }
        return "\n".join(f"    . {name} -> {value}" for name, value in rows.items())

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """One turn: lead or stand by, dispatch what is due, wait for the next deadline or a change.

        Celery sleeps for whatever this returns, deaf to changes; so the waiting is done here, and the answer is 0.
        The first tick replaces the handlers of SIGTERM and SIGINT, if it is called in the main
        thread. :meth:`close` restores them.

        Raises:
            SystemExit: the beat is to stop, or the worker around it is gone.
        """
        self._stop.take_signals(self._leave_at_once)
        self._stop.check()
        parent.leave_without()
        try:
            seconds = self._turn()
            self._wait(seconds)
        except Exception as exc:  # noqa: BLE001 - the beat stays alive, whatever fails
            self._stop.check()  # After a close() elsewhere, closed connections are no failure.
            seconds = self._outage.handle(exc)
            self._wait(seconds, after_failure=True)
        self._stop.check()
        return 0

    def _turn(self) -> float:
        """Lead or stand by, and dispatch what is due; return the seconds to wait."""
        if self._exporter is not None:
            self._exporter.serve()
        self._wakeup.listen()
        started = elapsed()
        seconds = self.run_due()
        if self.leader.in_office:
            self.vitals.tell(Ticked(elapsed() - started))
            if not self.leader.leading:
                seconds = 0.0  # The term ran out in the middle of this turn: the process was frozen, say.
        if self.leader.in_office or self._terms.standing_by:
            self._outage.is_over()
        for ticker in self._aside:
            ticker.start()
        return seconds

    def _wait(self, seconds: float, *, after_failure: bool = False) -> None:
        self.leader.progress("waiting", within=seconds)
        led = self.leader.leading
        self._wakeup.wait(seconds, until=lambda: self._is_over(led, after_failure), leads=led)

    def _is_over(self, led: bool, after_failure: bool) -> bool:
        """Return whether to end a wait early; each call is a sign of life of the loop."""
        self.vitals.alive()
        if self._stop.requested or parent.is_gone():
            return True
        if not led:
            return False
        if after_failure:
            # Nothing else ends this wait: the beat would try again without a pause while the server
            # is away, and asking what is to be done may fail as well.
            return not self.leader.leading
        # The wake channel may be silent, so the count of due entries that a renewal brings ends a wait, too.
        return self.leader.overdue or not self.leader.leading or self._terms.is_called_for

    def run_due(self) -> float:
        """Dispatch everything that is due now, if this process leads or can begin to.

        Returns:
            seconds until the next deadline, or while standing by until the leader's lease runs out; at most
            ``max_interval``.
        """
        self.leader.overdue = False
        try:
            waiting = self._terms.enter()
            if waiting:
                return min(waiting, float(self.max_interval))
            self._terms.go_on(self.leader.term)
            upcoming = self._backfills.run_beside(self._dispatcher.run())
        except Lost:
            # A flush takes away what kombu has declared, too, and who leads next may find the broker to be another one.
            self._publisher.close()
            why = self._terms.leave()
            logger.warning("beat: no longer leading: %s", why)
            return 0.0
        if self._terms.replanning.unfinished:
            return 0.0
        longest = min(self.max_interval, self._terms.look_again_in)
        if upcoming is None:
            return float(longest)
        return min(max((upcoming - wall_ms()) / 1000, 0.0), float(longest))

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        """Publish one entry, as Celery's own scheduler does; never advances it, that is the commit's affair."""
        return super().apply_async(entry, producer=producer, advance=False, **kwargs)

    def should_sync(self) -> bool:
        """There is nothing to sync: every change is in Redis when it is made."""
        return False

    def close(self) -> None:
        """Give the lease back and drop all connections; a tick in another thread ends. May be called twice."""
        self._stop.requested = True
        for ticker in self._aside:
            ticker.stop()
        works = [self._leave_at_once, self.vitals.close]
        works += [self._publisher.close, self._wakeup.close, self.backend.close]
        if self._exporter is not None:
            works.append(self._exporter.close)
        for work in works:
            try:
                work()
            except Exception as exc:  # noqa: BLE001 - the other steps have to run all the same
                logger.debug("beat: %s failed while stopping: %r", work, exc)
        self._stop.return_signals()
        if self._outage.gave_up:
            # Celery's loop swallows a SystemExit from tick() and exits with 0; this one, raised while it cleans up,
            # reaches the shell.
            raise SystemExit(1)

    def _leave_at_once(self) -> None:
        """Give up the heartbeat file and the lease, for which health checks and beats wait."""
        self.vitals.remove_heartbeat()
        self.leader.resign()

    # -- trouble ------------------------------------------------------------------------------------------------------

    def _apply_async(self, entry: ScheduleEntry, *args: Any, **kwargs: Any) -> Any:
        """:meth:`apply_async` of whatever class this is; keeps a failure for :meth:`_emit`.

        ``apply_entry`` would log it with two whole stacks, at each try anew, and the run would count as sent.
        """
        try:
            return type(self).apply_async(self, entry, *args, **kwargs)
        except Exception as exc:  # noqa: BLE001 - whoever wrote the class may raise anything
            failure: BaseException = exc
            if isinstance(exc, SchedulingError) and exc.__context__ is not None:
                failure = exc.__context__
            if self.app.conf.task_always_eager and entry.task in self.app.tasks:
                logger.error("beat: task %s ran in the beat (task_always_eager) and failed: %r", entry.task, failure)
                return None
            self._failure = failure
            exc.__traceback__ = None  # It would keep the error alive until a garbage collection.
            return None

    def _emit(self, entry: ScheduleEntry, producer: Any) -> None:
        """Publish through Celery's ``apply_entry``, and raise what went wrong."""
        self._failure = None
        self.apply_entry(entry, producer=producer)
        if self._failure is not None:
            raise self._failure
