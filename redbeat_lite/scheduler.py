"""The scheduler that ``celery beat -S redbeat_lite.Scheduler`` runs: lead, dispatch, wait; or stand by."""

from __future__ import annotations

import logging
import sys
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import celery.beat
import click
from celery.beat import ScheduleEntry, SchedulingError
from celery.utils.log import get_logger
from redis.exceptions import AuthenticationError, MovedError, ResponseError

from .beat import parent
from .beat.announcer import Announcer
from .beat.backfills import BackfillPlanner, Backfills
from .beat.dispatch.broker import BrokerDown
from .beat.dispatch.dispatcher import Dispatcher
from .beat.dispatch.planner import Planner
from .beat.dispatch.prepared import obstacle
from .beat.dispatch.publisher import Publisher
from .beat.heartbeat import heartbeat_file
from .beat.heartbeat_url import HeartbeatUrl
from .beat.hiredis_numbers import spell_numbers_out
from .beat.incidents import IncidentWatch
from .beat.leader import Leader
from .beat.metrics import Exporter
from .beat.notices import hooks_of
from .beat.outage import Outage
from .beat.shutdown import (
    Farewell,
    by_celerys_signal_handler,
    leave_subscriptions_alone,
    say_nothing_of_ignored_exits,
)
from .beat.terms import Terms
from .beat.vitals import Vitals
from .beat.wakeup import Wakeup
from .broker import default_queue
from .clock import elapsed, wall_ms
from .entries.entry import Entry
from .errors import ConfigurationError, UnsupportedFormat
from .events import Ticked
from .once.store import LockStore
from .pipeline.sweeper import sweeper
from .public import public
from .setting_checks import check_timezone
from .settings import Settings
from .storage.connections import FAULTS, refusal
from .storage.leader_store import LeaderStore
from .storage.server_check import check_driver
from .storage.stored import Lost

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(f"celery.{__name__}")

