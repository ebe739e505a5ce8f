"""Parts of the schedule, or all of it, vanish from Redis under a running leader."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from redbeat_lite import Entry, Schedules, every
from tests.harness.queues import check_queue
from tests.support.beats import EACH, INTERVAL, KEYS, conf, leads, stream
from tests.support.messages import of_entry
from tests.support.processes import Process
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

Beat = Callable[..., Process]

#: How often the leader renews its lease here: the turn in which it finds out, at the latest, what is gone.
RENEWAL = 0.25


@pytest.fixture
def leader(beat: Beat, client: redis.Redis) -> Process:
    """A leader with a config entry that runs often and one that does not, and runtime entries of both kinds."""
    hourly = {"task": "proj.add", "schedule": 3600}
    process = beat(PROJ_CONF=conf(schedule={"config": EACH, "hourly": hourly}, lease=4 * RENEWAL))
    leads(process, client)
    eventually(lambda: stream(client, "config"), what="the stream of the config entry")
    return process


@pytest.fixture
def runtime(leader: Process, client: redis.Redis, schedules: Schedules) -> str:
    """A runtime entry that runs often."""
    schedules.add("runtime", "proj.add", every(INTERVAL), misfire="all", expires=600)
    schedules.add("sleepy", "proj.add", every(7200))
    schedules.pause("sleepy", note="for the night")
    eventually(lambda: stream(client, "runtime"), what="the stream of the runtime entry")
    return "runtime"


def goes_on(leader: Process, client: redis.Redis, name: str, *, within: float) -> None:
    """A message of an entry is in the queue within so many seconds, and two more after it."""
    client.delete("celery")
    with Stopwatch(leader) as watch:
        eventually(lambda: of_entry(client, name), what=f"a message of {name!r}")
    watch.at_most(within)
    with Stopwatch(leader) as watch:
        eventually(lambda: len(of_entry(client, name)) >= 3, what=f"more messages of {name!r}")
    watch.at_most(3 * INTERVAL + 1)
    check_queue(client)


@pytest.mark.parametrize("command", [pytest.param("flushdb", marks=pytest.mark.soak), "flushall"])
def test_after_a_flush_config_entries_are_back_within_a_tick(
    leader: Process, client: redis.Redis, schedules: Schedules, runtime: str, command: str
) -> None:
    with Stopwatch(leader) as watch:
        getattr(client, command)()
        eventually(lambda: {"config", "hourly"} <= set(schedules), what="the config entries")
    # The next thing to do is at most an interval away; a leader with nothing to do finds out when it renews.
    watch.at_most(max(INTERVAL, RENEWAL) + 0.3)
    goes_on(leader, client, "config", within=2 * INTERVAL + 0.5)
    assert runtime not in schedules, "Redis has forgotten it, and nobody else knew it"
    assert leader.alive
    assert len(leader.lines("WARNING.*no longer leading")) == 1
    assert not leader.lines("CRITICAL|Traceback")


def test_a_config_entry_that_was_removed_is_back_whatever_else_is_stored(
    leader: Process, client: redis.Redis, schedules: Schedules, runtime: str
) -> None:
    schedules.clear()
    schedules.add_many([Entry(f"e{number}", "proj.add", every(7200)) for number in range(5)])
    with Stopwatch(leader) as watch:
        eventually(lambda: "config" in schedules, what="the config entry")
    watch.at_most(2)
    goes_on(leader, client, "config", within=2 * INTERVAL + 0.5)
    assert runtime not in schedules


@pytest.mark.parametrize("lost", ["due", "state", "meta", "leader"])
def test_when_one_key_is_gone_every_entry_goes_on(
    leader: Process, client: redis.Redis, schedules: Schedules, runtime: str, lost: str
) -> None:
    client.delete(getattr(KEYS, lost))
    goes_on(leader, client, "config", within=INTERVAL + RENEWAL + 0.8)
    goes_on(leader, client, runtime, within=INTERVAL + RENEWAL + 0.8)
    assert set(schedules) >= {"config", "hourly", "runtime", "sleepy"}
    assert schedules["hourly"].next_run_at is not None
    assert not schedules.quarantined()
    if lost != "state":
        assert schedules["sleepy"].paused_note == "for the night"
    assert leader.alive
    assert not leader.lines("CRITICAL|Traceback")


def test_when_the_definitions_are_gone_config_entries_go_on(
    leader: Process, client: redis.Redis, schedules: Schedules, runtime: str
) -> None:
    client.delete(KEYS.entries)
    goes_on(leader, client, "config", within=INTERVAL + RENEWAL + 0.8)
    assert {"config", "hourly"} <= set(schedules)
    with pytest.raises(KeyError):
        schedules[runtime]
    assert leader.alive
    assert not leader.lines("CRITICAL|Traceback")


@pytest.mark.parametrize("lost", ["entries", "all"])
def test_a_sleeping_leader_notices_that_a_key_is_gone_when_it_renews(
    beat: Beat, client: redis.Redis, schedules: Schedules, lost: str
) -> None:
    process = beat(PROJ_CONF=conf(schedule={"hourly": {"task": "proj.add", "schedule": 3600}}, lease=4 * RENEWAL))
    process.says("beat: leading")
    keys = (KEYS.due, KEYS.entries, KEYS.state)
    if lost == "all":
        client.flushall()
    else:
        client.delete(getattr(KEYS, lost))
    with Stopwatch(process) as watch:
        eventually(lambda: client.exists(*keys) == 3, what="the three keys")
    watch.at_most(RENEWAL + 0.8)
    eventually(lambda: "hourly" in schedules and schedules["hourly"].next_run_at is not None, what="the entry")
    assert not schedules.quarantined()
    assert process.alive
