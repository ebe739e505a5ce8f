"""Workers that are killed at random, children and main processes, while tasks wait for each other."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from .workers import Proj, Worker, until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]


def _children(worker: Worker) -> list[int]:
    out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(worker.process.pid)], capture_output=True, text=True)
    return [int(pid) for pid in out.stdout.split()]


def test_every_task_runs_to_its_end_and_none_beside_another(proj: Proj) -> None:
    chance = random.Random(7)
    keys = [f"soak{n}-{time.monotonic_ns()}" for n in range(4)]
    crew = [Worker(proj.server, "prefork", name=f"soak{n}") for n in range(2)]
    dead: set[int] = set()
    try:
        results = [
            proj.tasks.wait_requeue.delay(chance.choice(keys), seconds=chance.random() * 0.3, n=n) for n in range(300)
        ]
        end = time.monotonic() + 40
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.5, 2.0))
            n = chance.randrange(2)
            pids = _children(crew[n])
            if chance.random() < 0.25:
                crew[n].signal(signal.SIGKILL)
                crew[n].process.wait(10)
                dead.update(pids)
                crew[n] = Worker(proj.server, "prefork", name=f"soak{n}")
            elif pids:
                victim = chance.choice(pids)
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                dead.add(victim)
        until(lambda: all(result.state == "SUCCESS" for result in results), 240)
    finally:
        for worker in crew:
            worker.close()
    died = 0
    for key in keys:
        running = None
        for entry in proj.log(key):
            if entry["event"] == "start":
                assert running is None or running["pid"] in dead, (running, entry)
                died += running is not None
                assert running is None or entry["fence"] > running["fence"]
                running = entry
            else:
                assert running is not None
                assert running["id"] == entry["id"]
                running = None
    ends = [entry["id"] for key in keys for entry in proj.log(key) if entry["event"] == "end"]
    print(f"{len(results)} tasks, {len(dead)} processes killed, {died} of them inside a body")
    assert set(ends) == {result.id for result in results}
    # A child killed between the end of its body and the storing of its result runs the body again.
    assert len(ends) - len(set(ends)) <= len(dead)
