"""The stage of the fault suite: servers, beats, a collector; faults by script and by lot; and the judgement.

The instants of faults are drawn by lot from a seed that is printed: ``SEED=… make test ARGS="-k name"`` draws the same.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from tests.faults.collector import Collector, Verdict, judge
from tests.support.beats import KEYS
from tests.support.processes import Process, celery
from tests.support.waiting import eventually

#: The load of every scenario.
ENTRIES = 500
PERIOD_MS = 1000

#: Within so many seconds after a recovery the first message is out.
BACK = 5.0


def load(count: int = ENTRIES, **fields: Any) -> dict[str, Any]:
    """A ``beat_schedule`` of that many entries of one second each, of which nothing may be left out."""
    entry = {"task": "proj.add", "schedule": PERIOD_MS / 1000, "misfire": "all", "expires": 3600, **fields}
    return {f"e{n:03}": entry for n in range(count)}


class Stage:
    """One scenario.

    Parameters:
        seconds: how long it is to run under load: 10 in the ordinary run, 60 in the soak.
        schedule: opens a client of the server that holds the schedule.
        broker: opens a client of the one that holds the queue; the same by default.
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
        self.chance = random.Random(self.seed)
        self.seconds = seconds
        self.url = url
        self.beats: list[Process] = []
        self.killed: list[Process] = []
        self.recoveries: list[float] = []
        self.outages: list[tuple[float, float]] = []
        self._schedule = schedule
        prefixed = {f"redbeat_lite_{name}": value for name, value in settings.items()}
        self._conf = {"beat_schedule": load(), **prefixed, **(conf or {})}
        self.collector = Collector(broker or schedule, trim=trim)
        self.started = time.monotonic()

    # -- processes ----------------------------------------------------------------------------------------------------

    def beat(self, *, url: str | None = None, app: str = "tests.faults.faultproj", **env: Any) -> Process:
        """Start a beat; ``conf=`` adds to its settings, anything else to its environment."""
        conf = {**self._conf, **env.pop("conf", {})}
        words = ("beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO")
        process = celery(app, *words, PROJ_URL=url or self.url, PROJ_CONF=json.dumps(conf), **env)
        self.beats.append(process)
        return process

    def begin(self) -> Process:
        """Wait for the load; returns the leader."""
        self.flows()
        return self.leader()

    def leader(self) -> Process:
        """The beat that holds the lease; waits until there is one."""
        return eventually(self._leader, within=20, what="a leader among the beats")

    def _leader(self) -> Process | None:
        try:
            with self._schedule() as client:
                pid = client.hget(KEYS.leader, "pid")
        except Exception:
            return None
        return next((each for each in self.beats if pid and each.pid == int(pid)), None)

    def kill(self, process: Process) -> None:
        """SIGKILL a beat."""
        process.kill()
        process.wait()
        self.beats.remove(process)
        self.killed.append(process)

    def stop(self, process: Process) -> None:
        """SIGTERM a beat; it exits with 0. How soon, is a matter of tests that have the machine to themselves."""
        process.terminate()
        assert process.wait() == 0, process.output
        self.beats.remove(process)
        self.killed.append(process)

    @contextmanager
    def frozen(self, process: Process) -> Iterator[None]:
        """A beat that is stopped for a while."""
        process.signal(signal.SIGSTOP)
        yield
        process.signal(signal.SIGCONT)

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds that are left for faults: after the last one, there are two periods to catch up."""
        return self.started + self.seconds - 2 * PERIOD_MS / 1000 - time.monotonic()

    def pause(self, least: float, most: float | None = None) -> None:
        """Let it run for a time drawn by lot."""
        time.sleep(self.chance.uniform(least, most if most is not None else least))

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

    def finish(self) -> None:
        """Let the rest of the scenario's time pass, in which everything catches up."""
        time.sleep(max(self.left, 0) + 2 * PERIOD_MS / 1000)

    @contextmanager
    def outage(self, excused: float = BACK) -> Iterator[None]:
        """A fault that lasts; when it ends, things have to go on within five seconds.

        Parameters:
            excused: how long after its end occurrences may still be late.
        """
        start = time.time()
        yield
        end = time.time()
        self.outages.append((start - PERIOD_MS / 1000, end + excused))
        self.recoveries.append(end)
        self.flows(within=20)

    def struck(self, excused: float) -> None:
        """A fault of a moment, after which occurrences may be late for so long."""
        now = time.time()
        self.outages.append((now - PERIOD_MS / 1000, now + excused))
        self.recoveries.append(now)

    def records_of(self, chosen: Callable[[str], bool]) -> None:
        """Judge the messages of these entries alone."""
        self.collector.records = [record for record in self.collector.records if chosen(record.entry)]

    # -- judgement ----------------------------------------------------------------------------------------------------

    def verdict(self, period: int | None = PERIOD_MS, *, shifted: bool = False) -> Verdict:
        """Stop everything, hold each process to its manners, and judge the stream.

        Parameters:
            period: of the entries, in ms; ``None`` where the fault changes their phase.
            shifted: the beats' clock was not ours, so that nominal times say nothing about lateness.
        """
        leader = self.leader()
        # The leader last: else another one would lead for the moment until it is stopped, too.
        for each in sorted(self.beats, key=lambda each: each is leader):
            assert each.alive, each.output
            self.stop(each)
        time.sleep(0.1)  # until the last message is collected
        self.collector.stop()
        for each in self.killed:
            assert not each.lines("CRITICAL|Traceback"), each.output
        verdict = judge(self.collector.records, period, self.outages, self.recoveries)
        verdict.stall = self.collector.stall
        print(verdict)
        assert len({record.entry for record in self.collector.records}) >= ENTRIES
        assert shifted or verdict.early == 0
        assert verdict.renamed == 0, "an occurrence has one id"
        assert verdict.back < BACK + verdict.stall, f"back after {verdict.back} s"
        terms = sum(len(each.lines("beat: leading")) for each in self.killed)
        assert verdict.handovers < max(terms, 1) + 1, "two beats sent at the same time"
        self._check_keys()
        return verdict

    def _check_keys(self) -> None:
        with self._schedule() as client:
            if isinstance(client, redis.RedisCluster):
                found = {key for node in client.get_primaries() for key in client.keys("*", target_nodes=node)}
            else:
                found = set(client.keys("*"))
        ours = {key.encode() for key in vars_of(KEYS)}
        leaked = {key for key in found - ours if not key.startswith((b"_kombu.", b"celery"))}
        assert not leaked, leaked

    def close(self) -> None:
        self.collector.stop()
        for each in (*self.beats, *self.killed):
            each.destroy()


def vars_of(keys: Any) -> list[str]:
    """The names of all keys."""
    return [getattr(keys, name) for name in keys.__slots__]
