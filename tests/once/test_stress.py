"""Many processes, few keys, and everything that can go wrong at once."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from redbeat_lite.once.lock_store import OnceKeys
from tests.harness.history import HistoryLog
from tests.once.stress import Chaos
from tests.support.nursery import ROOT
from tests.support.server import Server
from tests.support.waiting import eventually

PROCESSES = 8


@pytest.mark.parametrize(
    ("jobs", "keys"),
    [
        pytest.param(150, 6, marks=pytest.mark.timeout(60)),
        pytest.param(1_500, 20, marks=[pytest.mark.soak, pytest.mark.timeout(300)]),
        pytest.param(15_000, 40, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_no_overlap_no_lost_job_no_fence_going_back(history: HistoryLog, jobs: int, keys: int) -> None:
    """The audit of the history sees to all of that, and that no waiter is overtaken."""
    with Server() as server:
        seconds = _play(server, history, jobs, keys)
        client = server.client(decode_responses=True)
        left = [key for key in client.scan_iter("*") if re.search("once:lock|once:wait|parked", key)]
        assert left == []
        lost, duplicates = int(client.get("lost") or 0), int(client.get("duplicates") or 0)
    bodies = history.bodies()
    crashes = sum(not body["done"] for body in bodies)
    assert len(bodies) - crashes == jobs
    assert len({(body["key"], body["fence"]) for body in bodies}) == len(bodies), "a fence was given twice"
    assert any(body["place"] is not None for body in bodies), "nobody had to wait"
    print(f"{jobs} jobs in {seconds:.1f}s: {crashes} crashes, {duplicates} duplicates, {lost} lost wake-ups")
    assert duplicates > jobs * 0.02
    assert jobs < 1_000 or (crashes > jobs * 0.004 and lost > 0)


def _play(server: Server, history: HistoryLog, jobs: int, keys: int) -> float:
    started = time.monotonic()
    publisher, client = Chaos(str(server.socket), 0), server.client()
    order = random.Random(jobs)
    history.append(*({"kind": "task", "id": f"job-{n}"} for n in range(jobs)))
    for n in range(jobs):
        publisher.publish(json.dumps({"id": f"job-{n}", "key": f"k{order.randrange(keys)}"}))
    command = [sys.executable, "-m", "tests.once.stress", str(server.socket), str(PROCESSES)]
    troupe = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        eventually(lambda: int(client.get("ended") or 0) >= jobs, within=jobs)
        # Copies and standbys that are still about must come to nothing.
        eventually(lambda: _is_quiet(server))
        client.set("stop", 1)
        troupe.wait(20)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(troupe.pid, signal.SIGKILL)
        troupe.wait()
    return time.monotonic() - started


def _is_quiet(server: Server) -> bool:
    """Return whether nothing is left to be run, to be woken or to be reaped."""
    keys = OnceKeys("s")
    with server.client() as client:
        return not client.exists("jobs", keys.index, keys.guard_index)
