"""Metrics of single entries for Prometheus, of as many as a setting says: each is some fifteen series for good."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..entries.as_read import Recorded
from ..events import Dispatched, Hooks, LeaderLost
from ..runs.facts import End
from ..runs.row import Row
from ..runs.store import RunStore
from ..settings import Settings
from ..storage.keys import Keys
from ..storage.stored import chunks

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

#: The label of all entries without one of their own: no entry has this name.
_OTHERS = ""

#: Entries whose rows are read in one command, and how many of each at most: it shall block nobody.
_TOGETHER, _ROWS = 100, 100


class EntryMetrics(Hooks):
    """The metrics of those entries that this beat hears of first, and of all others together."""

    def __init__(self, registry: CollectorRegistry, settings: Settings) -> None:
        from prometheus_client import Counter, Gauge

        self._most, self._prefix = settings.metrics_entries, settings.key_prefix
        self._lock = threading.Lock()  # of the names: what is sent and what has ended come from two threads
        self._names = {_OTHERS}
        of, by = "redbeat_lite_entry", ["entry"]
        self._dispatched = Counter(f"{of}_dispatched", "Occurrences sent.", by, registry=registry)
        self._runs = Counter(f"{of}_runs", "Ends of runs.", [*by, "outcome"], registry=registry)
        self._failures = Gauge(f"{of}_failures_in_a_row", "Since the last success.", by, registry=registry)
        when = "Nominal time of the newest run that succeeded."
        self._success = Gauge(f"{of}_last_success_timestamp_seconds", when, by, registry=registry)

    def dispatched(self, event: Dispatched) -> None:
        self._dispatched.labels(self._label(event.name)).inc()

    def leader_lost(self, event: LeaderLost) -> None:
        self._failures.clear()
        self._success.clear()

    def ended(self, ends: Sequence[End], client: Any) -> None:
        """Count these, and look what is recorded of their entries: what came before this beat led, too.

        Where the server does not answer, all are counted.
        """
        names = set()
        for end in ends:
            names.add(name := self._label(end.name))
            self._runs.labels(name, end.outcome).inc()
        for chunk in chunks(names, _TOGETHER):
            for name, rows in zip(chunk, RunStore(client, self._prefix).rows(chunk, _ROWS), strict=True):
                self._show(name, rows)
        known = [*self._names]
        for name, due in zip(known, client.zmscore(Keys.of(self._prefix).due, known), strict=True):
            if due is None:  # It was removed, and no run ends any more that would mend what is shown.
                self._show(name, ())

    def _show(self, name: str, rows: Sequence[Row]) -> None:
        if not rows:
            for gauge in (self._failures, self._success):
                with suppress(KeyError):
                    gauge.remove(name)
            return
        recorded = Recorded()
        recorded.read_rows = lambda: rows
        self._failures.labels(name).set(recorded.failures_in_a_row)
        # Where failures have taken the place of its row, the success that was seen before is still the last one.
        if at := recorded.last_success_at:
            self._success.labels(name).set(at.timestamp())

    def _label(self, name: str) -> str:
        with self._lock:
            if len(self._names) <= self._most:
                self._names.add(name)
            return name if name in self._names else _OTHERS
