"""Where the time of a dispatch goes: the parts of a batch, each with a clock around it, and the server's own count of
the time that its scripts take."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import redis

from benchmarks.subjects.common import IN_SCRIPTS, Figures, Task, check_queue, client, empty, make_app, names
from benchmarks.subjects.ours import entry, make_due
from redbeat_lite import Scheduler, Schedules, every
from redbeat_lite.beat.dispatch.batch_sender import BatchSender
from redbeat_lite.beat.dispatch.planner import Planner
from redbeat_lite.store.leader_store import LeaderStore

#: The parts with a clock around them: what lies within another is taken off that one.
_PARTS = (
    (Planner, "plan"),
    (BatchSender, "make_messages"),
    (BatchSender, "commit"),
    (LeaderStore, "peek"),
    (LeaderStore, "commit"),
)


class Clocks:
    """Seconds spent in functions, without what they spent in one another."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def around(self, owner: type, name: str) -> None:
        """Put a clock around a method for as long as this process lives."""
        function: Callable[..., Any] = getattr(owner, name)
        setattr(
            owner, name, lambda *args, **kw: self._timed(f"{owner.__name__}.{name}", partial(function, *args, **kw))
        )

    def _timed(self, what: str, function: Callable[[], Any]) -> Any:
        self._inner.append(0.0)
        started = time.perf_counter()
        try:
            return function()
        finally:
            took = time.perf_counter() - started
            self.spent[what] += took - self._inner.pop()
            self._inner[-1] += took


def measure(task: Task) -> Figures:
    """Microseconds per entry of each part of a dispatch; the whole comes without the clocks."""
    server = client(task.url)
    empty(server)
    app, due = make_app(task.url), names(task.due)
    Schedules(app).add_many(entry(number, name, every(3600)) for number, name in enumerate(due))
    scheduler = Scheduler(app)
    _dispatch(scheduler, server, due)
    _dispatch(scheduler, server, due)
    clocks = Clocks()
    for owner, name in _PARTS:
        clocks.around(owner, name)
    whole = _dispatch(scheduler, server, due)
    scripts = server.info("commandstats")["cmdstat_evalsha"]["usec"] / 1e6
    scheduler.close()
    return {name: 1e6 * spent / task.due for name, spent in _parts(clocks.spent, whole, scripts).items()}


def _dispatch(scheduler: Scheduler, server: redis.Redis, due: list[str]) -> float:
    make_due(scheduler.store, due)
    server.config_resetstat()
    started = time.perf_counter()
    scheduler.run_due()
    took = time.perf_counter() - started
    check_queue(server, len(due))
    return took


def _parts(spent: dict[str, float], whole: float, scripts: float) -> dict[str, float]:
    named = {
        "with the server: packing, sending, waiting": spent["LeaderStore.peek"] + spent["LeaderStore.commit"],
        "planning: decoding states, next occurrences": spent["Planner.plan"],
        "messages: ids, times, filling in": spent["BatchSender.make_messages"],
        "advancing: next states and due times": spent["BatchSender.commit"],
    }
    return named | {"the rest": whole - sum(named.values()), IN_SCRIPTS: scripts}
