"""One leader at a time, whatever happens to the lease, to the leader or to its process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis

from redbeat_lite import Entry, Schedules, every
from tests.harness.queues import check_queue
from tests.support.beats import (
    EACH,
    FAST,
    INTERVAL,
    KEYS,
    STEP,
    conf,
    leader_pid,
    leads,
    sent_by,
    settled,
    stream,
)
from tests.support.messages import of_entry, queued
from tests.support.process_table import is_stopped
from tests.support.processes import Process
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

Beat = Callable[..., Process]

#: The default lease, and how often it is renewed.
LEASE, RENEWAL = 4.0, 1.0


@pytest.mark.parametrize("schedule", [{"each": EACH}, {}], ids=["busy", "idle"])
def test_a_deleted_lease_is_taken_back_by_the_same_process(
    beat: Beat, client: redis.Redis, schedule: dict[str, object]
) -> None:
    process = beat(PROJ_CONF=conf(schedule=schedule))
    leads(process, client)
    process.says("beat: leading")
    with Stopwatch(process) as watch:
        client.delete(KEYS.leader)
        leads(process, client)
    watch.at_most(RENEWAL + 0.6)  # half a second is how often a waiting beat looks up
    process.says(r"beat: leading \(term 2\)")
    if schedule:
        # The stream goes on, without a gap and without an echo.
        seen = len(stream(client, "each"))
        eventually(lambda: len(stream(client, "each")) > seen + 3, what="more messages")
        check_queue(client, ["each"], STEP)
    [warning] = process.lines("WARNING.*no longer leading")
    assert "the lease is gone from Redis" in warning
    assert not process.lines("ERROR|CRITICAL|Traceback")
    assert process.alive


def test_nothing_is_sent_while_somebody_else_holds_the_lease(beat: Beat, client: redis.Redis) -> None:
    process = beat(PROJ_CONF=conf(schedule={"fast": FAST, "each": EACH}, lease=1))
    eventually(lambda: stream(client, "fast"), what="the stream")
    pipe = client.pipeline(transaction=True)
    pipe.delete(KEYS.leader)
    pipe.hset(KEYS.leader, mapping={"token": "elsewhere:1:5eed:proj", "term": 99, "host": "elsewhere", "pid": 1})
    pipe.pexpire(KEYS.leader, 1500)
    pipe.llen("celery")
    sent = pipe.execute()[-1]
    while client.exists(KEYS.leader) and leader_pid(client) == 1:
        with client.pipeline(transaction=True) as pipe:
            length, pid = pipe.llen("celery").hget(KEYS.leader, "pid").execute()
        if pid == b"1":
            assert length == sent
        time.sleep(0.01)
    with Stopwatch(process) as watch:
        leads(process, client)
    watch.at_most(0.5)
    process.says("beat: standing by; pid 1 on elsewhere leads")
    assert len(process.lines("WARNING.*no longer leading")) == 1
    eventually(lambda: len(stream(client, "each")) > 12, what="the stream goes on")
    check_queue(client, ["each"], STEP)


def dispatches(schedules: Schedules, client: redis.Redis, numbers: range) -> None:
    """Add entries of these numbers that are all due at once, and wait for the first few messages of theirs."""
    due = datetime.now(UTC) + timedelta(seconds=2)
    schedules.add_many(Entry(f"entry-{n}", "proj.add", every(3600), start_at=due, expires=None) for n in numbers)
    eventually(lambda: client.llen("celery") >= numbers[40], what="the middle of the dispatch")


@pytest.mark.parametrize("dispatch", ["auto", "plain"])
def test_a_leader_frozen_in_the_middle_of_a_batch_doubles_nothing_when_it_thaws(
    beat: Beat, client: redis.Redis, server: Server, schedules: Schedules, dispatch: str
) -> None:
    settings = conf(lease=2, batch_size=20, dispatch=dispatch)
    frozen = beat(PROJ_CONF=settings)
    leads(frozen, client)
    successor = beat(PROJ_CONF=settings)
    successor.says("standing by")
    before = added = 0
    while before == added:  # again, where all of them were sent before it was frozen
        dispatches(schedules, client, range(added, added + 1000))
        frozen.signal(signal.SIGSTOP)
        # It stops at the end of its time on the processor, and sends until then.
        eventually(lambda: is_stopped(frozen.pid), what="its stop")
        before, added = client.llen("celery"), added + 1000
        if before == added:
            frozen.signal(signal.SIGCONT)
    with Stopwatch(successor, server) as watch:
        leads(successor, client)
    watch.at_most(2 + 0.5 + 0.5)
    eventually(lambda: client.zcount(KEYS.due, "-inf", time.time() * 1000) == 0, what="all of them in the queue")
    frozen.signal(signal.SIGCONT)
    frozen.says("no longer leading")
    frozen.says("standing by")
    messages = queued(client)
    assert len({(m.entry, m.scheduled_at) for m in messages}) == added
    check_queue(client, delivery="exactly" if dispatch == "auto" else "at least")
    if dispatch == "plain":
        # Published before committed: at most the batch under way of each leader that was replaced goes out again, under
        # the same ids, and at most the one publish during which the leader froze is completed after. On a busy machine
        # a leader may be replaced that was not frozen.
        replaced = int(client.hget(KEYS.leader, "term") or 1) - 1
        assert len(messages) - added <= 20 * replaced
        assert len([m for m in messages[before:] if m.sender == frozen.pid]) <= 1


def test_a_stand_by_emits_within_200_ms_of_sigterm(beat: Beat, client: redis.Redis) -> None:
    leader, [successor] = settled((beat(PROJ_CONF=conf(schedule={"each": EACH})) for _ in range(2)), client)
    eventually(lambda: len(stream(client, "each")) >= 3, what="a stream")
    with Stopwatch(leader, successor) as watch:
        leader.terminate()
        eventually(lambda: sent_by(client, successor.pid), what="a message of the stand-by")
    watch.at_most(0.2 + INTERVAL)
    assert leader.wait() == 0
    eventually(lambda: len(sent_by(client, successor.pid)) >= 8, what="the stream goes on")
    check_queue(client, ["each"], STEP)


def test_a_hung_leader_is_replaced_and_does_nothing_when_it_wakes_up(
    beat: Beat, client: redis.Redis, tmp_path: Path
) -> None:
    stuck = tmp_path / "stuck"
    stuck.touch()
    sticky = {"task": "proj.sticky", "schedule": 0.5, "expires": 600}
    settings = conf(schedule={"fast": FAST, "sticky": sticky}, lease=1, stall_timeout=1, publish_timeout=0.5)
    hung = beat(PROJ_CONF=settings, PROJ_STUCK=stuck)
    leads(hung, client)
    successor = beat(PROJ_CONF=settings)
    line = hung.says("ERROR.*no progress")
    assert "while publishing 'sticky'" in line
    assert "in apply_async" in hung.output, "the stack shows where it hangs"
    with Stopwatch(successor) as watch:
        leads(successor, client)
    watch.at_most(1.5)
    eventually(lambda: of_entry(client, "sticky"), what="what the hung leader should have sent")
    # A process that was given up still exists; when it wakes up it must know that its time is over.
    sent = sent_by(client, hung.pid)
    stuck.unlink()
    assert "no progress while publishing 'sticky'" in hung.says("WARNING.*no longer leading")
    hung.says("standing by")
    assert sent_by(client, hung.pid) == sent
    assert leader_pid(client) == successor.pid
    check_queue(client)
    # It is as good as any other from here on.
    with Stopwatch(successor, hung) as watch:
        successor.stop()
        leads(hung, client)
    watch.at_most(2)
