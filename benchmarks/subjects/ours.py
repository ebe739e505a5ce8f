"""redbeat_lite."""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median
from typing import Any

import redis
from celery import Celery

from benchmarks.stats import seconds
from benchmarks.subjects.common import (
    TASK,
    Figures,
    Task,
    arguments,
    check_queue,
    client,
    commands,
    empty,
    full,
    make_app,
    memory,
    names,
)
from redbeat_lite import Entry, Scheduler, Schedules, cron, every
from redbeat_lite.entries.changes import Edit
from redbeat_lite.entries.state import EntryState
from redbeat_lite.store.records import PAGE, chunks
from redbeat_lite.store.store import Store

HOUR = 3_600_000

#: How often a dispatch that is over in a moment is repeated within a round.
_REPEATS = 5


def entry(number: int, name: str, schedule: Any) -> Entry:
    """The entry that every subject schedules."""
    args, kwargs = arguments(number)
    return Entry(name, TASK, schedule, args, kwargs)


def make_due(store: Store, names: Iterable[str], *, on_the_hour: bool = False, at: int | None = None) -> None:
    """Let entries be due, each at an instant of its own, or all at the last full hour, or at this one, epoch ms."""
    now = int(time.time() * 1000)
    at = now // HOUR * HOUR if on_the_hour else at
    for chunk in chunks(enumerate(names), PAGE):
        edits = []
        for (number, name), stored in zip(chunk, store.read([name for _, name in chunk]), strict=True):
            nominal = now - number % 1000 - 1 if at is None else at
            state = EntryState.decode(stored.state or b"").moved(nominal)
            edits.append(Edit(name, stored.state, state.encode(), None, nominal))
        if not all(store.put(edits)):
            raise RuntimeError("an entry could not be made due")


class Beat:
    """A beat in this process that leads already.

    Parameters:
        app: the app.
        server: a client, to look at the queue.
        names: the entries that :meth:`dispatch` makes due first.
    """

    def __init__(self, app: Celery, server: redis.Redis, names: list[str], *, on_the_hour: bool = False) -> None:
        self._server = server
        self._names = names
        self._on_the_hour = on_the_hour
        self._scheduler = Scheduler(app)
        self._scheduler.run_due()

    def dispatch(self) -> float:
        """Seconds to dispatch all entries."""
        make_due(self._scheduler.store, self._names, on_the_hour=self._on_the_hour)
        took = seconds(self._scheduler.run_due)
        check_queue(self._server, len(self._names))
        return took

    def steady(self) -> float:
        """The same, of entries that have been sent before: a median."""
        return median(self.dispatch() for _ in range(_REPEATS))

    def commands_of_idle_tick(self) -> int:
        with commands(self._server) as seen:
            self._scheduler.run_due()
        return len(seen)

    def commands_of_dispatch(self) -> int:
        make_due(self._scheduler.store, self._names)
        with commands(self._server) as seen:
            self._scheduler.run_due()
        check_queue(self._server, len(self._names))
        return len(seen)

    def close(self) -> None:
        self._scheduler.close()


def measure(task: Task) -> Figures:
    figures = _storing(task)
    figures |= _interval(task)
    for key, schedule, conf in (
        ("cron", cron("0 * * * *"), {}),
        ("batch", every(3600), {"redbeat_lite_dispatch": "batch"}),
    ):
        beat = _filled(task.url, task.due, schedule, on_the_hour=key == "cron", **conf)
        beat.dispatch()
        figures[f"rate.{key}"] = task.due / beat.steady()
        beat.close()
    for due in task.due_steps:
        beat = _filled(task.url, due, every(3600))
        figures[f"rate.cold.{due}"] = due / beat.dispatch()
        figures[f"rate.interval.{due}"] = due / beat.steady()
        beat.close()
    return figures


def _filled(url: str, count: int, schedule: Any, *, on_the_hour: bool = False, **conf: Any) -> Beat:
    server = client(url)
    empty(server)
    app = make_app(url, **conf)
    Schedules(app).add_many(entry(number, name, schedule) for number, name in enumerate(names(count)))
    return Beat(app, server, names(count), on_the_hour=on_the_hour)


def _storing(task: Task) -> Figures:
    """Bytes and time per entry stored, one by one and in bulk."""
    server = client(task.url)
    schedules = Schedules(make_app(task.url))
    schedules.add_many([entry(0, "warm", every(3600))])
    empty(server)
    before = memory(server)
    entries = [entry(number, name, every(3600)) for number, name in enumerate(names(task.due))]
    bulk = seconds(lambda: schedules.add_many(entries))
    used = memory(server) - before
    empty(server)
    made = (entry(number, name, every(3600)) for number, name in enumerate(names(task.due)))
    making = seconds(lambda: schedules.add_many(made))
    empty(server)
    before = memory(server)
    hourly, due = every(3600), enumerate(names(task.due))
    schedules.add_many(Entry(name, TASK, hourly, *full(number), misfire="skip") for number, name in due)
    figures = {"bytes": used / task.due, "bytes.full": (memory(server) - before) / task.due}
    empty(server)
    one_by_one = seconds(lambda: _add_each(schedules, task.singles))
    return figures | {
        "added": task.singles / one_by_one,
        "added.bulk": task.due / bulk,
        "added.made": task.due / making,
    }


def _add_each(schedules: Schedules, count: int) -> None:
    for number, name in enumerate(names(count)):
        args, kwargs = arguments(number)
        schedules.add(name, TASK, every(3600), args, kwargs)


def _interval(task: Task) -> Figures:
    beat = _filled(task.url, task.due, every(3600))
    figures = {"rate.cold": task.due / beat.dispatch(), "rate.interval": task.due / beat.steady()}
    figures["commands.due"] = beat.commands_of_dispatch() / task.due
    idle = []
    for _ in range(5):
        idle.append(beat.commands_of_idle_tick())
    figures["commands.idle"] = median(idle)
    beat.close()
    return figures
