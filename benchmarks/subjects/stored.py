"""redbeat_lite with many entries stored and few due: the cost of a tick, and of a start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from benchmarks.stats import seconds
from benchmarks.subjects.common import Figures, Task, check_queue, client, empty, make_app, names
from benchmarks.subjects.ours import entry, make_due
from redbeat_lite import Entry, Scheduler, Schedules, every

#: Entries due, however many are stored.
DUE = 100


def fill(url: str, count: int) -> None:
    """Store so many entries, none of them due soon."""
    empty(client(url))
    hourly = every(3600)
    entries: Iterator[Entry] = (entry(number, name, hourly) for number, name in enumerate(names(count)))
    Schedules(make_app(url)).add_many(entries)


def measure(task: Task) -> Figures:
    """Milliseconds of a tick with 100 due, and seconds from nothing to the first message, in one process."""
    server = client(task.url)
    due = names(DUE)
    scheduler = Scheduler(make_app(task.url))
    make_due(scheduler.store, due[:1])
    started = time.perf_counter()
    scheduler.run_due()
    figures = {"start": time.perf_counter() - started}
    check_queue(server, 1)
    ticks = []
    for _ in range(task.ticks):
        make_due(scheduler.store, due)
        ticks.append(seconds(scheduler.run_due))
        check_queue(server, DUE)
    scheduler.close()
    return figures | {"tick": 1000 * median(ticks[1:])}
