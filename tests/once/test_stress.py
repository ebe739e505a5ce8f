"""Many processes, few keys, and everything that can go wrong at once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from redbeat_lite.once.keys import OnceKeys
from tests.once.server import Server
from tests.once.stress import Chaos
from tests.once.workers import until
from tests.support.nursery import ROOT

PROCESSES = 8


@pytest.mark.parametrize(
    ("jobs", "keys"),
    [
        pytest.param(150, 6, marks=pytest.mark.timeout(60)),
        pytest.param(1_500, 20, marks=[pytest.mark.soak, pytest.mark.timeout(300)]),
        pytest.param(15_000, 40, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_no_overlap_no_lost_job_no_fence_going_back(jobs: int, keys: int) -> None:
    server = Server()
    try:
        seconds = _play(server, jobs, keys)
        crashes = _judge(server, jobs, keys)
        client = server.client()
        lost, duplicates = int(client.get("lost") or 0), int(client.get("duplicates") or 0)
        print(f"{jobs} jobs in {seconds:.1f}s: {crashes} crashes, {duplicates} duplicates, {lost} lost wake-ups")
        assert duplicates > jobs * 0.02
        assert jobs < 1_000 or (crashes > jobs * 0.004 and lost > 0)
    finally:
        server.close()


def _play(server: Server, jobs: int, keys: int) -> float:
    started = time.monotonic()
    publisher = Chaos(str(server.socket), 0)
    order = random.Random(jobs)
    for n in range(jobs):
        publisher.publish(json.dumps({"id": f"job-{n}", "key": f"k{order.randrange(keys)}"}))
    command = [sys.executable, "-m", "tests.once.stress", str(server.socket), str(PROCESSES)]
    troupe = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        until(lambda: _ended(server, keys) >= jobs, jobs)
        # Copies and standbys that are still about must come to nothing.
        until(lambda: _is_quiet(server), 30)
        server.client().set("stop", 1)
        troupe.wait(20)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(troupe.pid, signal.SIGKILL)
        troupe.wait()
    return time.monotonic() - started


def _is_quiet(server: Server) -> bool:
    """Nothing is left to be run, to be woken or to be reaped."""
    client, keys = server.client(), OnceKeys("s")
    return not client.exists("jobs", keys.index, keys.guard_index)


def _log(server: Server, key: str) -> list[tuple[str, str, int, str | None]]:
    return [tuple(json.loads(line)) for line in server.client().lrange(f"log:{key}", 0, -1)]


def _ended(server: Server, keys: int) -> int:
    return sum(event == "end" for n in range(keys) for event, *_ in _log(server, f"k{n}"))


def _judge(server: Server, jobs: int, keys: int) -> int:
    """Hold the logs against the contracts; the number of crashes."""
    done, crashed = [], 0
    for n in range(keys):
        log = _log(server, f"k{n}")
        starts, ends = log[::2], log[1::2]
        assert all(entry[0] == "start" for entry in starts), "two runs of one key overlap"
        assert all(a[1:] == b[1:] for a, b in zip(starts, ends, strict=True)), "two runs of one key overlap"
        fences = [entry[2] for entry in starts]
        assert fences == sorted(set(fences)), "a fence went back"
        # A run that had to wait carries its place; those must come in order.
        places = [int(entry[3]) for entry in starts if entry[3]]
        assert places == sorted(places), "a waiter was overtaken"
        done += [entry[1] for entry in ends if entry[0] == "end"]
        crashed += sum(entry[0] == "crash" for entry in ends)
    assert sorted(done) == sorted(f"job-{n}" for n in range(jobs)), "a job was lost or ran twice to its end"
    left = [
        key for key in server.client().scan_iter("*") if "once:lock" in key or "once:wait" in key or "parked" in key
    ]
    assert left == []
    return crashed
