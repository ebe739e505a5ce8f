"""Many entries that are due at once, or have much to catch up with: how late others are meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import redis

from benchmarks.beats import Arrival, beats, parse, until
from benchmarks.subjects.common import TASK, Figures, client, empty, make_app, names
from redbeat_lite import Entry, Schedules, every
from redbeat_lite.entries.changes import Edit
from redbeat_lite.entries.state import EntryState
from redbeat_lite.store.records import PAGE, chunks

#: Entries that have missed so many runs between them.
BEHIND = 12


class Watch(threading.Thread):
    """Takes the messages of other entries out of their queues, each of the entry's name, the moment they get there."""

    def __init__(self, url: str, *queues: str) -> None:
        super().__init__(daemon=True)
        self._client, self._queues, self._stopped = client(url), queues, False
        self._arrivals: list[Arrival] = []

    def run(self) -> None:
        while not self._stopped:
            if found := self._client.blpop([*self._queues], timeout=1):
                self._arrivals.append(parse(time.time(), found[1]))

    def stop(self, since: float) -> dict[str, float]:
        """The longest lateness of each entry since then, seconds; each is due every second, and no run is left out."""
        self._stopped = True
        self.join()
        late = dict.fromkeys(self._queues, 0.0)
        for arrival in self._arrivals:
            late[arrival.entry] = max(late[arrival.entry], arrival.at - max(arrival.nominal, since))
        return late


def at_once(url: str, count: int) -> Figures:
    """So many entries that are due in one millisecond: seconds until all are in the queue; and how late one of 1 s is
    at most, and one that is due in this very millisecond."""
    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
    # Among entries of one millisecond, the name decides: in the middle of them, it comes last.
    same = f"{names(count)[count // 2]}-same"
    with client(url) as server, _others(url, other=begin + timedelta(seconds=0.1), **{same: begin}) as watch:
        schedules = Schedules(make_app(url))
        schedules.freeze(3600)  # until all are there
        schedules.add_many(Entry(name, TASK, every(3600), [n]) for n, name in enumerate(names(count)))
        _set_back(schedules, names(count), round(1000 * begin.timestamp()))
        time.sleep(max(begin.timestamp() + 0.5 - time.time(), 0))
        schedules.thaw()
        started = time.time()
        drained = _drain(server, count) - started
        late = _late(watch, started)
    return {"drain": drained, "late": late["other"], "late.same": late[same]}


def behind(url: str, runs: int) -> Figures:
    """So many missed runs of a dozen entries, each to be sent: as :func:`at_once`."""
    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
    with client(url) as server, _others(url, other=begin) as watch:
        schedules = Schedules(make_app(url))
        chosen = names(BEHIND)
        schedules.add_many(Entry(name, TASK, every(60), [0], misfire="all", expires=None) for name in chosen)
        time.sleep(max(begin.timestamp() + 1 - time.time(), 0))
        started = time.time()
        _set_back(schedules, chosen, round(1000 * started) - runs // BEHIND * 60_000)
        drained = _drain(server, runs) - started
        late = _late(watch, started)
    return {"drain": drained, "late": late["other"]}


def _set_back(schedules: Schedules, chosen: list[str], nominal: int) -> None:
    """Have these entries wait for this instant, epoch ms."""
    for chunk in chunks(chosen, PAGE):
        edits = []
        for each in schedules._store.read(chunk):
            state = EntryState.decode(each.state or b"").moved(nominal)
            edits.append(Edit(each.name, each.state, state.encode(), None, nominal))
        if not all(schedules._store.put(edits)):
            raise RuntimeError("an entry could not be set back")


@contextmanager
def _others(url: str, **since: datetime) -> Iterator[Watch]:
    """A beat, and entries of these names that are due each second since then; each has a queue of its own."""
    with client(url) as server:
        empty(server)
    entries = [
        Entry(name, TASK, every(1), [0], start_at=start, misfire="all", expires=None, options={"queue": name})
        for name, start in since.items()
    ]
    Schedules(make_app(url)).add_many(entries)
    with beats(url):
        watch = Watch(url, *since)
        watch.start()
        yield watch


def _late(watch: Watch, since: float) -> dict[str, float]:
    time.sleep(1.5)  # until the last run that was due meanwhile has come
    return watch.stop(since)


def _drain(server: redis.Redis, count: int) -> float:
    """Take so many messages out of the queue; when the last of them was there."""
    found = 0

    def is_done() -> bool:
        nonlocal found
        with server.pipeline() as pipe:
            number, _ = pipe.llen("celery").delete("celery").execute()
        found += number
        return found >= count

    until(is_done, 600)
    return time.time()
