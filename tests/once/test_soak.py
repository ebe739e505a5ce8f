"""Workers and their children are killed at random while tasks wait for each other."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from tests.once.client import OnceClient
from tests.once.pools import once_worker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]


def test_every_task_runs_to_its_end_and_none_beside_another(proj: OnceClient) -> None:
    chance = random.Random(7)
    keys = [f"soak{n}-{time.monotonic_ns()}" for n in range(4)]
    crew = [once_worker(proj.server.url, name=f"soak{n}") for n in range(2)]
    dead: set[int] = set()
    try:
        send = proj.tasks.wait_requeue.delay
        results = [send(chance.choice(keys), seconds=chance.random() * 0.3) for _ in range(300)]
        proj.log.append(*({"kind": "task", "id": result.id} for result in results))
        end = time.monotonic() + 40
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.5, 2.0))  # at a random instant, which is what this is about
            n = chance.randrange(2)
            pids = crew[n].children()
            if chance.random() < 0.25:
                crew[n].signal(signal.SIGKILL)
                crew[n].wait(10)
                dead.update(pids)
                crew[n] = once_worker(proj.server.url, name=f"soak{n}")
            elif pids:
                victim = chance.choice(pids)
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                dead.add(victim)
        eventually(lambda: all(result.state == "SUCCESS" for result in results), within=240)
    finally:
        for worker in crew:
            worker.destroy()
    bodies = [body for body in proj.log.bodies() if body["name"] in keys]
    died = [body for body in bodies if not body.get("finished")]
    assert {body["pid"] for body in died} <= dead, "a body ended that nobody had killed"
    again = sum(bool(body.get("finished")) for body in bodies) - len(results)
    print(f"{len(results)} tasks, {len(dead)} processes killed, {len(died)} of them inside a body")
    # A child that is killed between the end of its body and the storing of its result runs the body again.
    assert again <= len(dead)
