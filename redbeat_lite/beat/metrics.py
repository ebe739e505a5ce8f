"""Metrics for Prometheus: counted from a beat's events, and served on their own port."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from .._base.errors import ConfigurationError
from .._base.threads import Ticker
from ..events import Dispatched, Failed, Hooks, Misfired, Quarantined, Skipped, Ticked
from ..runs.incident import KINDS
from ..settings import Settings
from .beat_state import BeatState

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

logger = get_logger(f"celery.{__name__}")

#: Bounds of the lateness histogram in seconds. The runs of a healthy beat are in the first buckets,
#: and late runs after an outage are in the last.
LATENESS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    3600.0,
)

#: Seconds between two attempts to open a port that another process has.
_RETRY = 10.0

#: Label shared by all tasks without a label of their own. No task has this name.
_OTHERS = ""

#: Maximum number of tasks that have their own label. The two series of a task take 7 kB of memory
#: until the beat ends.
_TASKS = 1000


class Metrics(Hooks):
    """Metrics of one beat, as hooks that count its events."""

    def __init__(self, registry: CollectorRegistry, state: BeatState) -> None:
        from prometheus_client import Counter, Histogram

        self._state = state
        #: Names of the first ``_TASKS`` tasks.
        self._tasks: set[str] = set()
        self._lateness = Histogram(
            "redbeat_lite_lateness_seconds",
            "From the due time of an occurrence, jitter included, "
            "until its message was in the queue.",
            buckets=LATENESS,
            registry=registry,
        )
        self._tick = Histogram(
            "redbeat_lite_tick_duration_seconds",
            "One turn of the leader's loop, without the wait that follows it.",
            registry=registry,
        )
        self._dispatched = Counter(
            "redbeat_lite_dispatched", "Occurrences sent.", ["task"], registry=registry
        )
        self._failed = Counter(
            "redbeat_lite_failed", "Publishes that failed.", ["task"], registry=registry
        )
        self._skipped = Counter(
            "redbeat_lite_skipped",
            "Occurrences left out, by a misfire policy or for a once-lock.",
            ["reason"],
            registry=registry,
        )
        self._quarantined = Counter(
            "redbeat_lite_quarantined", "Entries set aside.", registry=registry
        )
        # Both series exist from the start, with the value 0.
        self._skipped.labels("misfire")
        self._skipped.labels("once-lock")
        # When the metrics are read, the registry also calls collect().
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges: whether this beat leads, and if it does, its counts."""
        from prometheus_client.core import GaugeMetricFamily

        state = self._state
        yield GaugeMetricFamily(
            "redbeat_lite_leader", "Whether this beat leads.", value=int(state.is_leader)
        )
        if not state.is_leader:
            return
        gauges = [
            ("entries", "Entries stored.", state.entries),
            ("due", "Entries that are due and not yet sent.", state.due),
            ("refused", "Config entries refused.", state.refused),
            ("frozen", "Whether a freeze holds.", int(state.is_frozen)),
        ]
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"redbeat_lite_{name}", text, value=value)
        incidents = GaugeMetricFamily(
            "redbeat_lite_incidents", "Incidents that are open.", labels=["kind"]
        )
        for kind in KINDS:
            incidents.add_metric([kind], state.incidents.get(kind, 0))
        yield incidents

    def dispatched(self, event: Dispatched) -> None:
        self._dispatched.labels(self._label(event.task)).inc()
        self._lateness.observe(max(event.lateness, 0.0))

    def misfired(self, event: Misfired) -> None:
        self._skipped.labels("misfire").inc(event.missed)

    def skipped(self, event: Skipped) -> None:
        self._skipped.labels("once-lock").inc()

    def failed(self, event: Failed) -> None:
        self._failed.labels(self._label(event.task)).inc()

    def quarantined(self, event: Quarantined) -> None:
        self._quarantined.inc()

    def ticked(self, event: Ticked) -> None:
        self._tick.observe(event.seconds)

    def _label(self, task: str) -> str:
        """Return the label of a task: its name for the first ``_TASKS`` tasks, else ``_OTHERS``."""
        if len(self._tasks) < _TASKS:
            self._tasks.add(task)
        return task if task in self._tasks else _OTHERS


class Exporter:
    """Server of the metrics of one beat. Its thread ``ticker`` opens the port once it is started.

    Raises:
        ConfigurationError: prometheus-client is not installed.
    """

    def __init__(self, port: int, settings: Settings, state: BeatState) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError:
            raise ConfigurationError(
                f"redbeat_lite_metrics_port: {port} needs the package prometheus-client, which is "
                "not installed; in the checkout of redbeat_lite: pip install '.[prometheus]'"
            ) from None

        self._host = settings.metrics_host
        self._port = port
        self._registry = CollectorRegistry()
        self._server: Any = None
        state.announcer.add(Metrics(self._registry, state))
        failure = f"beat: cannot serve metrics on {self._host}, port {port}"
        #: Thread that opens the port, and tries again while another process has it.
        self.ticker = Ticker("redbeat-lite-metrics", lambda: _RETRY, self.serve, failure)
        self.ticker.soon()  # The first attempt comes as soon as the thread starts.

    def serve(self) -> None:
        """Open the port, unless it is open; raises OSError if another process has it."""
        if self._server is not None:
            return
        from prometheus_client import start_http_server

        self._server, _ = start_http_server(self._port, self._host, self._registry)
        logger.info("beat: serving metrics on %s, port %d", self._host, self._port)

    def close(self) -> None:
        """Close the port. A second call does nothing."""
        server = self._server
        self._server = None
        if server is not None:
            server.shutdown()
            server.server_close()
