"""What a dispatch pays for what an entry expects of its runs, and for the runs that it remembers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle, islice
from statistics import median
from typing import Any

import msgspec
import redis

from benchmarks.stats import seconds
from benchmarks.subjects.common import TASK, Figures, Task, arguments, check_queue, client, empty, make_app, names
from benchmarks.subjects.ours import make_due
from redbeat_lite import Entry, Expect, Scheduler, Schedules, every
from redbeat_lite.once.lock_store import OnceKeys
from redbeat_lite.once.worker_reports import WorkerReport
from redbeat_lite.runs.run_store import RunKeys

#: Dispatches of each kind, in turn; and those of before, after which 20 runs are remembered.
_TURNS, _BEFORE = 15, 20

#: Milliseconds from run to run: as equal as those of entries with an interval are, and less than a turn takes.
_GAP = 50

#: Of each kind, how its entries differ. What is expected is such that each run has both of its deadlines.
_KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "expect": {"expect": Expect(start_within=_GAP / 20, finish_within=_GAP / 10)},
    "forgetful": {"history": 0},
}


class _Kind:
    """A beat that leads a schedule of its own, with entries of one kind."""

    def __init__(self, url: str, server: redis.Redis, kind: str, count: int) -> None:
        self._server, self._names, self._keys = server, names(count), RunKeys(kind)
        app = make_app(url, redbeat_lite_key_prefix=kind)
        Schedules(app).add_many(_entries(count, _KINDS[kind]))
        # Where nobody records, no deadline is set.
        said = msgspec.json.encode(WorkerReport(["celery"], time.time() + 3600))
        server.hset(OnceKeys(kind).workers, "worker@bench", said)
        self._scheduler, self._nominal = Scheduler(app), round(1000 * time.time())
        self._scheduler.run_due()

    def dispatch(self) -> float:
        """Entries a second."""
        self._server.delete(self._keys.deadlines)  # the runs of before have begun and ended
        self._nominal += _GAP
        time.sleep(max(self._nominal / 1000 - time.time(), 0))
        make_due(self._scheduler.store, self._names, at=self._nominal)
        took = seconds(self._scheduler.run_due)
        check_queue(self._server, len(self._names))
        return len(self._names) / took

    def close(self) -> None:
        self._scheduler.close()


def measure(task: Task) -> Figures:
    """How many times as fast entries are sent of which something is expected, and those that remember 20 runs."""
    server, count = client(task.url), task.due // 10
    empty(server)
    kinds = {kind: _Kind(task.url, server, kind, count) for kind in _KINDS}
    for _ in range(_BEFORE):
        for each in kinds.values():
            each.dispatch()
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for kind in islice(cycle(_KINDS), _TURNS * len(_KINDS)):
        rates[kind].append(kinds[kind].dispatch())
    for each in kinds.values():
        each.close()
    pairs = {"expect": ("expect", "plain"), "history": ("plain", "forgetful")}
    return {
        name: median(one / other for one, other in zip(rates[with_], rates[without], strict=True))
        for name, (with_, without) in pairs.items()
    }


def _entries(count: int, more: dict[str, Any]) -> Iterator[Entry]:
    for number, name in enumerate(names(count)):
        args, kwargs = arguments(number)
        yield Entry(name, TASK, every(3600), args, kwargs, **more)
