"""Parts of one beat, and the function that builds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery import Celery

from .._base.celery_app import default_queue
from .._base.threads import Ticker
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


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of one beat.

    Parameters:
        exporter: HTTP server of the metrics; ``None`` if ``redbeat_lite_metrics_port`` is not set.
        beside: threads that work beside the main loop, with connections of their own.
    """

    settings: Settings
    store: LeaderStore
    state: BeatState
    stop: Stop
    leader: Leader
    leadership: Leadership
    wakeup: Wakeup
    publisher: Publisher
    dispatcher: Dispatcher
    backfills: Backfills
    incidents: IncidentWatch
    outage: Outage
    exporter: Exporter | None
    beside: tuple[Ticker, ...]


def build_parts(
    app: Celery, scheduler: Emitter, added: Callable[[], Mapping[str, Any]], stop: Stop
) -> Parts:
    """Build the parts of a beat. This opens no connection and starts no thread.

    Parameters:
        scheduler: the Celery scheduler of this beat. It publishes a message as Celery's own does.
        added: function that returns the entries that code has added to the scheduler, by name.
        stop: request to this beat to stop.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    settings = Settings.from_app(app)
    check_timezone(app)
    store = LeaderStore.of(settings)
    backend = store.backend

    # Reports: hooks, heartbeat file and metrics.
    announcer = Announcer([*subscribers(app), *notices_by(settings.notify)])
    heartbeat = None
    if settings.heartbeat_file is not None:
        heartbeat = HeartbeatFile(settings.heartbeat_file)
    state = BeatState(announcer, heartbeat, default_queue(app))
    exporter = None
    if settings.metrics_port is not None:
        exporter = Exporter(settings.metrics_port, settings, state)

    # Leadership: the lease, the configuration and a whole schedule.
    leader = Leader(backend, store.keys, settings, state, stop)
    leadership = Leadership(app, store, settings, leader, added)
    incidents = IncidentWatch(app, settings, leader)

    # Dispatch: plan, publish and commit the runs of entries and backfills.
    publisher = Publisher(app, settings, leader, store, scheduler)
    locks = LockStore(backend.client, settings.key_prefix)
    log = BatchLog(app, state, leader.clock, incidents.deadlines)
    planner = Planner(
        app=app,
        completed=leadership.config.completed,
        prefix=store.keys.prefix,
        slack=settings.slack_ms,
    )
    steps = EntrySteps(RunKeys(store.keys.prefix), incidents.deadlines)
    sender = BatchSender(
        store,
        leader,
        publisher,
        locks,
        log,
        advance=steps.advance,
        report_advanced=log.report_advanced,
    )
    dispatcher = Dispatcher(leader, leadership.freezing, planner, publisher, sender)
    backfills = Backfills(store, leader, planner, publisher, locks, log)

    # The main loop: it waits, and recovers from failures.
    wakeup = Wakeup(backend, store.keys.wake)
    outage = Outage(backend, settings, leadership, publisher, wakeup, state)

    # Threads beside the main loop.
    tickers = [sweeper(app, lambda: leader.leading), incidents.ticker]
    if settings.heartbeat_url is not None:
        tickers.append(heartbeat_ticker(settings.heartbeat_url, leader))
    if exporter is not None:
        tickers.append(exporter.ticker)
    return Parts(
        settings=settings,
        store=store,
        state=state,
        stop=stop,
        leader=leader,
        leadership=leadership,
        wakeup=wakeup,
        publisher=publisher,
        dispatcher=dispatcher,
        backfills=backfills,
        incidents=incidents,
        outage=outage,
        exporter=exporter,
        beside=tuple(tickers),
    )