#: Seconds that committing what is out may take when the process is told to stop, before the lease is given back.
_FINISH_TIMEOUT = 0.7


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
    #: Whether Celery's signal handler has closed one. Where the signal comes while Celery makes the one that it will
    #: tick, the handler makes another and closes that, and Python may ignore the exit that follows.
    _told_to_stop = False

    def __init__(self, app: Celery, schedule: Any = None, max_interval: float | None = None, **kwargs: Any) -> None:
        spell_numbers_out()
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
        self.leader = Leader(backend, keys, settings, vitals)
        self._wakeup = Wakeup(backend, keys.wake)
        zone: tzinfo = app.timezone
        self._terms = Terms(app, store, settings, self.leader, vitals)
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
        planned |= {"local": self._terms.config.get, "progress": self.leader.progress}
        planned["tasks"] = lambda name: app.tasks.get(name)
        self._dispatcher = Dispatcher(store, *sending, planner=Planner(**planned), **by)
        self._backfills = Backfills(store, *sending, planner=BackfillPlanner(store, **planned), **by)
        self._failure: BaseException | None = None
        self._exit_code = 0
        self._outage = Outage(vitals, settings.lease)
        self._ticking = self._closing = False
        self._farewell = Farewell()
        super().__init__(app, schedule={}, max_interval=max_interval, **kwargs)
        self.apply_async = self._apply_async  # type: ignore[method-assign]  # what apply_entry calls

    # -- what Celery calls --------------------------------------------------------------------------------------------

    def setup_schedule(self) -> None:
        """Do nothing: the leader brings the configuration into Redis.

        It does so when it begins, and when a part is gone or a name becomes free.
        """

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

        Raises:
            SystemExit: it was told to stop, or the worker around it is gone.
        """
        self._ticking = True
        self._closing |= Scheduler._told_to_stop
        try:
            if not self._closing:
                parent.leave_without()
                self._turn()
        except Exception:
            if not self._closing:
                raise
            logger.debug("beat: told to stop in the middle of this", exc_info=True)
        finally:
            self._ticking = False
        if self._closing:
            # The SystemExit of the signal handler is lost where Python ignores exceptions, in the __del__ of whatever
            # it interrupted, and becomes another one where Python wraps them: while a class is made, say.
            raise SystemExit
        return 0

    def _turn(self) -> None:
        if self._exporter is not None:
            self._exporter.serve()
        try:
            self._wakeup.listen()
            started = elapsed()
            seconds = self.run_due()
            if self.leader.in_office:
                self.vitals.tell(Ticked(elapsed() - started))
                if not self.leader.leading:
                    seconds = 0.0  # The term ran out in the middle of this turn: the process was frozen, say.
            if self.leader.in_office or self._terms.standing_by:
                self._outage.is_over()
            for each in self._aside:
                each.start()
        except UnsupportedFormat as exc:
            self._give_up(str(exc))
        except AuthenticationError as exc:
            what = f"{self.backend.display_url} refuses to let us in"
            if not self._terms.introduced:
                self._give_up(f"{what}: {refusal(exc, self.keys.prefix)}")
            seconds = self._outage.goes_on(what, refusal(exc, self.keys.prefix))
        except BrokerDown as exc:
            seconds = self._outage.goes_on("cannot reach the broker", exc)
        except MovedError:
            node = self.backend.display_url
            self._give_up(f"{node} is a node of a Redis Cluster; redbeat_lite_url has to begin with redis-cluster://")
        except FAULTS as exc:
            self._publisher.close()  # A server that was started anew knows nothing of what kombu has declared.
            if isinstance(exc, ResponseError):
                self._refused()
            seconds = self._outage.goes_on(f"cannot use {self.backend.display_url}", refusal(exc, self.keys.prefix))
        self.leader.progress("waiting", within=seconds)
        led = self.leader.leading
        self._wakeup.wait(seconds, until=lambda: self._is_over(led), leads=led)

    def _is_over(self, led: bool) -> bool:
        """Whether to end a wait before its time; asked twice a second, which shows that the loop is alive."""
        self.vitals.alive()
        has_to_act = led and (not self.leader.leading or self._terms.is_called_for)
        return self._closing or parent.is_gone() or has_to_act

    def run_due(self) -> float:
        """Dispatch everything that is due now, if this process leads or can begin to.

        Returns:
            seconds until the next deadline, or while standing by until the leader's lease runs out; at most
            ``max_interval``.
        """
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
            if not self._closing:
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
        """Commit what is out, give the lease back and drop all connections, within a second and a half.

        Celery calls this from its signal handler, which may have interrupted anything, and again when the loop ends.
        """
        self._closing = True
        if by_celerys_signal_handler():
            Scheduler._told_to_stop = True
            leave_subscriptions_alone()
        say_nothing_of_ignored_exits()
        for each in self._aside:
            each.stop()
        exporter = [self._exporter.close] if self._exporter else []
        self._farewell.do(self._finish, self.leader.resign, self.vitals.close, *exporter)
        if self._ticking:
            # Closed under the tick that reads from it, a connection would raise ValueError there, in place of the
            # SystemExit that is to end the loop.
            return
        if self._farewell.do(self._publisher.close, self._wakeup.close, self.backend.close):
            self._farewell.end()
        if self._exit_code:
            # Celery's loop swallows a SystemExit from tick() and exits with 0; this one, raised while it cleans up,
            # reaches the shell.
            raise SystemExit(self._exit_code)

    def _finish(self) -> None:
        # A connection of its own, as the one that gives the lease back needs it.
        store = LeaderStore.of(self.settings, timeout=_FINISH_TIMEOUT)
        self._dispatcher.finish(store)
        self._backfills.finish(store)
        store.backend.close()

    # -- trouble ------------------------------------------------------------------------------------------------------

    def _apply_async(self, entry: ScheduleEntry, *args: Any, **kwargs: Any) -> Any:
        """:meth:`apply_async` of whatever class this is; keeps a failure for :meth:`_emit`.

        ``apply_entry`` would log it with two whole stacks, at each try anew, and the run would count as sent.
        """
        try:
            return type(self).apply_async(self, entry, *args, **kwargs)
        except Exception as exc:  # noqa: BLE001 - whoever wrote the class may raise anything
            if self.app.conf.task_always_eager and entry.task in self.app.tasks:
                logger.error("beat: task %s ran in the beat (task_always_eager) and failed: %r", entry.task, exc)
                return None
            self._failure = (exc.__context__ if isinstance(exc, SchedulingError) else None) or exc
            exc.__traceback__ = None  # a frame of Celery's holds the error: both would stay until a collection
            return None

    def _emit(self, entry: ScheduleEntry, producer: Any) -> None:
        """Publish through Celery's ``apply_entry``, and raise what went wrong."""
        self._failure = None
        self.apply_entry(entry, producer=producer)
        if self._failure is not None:
            raise self._failure

    def _refused(self) -> None:
        """After a refusal, trust nothing that was known of the server.

        A key may be of a foreign type, so the schedule is looked over before going on. And a server that was demoted
        to a replica keeps its connections: only new ones lead to its successor, where a name or a proxy stands for it.
        """
        self._terms.begin_anew()
        self._wakeup.close()
        self.backend.close()

    def _give_up(self, message: str) -> None:
        logger.log(logging.CRITICAL, "beat: %s", message)
        self._exit_code = 1
        raise SystemExit(1)
