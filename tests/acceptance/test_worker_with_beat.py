"""``celery worker -B`` in every worker: one leader among the beats inside them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import redis

from tests.harness.queues import check_queue
from tests.support.beats import EACH, STEP, conf, leader_pid, stream
from tests.support.cases import for_the_soak
from tests.support.messages import queued
from tests.support.process_table import descendants, is_running
from tests.support.processes import Process, celery
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually


class Pid(NamedTuple):
    """A process of which no more than this is known."""

    pid: int


@pytest.fixture
def worker(server: Server) -> Iterator[Callable[..., Process]]:
    """Starts workers with a beat inside; they consume a queue that stays empty."""
    processes: list[Process] = []

    def start(name: str, pool: str = "solo", **env: Any) -> Process:
        words = ("worker", "-B", "--scheduler", "redbeat_lite.Scheduler", "-P", pool, "-l", "INFO", "-Q", "idle")
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-n", f"{name}@%h")
        process = celery("tests.acceptance.proj", *words, *quiet, PROJ_URL=server.url, TMPDIR=directory, **env)
        processes.append(process)
        return process

    with TemporaryDirectory() as directory:  # one that is killed leaves files behind
        yield start
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
            process.destroy()


def _children_of(workers: Iterable[Process]) -> list[Pid]:
    return [Pid(pid) for process in workers for pid in descendants(process.pid)]


def test_three_workers_with_a_beat_each_give_one_stream(worker: Callable[..., Process], client: redis.Redis) -> None:
    settings = conf(schedule={"each": EACH})
    workers = [worker(f"w{n}", PROJ_CONF=settings) for n in range(3)]
    for process in workers:
        process.says("beat: (leading|standing by)")
    assert sum(len(process.lines("beat: leading")) for process in workers) == 1
    eventually(lambda: len(stream(client, "each")) >= 5, what="a stream")
    assert {m.sender for m in queued(client)} == {leader_pid(client)}

    # The worker that holds the leader stops, as in a rolling deployment; the beat inside another one goes on.
    [first] = [process for process in workers if process.lines("beat: leading")]
    old = leader_pid(client)
    with Stopwatch(*workers, *_children_of(workers)) as watch:
        first.terminate()
        eventually(lambda: leader_pid(client) not in (None, old), what="another leader")
    watch.at_most(2)
    assert first.wait() == 0
    seen = len(stream(client, "each"))
    eventually(lambda: len(stream(client, "each")) > seen + 5, what="the stream goes on")
    check_queue(client, ["each"], STEP)


@pytest.mark.parametrize("pool", ["prefork", *for_the_soak(["solo", "threads"])])
def test_a_beat_leaves_when_its_worker_is_killed(
    worker: Callable[..., Process], client: redis.Redis, pool: str
) -> None:
    settings = conf(schedule={"each": EACH})
    workers = [worker(f"w{n}", pool, PROJ_CONF=settings) for n in range(2)]
    for process in workers:
        process.says("beat: (leading|standing by)")
    eventually(lambda: len(stream(client, "each")) >= 5, what="a stream")
    old = leader_pid(client)
    assert old is not None
    [killed] = [process for process in workers if old in descendants(process.pid)]
    [other] = [process for process in workers if process is not killed]
    children = descendants(killed.pid)
    try:
        with Stopwatch(other, *_children_of([other]), Pid(old)) as watch:
            killed.kill()
            eventually(lambda: leader_pid(client) not in (None, old), what="another leader")
            eventually(lambda: not is_running(old), what="the end of the beat")
        # The lease of four seconds was given back; half a second is how often a beat that waits looks up.
        watch.at_most(0.5 + 2)
        eventually(lambda: not any(map(is_running, children)), what="the end of the pool")
    finally:
        for pid in filter(is_running, children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    [line] = killed.lines("beat: leaving")
    assert "WARNING" in line
    assert f"the worker that runs this beat is gone (pid {killed.pid})" in line
    assert not killed.lines("ERROR|CRITICAL|Traceback")
    assert leader_pid(client) in descendants(other.pid)
    seen = len(stream(client, "each"))
    eventually(lambda: len(stream(client, "each")) > seen + 5, what="the stream goes on")
    check_queue(client, ["each"], STEP)


def test_a_beat_that_has_nothing_to_do_leaves_too_whether_it_leads_or_stands_by(worker: Callable[..., Process]) -> None:
    workers = [worker(f"w{n}") for n in range(2)]
    for process in workers:
        process.says("beat: (leading|standing by)")
    beats = {pid for process in workers for pid in descendants(process.pid)}
    assert len(beats) == 2
    with Stopwatch(*map(Pid, beats)) as watch:
        for process in workers:
            process.kill()
        eventually(lambda: not any(map(is_running, beats)), what="the end of the beats")
    watch.at_most(0.5 + 2)
    assert [len(process.lines("beat: leaving")) for process in workers] == [1, 1]
