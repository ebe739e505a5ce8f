"""What only real beat processes can show: how late messages are, and how fast a stand-by takes over."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.beats import Beat, Collector, beats, leader, parse, until
from benchmarks.stats import quantile
from benchmarks.subjects.common import TASK, Figures, client, empty, make_app, names
from redbeat_lite import Entry, Schedules, at, every

#: Entries a second of the steady load.
PER_SECOND = 500

#: And of that beside a backfill.
BESIDE = 100

#: Seconds at the start of the steady load that do not count.
_WARM_UP = 2

#: Seconds between the runs of the entry that shows who leads.
_PULSE = 0.05


def added(url: str, count: int) -> list[float]:
    """Milliseconds from adding an entry that is due now to its message, while the beat sleeps for up to 300 s."""
    took = []
    with client(url) as server:
        empty(server)
        schedules = Schedules(make_app(url))
        schedules.add("far", TASK, every(86_400), [0])
        with beats(url):
            for number in range(count + 1):
                time.sleep(0.02)  # the beat is asleep again
                started = time.time()
                schedules.add(f"now-{number}", TASK, at(datetime.now(UTC)), [number], remove_when_done=True)
                if server.blpop(["celery"], timeout=10) is None:
                    raise RuntimeError("an entry that was due at once was not sent")
                took.append(1000 * (time.time() - started))
    return took[1:]  # the first opens the connection to the broker


def steady(url: str, seconds: int) -> list[float]:
    """Milliseconds from nominal time to queue of 500 entries a second, evenly spread.

    Raises:
        RuntimeError: an occurrence was lost or doubled.
    """
    with _load(url, PER_SECOND) as (begin, collector):
        first = begin + _WARM_UP
        last = first + seconds
        time.sleep(max(last + 1 - time.time(), 0))
        arrivals = collector.stop()
    counted = [arrival for arrival in arrivals if first <= arrival.nominal < last]
    seen = Counter((arrival.entry, arrival.nominal) for arrival in counted)
    if len(seen) != PER_SECOND * seconds or len(counted) != len(seen):
        raise RuntimeError(f"{PER_SECOND * seconds} messages expected, {len(counted)} came, {len(seen)} distinct")
    return [1000 * (arrival.at - arrival.nominal) for arrival in counted]


def beside_backfill(url: str, seconds: float) -> Figures:
    """Milliseconds from nominal time to queue of 100 entries a second, p99: beside a backfill that sends as fast as any
    may, and without. Four spells in turn, two of each, for so many seconds each."""
    late: dict[bool, list[float]] = {False: [], True: []}
    with _load(url, BESIDE) as (begin, collector), client(url) as server:
        schedules, now = Schedules(make_app(url)), datetime.now(UTC)
        schedules.add("past", TASK, every(1), [0], enabled=False, options={"queue": "past"})
        past = now - timedelta(seconds=90_000), now - timedelta(seconds=1)
        backfill = schedules.backfills.start("past", *past, max_active=None, rate=1000)
        schedules.backfills.pause(backfill.id)
        time.sleep(max(begin + _WARM_UP - time.time(), 0))
        spells = []
        for runs in (False, True, True, False):
            (schedules.backfills.resume if runs else schedules.backfills.pause)(backfill.id)
            started = time.time()
            time.sleep(seconds)
            spells.append((runs, started, time.time()))
        sent = server.llen("past")
        arrivals = collector.stop()
    if sent < 50 * seconds:  # it makes way for entries that are about to be due, which here one always is
        raise RuntimeError(f"the backfill has sent {sent} messages in {2 * seconds} s")
    for runs, started, ended in spells:
        late[runs] += [1000 * (each.at - each.nominal) for each in arrivals if started <= each.nominal < ended - 0.1]
    return {name: quantile(late[runs], 0.99) for name, runs in (("beside", True), ("alone", False))}


@contextmanager
def _load(url: str, per_second: int) -> Iterator[tuple[float, Collector]]:
    """A beat with so many entries of 1 s, evenly spread, from when on they are sent, and who takes the messages."""
    with client(url) as server:
        empty(server)
    with beats(url):
        begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
        step = timedelta(seconds=1 / per_second)
        entries = [
            Entry(name, TASK, every(1), [number], start_at=begin + number * step, misfire="all")
            for number, name in enumerate(names(per_second))
        ]
        collector = Collector(url)
        Schedules(make_app(url)).add_many(entries)
        collector.start()
        yield begin.timestamp(), collector


def take_over(url: str, how: signal.Signals) -> float:
    """Seconds from the end of the leader to the first message of the stand-by; an entry is due every 50 ms."""
    with client(url) as server:
        empty(server)
        Schedules(make_app(url)).add("pulse", TASK, every(_PULSE), [0], misfire="all", expires=600)
        with beats(url, 2) as (first, second):
            time.sleep(1)
            ended = time.time()
            first.signal(how)
            until(lambda: leader(server) == second.pid, 60)
            return _first_message(server, second) - ended


def _first_message(server: Any, beat: Beat) -> float:
    """When the first message of this process arrived."""
    while True:
        found = server.blpop(["celery"], timeout=10)
        now = time.time()
        if found is None:
            raise RuntimeError("the stand-by sends nothing")
        if parse(now, found[1]).origin.startswith(f"gen{beat.pid}@"):
            return now


def start(url: str) -> float:
    """Seconds from the start of a beat process to its first message; one entry is due."""
    from benchmarks.subjects.ours import make_due

    with client(url) as server:
        server.delete("celery")
        schedules = Schedules(make_app(url))
        make_due(schedules._store, names(1))
        started = time.time()
        with beats(url):
            if server.blpop(["celery"], timeout=60) is None:
                raise RuntimeError("the beat sends nothing")
            return time.time() - started
