"""Parts of one beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery

from .._base.celery_app import default_queue
from ..events import subscribers
from ..once.lock_store import LockStore
from ..pipeline.sweeper import sweeper
from ..runs.run_store import RunKeys
from ..settings import Settings, check_timezone
from ..store.leader_store import LeaderStore
from .announcer import Announcer
from .backfills import Backfills
from .beat_state import BeatState
from .dispatch.batch_log import BatchLog
from .dispatch.batch_sender import BatchSender
from .dispatch.dispatcher import Dispatcher
from .dispatch.entry_steps import EntrySteps
from .dispatch.planner import Planner
from .dispatch.publisher import Emitter, Publisher
from .heartbeat import HeartbeatFile
from .heartbeat_url import heartbeat_ticker
from .incidents import IncidentWatch
from .leader import Leader
from .leadership import Leadership
from .metrics import Exporter
from .notices import notices_by
from .outage import Outage
from .stop import Stop
from .wakeup import Wakeup


class Parts:
    """Parts of one beat. The constructor opens no connection and starts no thread.

    Parameters:
        scheduler: the Celery scheduler of this beat. It publishes a message as Celery's own does.
        added: function that returns the entries that code has added to the scheduler, by name.
        stop: request to this beat to stop.

    Raises:
        ConfigurationError: a setting is wrong.
    """

    def __init__(
        self, app: Celery, scheduler: Emitter, added: Callable[[], Mapping[str, Any]], stop: Stop
    ) -> None:
        settings = Settings.from_app(app)
        check_timezone(app)
        store = LeaderStore.of(settings)
        backend = store.backend
        self.settings = settings
        self.store = store

        # Reports: hooks, heartbeat file and metrics.
        announcer = Announcer([*subscribers(app), *notices_by(settings.notify)])
        heartbeat = None
        if settings.heartbeat_file is not None:
            heartbeat = HeartbeatFile(settings.heartbeat_file)
        state = BeatState(announcer, heartbeat, default_queue(app))
        self.state = state
        #: HTTP server of the metrics; ``None`` if ``redbeat_lite_metrics_port`` is not set.
        self.exporter: Exporter | None = None
        if settings.metrics_port is not None:
            self.exporter = Exporter(settings.metrics_port, settings, state)

        # Leadership: acquire the lease, store the configuration, restore lost data.
        leader = Leader(backend, store.keys, settings, state, stop)
        self.leader = leader
        self.leadership = Leadership(app, store, settings, leader, added)
        self.incidents = IncidentWatch(app, settings, leader)

        # Dispatch: plan, publish and commit the runs of entries and backfills.
        self.publisher = Publisher(app, settings, leader, store, scheduler)
        locks = LockStore(backend.client, settings.key_prefix)
        log = BatchLog(app, state, leader.clock, self.incidents.deadlines)
        planner = Planner(
            app=app,
            completed=self.leadership.config.completed,
            prefix=store.keys.prefix,
            slack=settings.slack_ms,
        )
        steps = EntrySteps(RunKeys(store.keys.prefix), self.incidents.deadlines)
        sender = BatchSender(
            store,
            leader,
            self.publisher,
            locks,
            log,
            advance=steps.advance,
            report_advanced=log.report_advanced,
        )
        self.dispatcher = Dispatcher(
            leader, self.leadership.freeze_memory, planner, self.publisher, sender
        )
        self.backfills = Backfills(store, leader, planner, self.publisher, locks, log)

        # The main loop: it waits, and recovers from failures.
        self.wakeup = Wakeup(backend, store.keys.wake)
        self.outage = Outage(backend, settings, self.leadership, self.publisher, self.wakeup, state)

        #: Threads that work beside the main loop, with connections of their own.
        self.tickers = [sweeper(app, lambda: leader.holds_lease), self.incidents.ticker]
        if settings.heartbeat_url is not None:
            self.tickers.append(heartbeat_ticker(settings.heartbeat_url, leader))
        if self.exporter is not None:
            self.tickers.append(self.exporter.ticker)
