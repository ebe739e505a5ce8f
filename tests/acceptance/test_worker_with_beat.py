"""``celery worker -B`` in every worker: one leader among the beats inside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.support.beats import EACH, INTERVAL, conf, doubled, gaps, leader_pid, sender, stream
from tests.support.messages import queued
from tests.support.processes import Process, celery
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually


@pytest.fixture
def worker(server: Server) -> Iterator[Callable[[str], Process]]:
    """Starts workers with a beat inside; they consume a queue that stays empty."""
    processes: list[Process] = []

    def start(name: str, **env: Any) -> Process:
        words = ("worker", "-B", "--scheduler", "redbeat_lite.Scheduler", "-P", "solo", "-l", "INFO", "-Q", "idle")
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-n", f"{name}@%h")
        process = celery("tests.acceptance.proj", *words, *quiet, PROJ_URL=server.url, **env)
        processes.append(process)
        return process

    yield start
    # Killed outright, they would leave the beats inside them behind.
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()
        process.destroy()


def test_five_workers_with_a_beat_each_give_one_stream(worker: Callable[..., Process], client: redis.Redis) -> None:
    settings = conf(schedule={"each": EACH})
    workers = [worker(f"w{n}", PROJ_CONF=settings) for n in range(5)]
    for process in workers:
        process.says("beat: (leading|standing by)")
    assert sum(len(process.lines("beat: leading")) for process in workers) == 1
    eventually(lambda: len(stream(client, "each")) >= 5, what="a stream")
    assert {sender(m) for m in queued(client)} == {leader_pid(client)}

    # The worker that holds the leader stops, as in a rolling deployment; the beat inside another one goes on.
    [first] = [process for process in workers if process.lines("beat: leading")]
    old = leader_pid(client)
    with Stopwatch(*workers) as watch:
        first.terminate()
        eventually(lambda: leader_pid(client) not in (None, old), within=30, what="another leader")
    watch.at_most(2)
    assert first.wait() == 0
    seen = len(stream(client, "each"))
    eventually(lambda: len(stream(client, "each")) > seen + 5, what="the stream goes on")
    assert gaps(stream(client, "each")) == {1000 * INTERVAL}
    assert not doubled(queued(client))
