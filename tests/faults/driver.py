"""The stage of the fault suite: servers, beats, workers, a collector; faults by script and by lot; and the judgement.

The instants of faults are drawn by lot from a seed that is printed: ``SEED=… make test ARGS="-k name"`` draws the same.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from redbeat_lite.once.keys import OnceKeys
from redbeat_lite.runs.keys import RunKeys
from tests.faults.collector import Collector, Record, Verdict, judge, strays
from tests.faults.guarded import Guarded
from tests.faults.troupe import QUEUE, Troupe
from tests.support.beats import KEYS
from tests.support.processes import Process
from tests.support.waiting import eventually

#: The load of every scenario, in the soak and in the ordinary run.
ENTRIES = 500 if "SOAK_MINUTES" in os.environ else 50
PERIOD_MS = 1000

#: Within so many seconds after a recovery the first message is out; after a crash of the leader, within its lease and
#: half a second, and up to a period more until something is due.
BACK = 5.0
CRASH = 0.5 + PERIOD_MS / 1000

#: Longer than a message takes from a queue into the hands of a worker, in seconds.
IN_FLIGHT = 1.0

ONCE_KEYS, RUN_KEYS = OnceKeys("redbeat-lite"), RunKeys("redbeat-lite")

#: Keys that go when their time is over: what the guard remembers of each task, and a lock of kombu's.
PASSING = (*(key.encode() for key in (KEYS.reply(""), ONCE_KEYS.guard(""), RUN_KEYS.rows(""))), b"unacked_mutex")


def load(count: int = ENTRIES, **fields: Any) -> dict[str, Any]:
    """A ``beat_schedule`` of that many entries of one second each, of which nothing may be left out."""
    entry = {"task": "proj.add", "schedule": PERIOD_MS / 1000, "misfire": "all", "expires": 3600, **fields}
    return {f"e{n:03}": entry for n in range(count)}


class Stage(Troupe):
    """One scenario.

    Parameters:
        seconds: how long it is to run under load: 5 in the ordinary run, 60 in the soak.
        schedule: opens a client of the server that holds the schedule.
        url: of the broker, with a password.
        broker: opens a client of the server that holds the queue; that of the schedule by default.
        trim: keep the queue short.
        settings: of the app, without their prefix.
        conf: further settings of the app.
    """

    def __init__(
        self,
        seconds: float,
        schedule: Callable[[], Any],
        url: str,
        broker: Callable[[], redis.Redis] | None = None,
        conf: dict[str, Any] | None = None,
        trim: bool = False,
        **settings: Any,
    ) -> None:
        self.seed = int(os.environ.get("SEED", random.randrange(10**6)))
        print(f"SEED={self.seed}")
        prefixed = {f"redbeat_lite_{name}": value for name, value in settings.items()}
        conf = {"beat_schedule": load(), **prefixed, **(conf or {})}
        super().__init__(schedule, url, conf, random.Random(self.seed))
        self.seconds = seconds
        self.bound = max(BACK, settings.get("lease", 4.0) + CRASH)
        self.recoveries: list[float] = []
        self.outages: list[tuple[float, float]] = []
        self.collector = Collector(broker or schedule, trim=trim)
        self.started = time.monotonic()
        self.watch.start()

    def begin(self) -> Process:
        """Start two beats, unless some were started, and wait for the load; returns the leader."""
        if not self.beats:
            self.beat()
            self.beat()
        self.flows()
        self.started = time.monotonic()
        return self.leader()

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds that are left for faults: after the last one, there are two periods to catch up."""
        return self.started + self.seconds - 2 * PERIOD_MS / 1000 - time.monotonic()

    def pause(self, least: float, most: float | None = None) -> None:
        """Let it run for a time drawn by lot."""
        time.sleep(self.chance.uniform(least, most if most is not None else least))

    def rest(self) -> None:
        """Let the time pass that is left for faults."""
        time.sleep(max(self.left, 0))

    def flows(self, within: float = 20.0) -> None:
        """Wait until messages of now arrive."""
        start = time.time() * 1000

        def arrived() -> bool:
            last = self.collector.records[-1:]
            return bool(last) and last[0].arrival >= start

        try:
            eventually(arrived, within=within, what="messages")
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n" + "\n".join(each.output[-3000:] for each in self.beats)) from None

    def catches_up(self, entries: Collection[str], within: float = 60.0) -> None:
        """Wait until the latest occurrence of each of these entries has come."""

        def behind() -> list[str]:
            since = 1000 * time.time() - 2 * PERIOD_MS
            return [name for name in entries if self.collector.latest.get(name, 0) < since]

        eventually(lambda: not behind(), within=within, what="the latest occurrence of each entry")

    @contextmanager
    def outage(self, *, quiet: float = 0.0) -> Iterator[None]:
        """A fault that lasts; when it ends, things have to go on within five seconds.

        It is over when no entry is behind any more, and its last traces are gone one period later.

        Parameters:
            quiet: for so many seconds at least nothing may come while it lasts, or it was none.
        """
        start = time.time()
        yield
        self.recoveries.append(time.time())
        self.flows(within=20)
        self.catches_up(load().keys() & self._conf["beat_schedule"].keys(), within=20)
        assert self._longest_pause(start) > quiet, "the fault has stopped nothing"
        self.outages.append((start - PERIOD_MS / 1000, time.time() + PERIOD_MS / 1000))

    def _longest_pause(self, since: float) -> float:
        """Seconds for which nothing came, at most, of the pauses that ended after this."""
        records = self.collector.records
        first = len(records)
        while first > 0 and records[first - 1].arrival > 1000 * since:
            first -= 1
        arrivals = [record.arrival for record in records[max(first - 1, 0) :]]
        return max(after - before for before, after in itertools.pairwise(arrivals)) / 1000

    def struck(self, excused: float) -> None:
        """A fault of a moment, after which occurrences may be late for so long."""
        now = time.time()
        self.outages.append((now - PERIOD_MS / 1000, now + excused))
        self.recoveries.append(now)

    # -- judgement ----------------------------------------------------------------------------------------------------

    def verdict(
        self,
        period: int | None = PERIOD_MS,
        *,
        shifted: bool = False,
        entries: Collection[str] = tuple(load()),
        stray: int = 0,
        late: float = PERIOD_MS / 1000,
    ) -> Verdict:
        """Let the rest of the time pass, stop everything, hold each process to its manners, and judge the stream.

        Parameters:
            period: of the entries, in ms; ``None`` where the fault changes their phase.
            shifted: the beats' clock was not ours, so that nominal times say nothing about lateness.
            entries: which of them; none of these may be silent in the end.
            stray: so many messages may be those of a beat that had not noticed yet that it leads no more.
            late: within so many seconds of its nominal time each comes that lies in no outage.
        """
        self.rest()
        time.sleep(2 * PERIOD_MS / 1000)
        names = set(entries)
        self.catches_up(names)
        self._end()
        records = [record for record in self.collector.records if record.entry in names]
        verdict = judge(records, period, self.outages, self.recoveries)
        verdict.stall = self.collector.stall
        verdict.withheld = self.watch.worst(self.bound, since=self.started)
        print(verdict)
        assert self.recoveries, "there was no fault"
        assert {record.entry for record in records} == names
        assert verdict.extra == 0
        assert period is None or _begin_together(records), "an entry began late"
        assert shifted or verdict.early == 0
        assert shifted or verdict.late < late + verdict.withheld
        assert verdict.renamed == 0, "an occurrence has one id"
        assert verdict.back < self.bound + verdict.withheld, f"back after {verdict.back} s"
        if not shifted:
            verdict.strays = strays(records, self.terms())
            assert verdict.strays <= stray, "a beat sent that did not lead"
        self._check_keys()
        return verdict

    def _end(self) -> None:
        self.dismiss_beats()
        if self.workers:
            # What a busy machine has left to do takes no longer than it took to come.
            eventually(self._is_drained, within=max(self.seconds, 60), what="the end of all work")
            self.dismiss_workers()
        self.check_words()
        time.sleep(0.1)  # until the last message is collected
        self.collector.stop()

    def _is_drained(self) -> bool:
        """Whether no message waits, none is in the hands of a worker, and no lock is held.

        A message that kombu takes, or that is sent again, is nowhere for a moment: so it is looked at twice.
        """
        if self._holds_something():
            return False
        time.sleep(IN_FLIGHT)
        return not self._holds_something()

    def _holds_something(self) -> bool:
        self.revive()
        with self._schedule() as client:
            waiting = client.exists(QUEUE, "unacked", "unacked_index", ONCE_KEYS.guard_index)
            return bool(waiting or client.keys(ONCE_KEYS.lock("*")))

    def _check_keys(self) -> None:
        with self._schedule() as client:
            if isinstance(client, redis.RedisCluster):
                found = {key for node in client.get_primaries() for key in client.keys("*", target_nodes=node)}
            else:
                found = set(client.keys("*"))
            passing = {key for key in found if key.startswith(PASSING) and client.ttl(key) != -1}
        once = (ONCE_KEYS.index, ONCE_KEYS.fence, ONCE_KEYS.workers)
        ours = {key.encode() for key in (*vars_of(KEYS), *once, *RUN_KEYS.kinds)}
        leaked = {key for key in found - ours - passing if key != b"celery" and not key.startswith(b"_kombu.")}
        assert not leaked, leaked
        assert KEYS.leader.encode() not in found, "the lease was not given back"

    def close(self) -> None:
        self.watch.stop()
        self.collector.stop()
        super().close()


#: What the fixtures give: a stage on a server, a place for figures, and servers of a test's own.
On = Callable[..., Stage]
Publish = Callable[..., None]
Own = Callable[..., Guarded]


def _begin_together(records: Iterable[Record]) -> bool:
    """Whether every entry of the load came within a period of the first one for the first time."""
    firsts: dict[str, int] = {}
    for record in records:
        firsts[record.entry] = min(record.nominal, firsts.get(record.entry, record.nominal))
    own = [first for name, first in firsts.items() if name in load()]
    return max(own) - min(own) < PERIOD_MS


def vars_of(keys: Any) -> list[str]:
    """The names of all keys."""
    return [getattr(keys, name) for name in keys.__slots__]
