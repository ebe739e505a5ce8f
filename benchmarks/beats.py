"""Real ``celery beat`` processes, and who notes when their messages arrive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import redis

from benchmarks.subjects.common import client
from redbeat_lite.store.keys import Keys

ROOT = Path(__file__).resolve().parents[1]
KEYS = Keys.of("redbeat-lite")

T = TypeVar("T")


class Beat:
    """One ``celery beat``."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.proj", "beat", "-S", "redbeat_lite.Scheduler"]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "BENCH_URL": url},
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(15)


@contextmanager
def beats(url: str, count: int = 1) -> Iterator[list[Beat]]:
    """So many beats; the first of them leads."""
    with ExitStack() as stack, client(url) as server:
        started: list[Beat] = []
        for _ in range(count):
            beat = Beat(url)
            stack.callback(beat.end)
            started.append(beat)
            until(lambda: leader(server) == started[0].pid, 30)
        if count > 1:
            until(lambda: _listeners(server) == count, 30)
        yield started


def leader(server: redis.Redis) -> int | None:
    """The process that leads."""
    pid = server.hget(KEYS.leader, "pid")
    return int(pid) if pid else None


def _listeners(server: redis.Redis) -> int:
    return int(server.pubsub_numsub(KEYS.wake)[0][1])


def until(condition: Callable[[], T], seconds: float) -> T:
    """Poll each millisecond until it is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing happened for {seconds} s")
        time.sleep(0.001)
    return value


class Arrival(NamedTuple):
    """A message as it came out of the queue; times are seconds since 1970."""

    at: float
    nominal: float
    entry: str
    origin: str


class Collector(threading.Thread):
    """Takes messages out of the queue the moment they get there, and notes when that was."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._client = client(url)
        self._raw: list[tuple[float, bytes]] = []
        self._stopped = False

    def run(self) -> None:
        while not self._stopped:
            found: Any = self._client.blpop(["celery"], timeout=1)
            if found is not None:
                self._raw.append((time.time(), found[1]))

    def stop(self) -> list[Arrival]:
        """All that arrived."""
        self._stopped = True
        self.join()
        return [parse(at, raw) for at, raw in self._raw]


def parse(at: float, raw: bytes) -> Arrival:
    headers = json.loads(raw)["headers"]
    nominal = datetime.fromisoformat(headers["scheduled_at"]).timestamp()
    return Arrival(at, nominal, headers["periodic_task_name"], headers["origin"])
