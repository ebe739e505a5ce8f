"""Garbage in the keys of the schedule stops itself and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis

from redbeat_lite import Entry, Schedules, every
from redbeat_lite.runs.run_store import RunKeys
from tests.harness.queues import check_queue
from tests.support.beats import EACH, KEYS, conf, leads, stream
from tests.support.messages import queued
from tests.support.processes import Process
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

Beat = Callable[..., Process]

NAMES = ["due", "entries", "leader", "meta", "quarantine"]

#: What somebody may have written into an entry's definition, and into its state.
DEFINITIONS = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe\x00",
    b'{"v": 3}',
    b'{"v": 99, "task": "proj.add", "schedule": ["every", 1]}',
    b'{"v": 3, "task": 5, "schedule": ["nonsense", {}]}',
    b"[" * 5000,
]
STATES = [
    b"",
    b"junk",
    b"|||||||||",
    b"1|abc|never|{}",
    b"\xff",
    b"1|abc|99999999999999999999|{}",
    b"9" * 5000,
]


def spoil(client: redis.Redis, key: str) -> None:
    """Replace a key by one of a type it never has."""
    pipe = client.pipeline(transaction=True)
    pipe.delete(key)
    pipe.rpush(key, "junk")
    pipe.execute()


@pytest.mark.parametrize("name", NAMES)
def test_a_beat_stands_by_while_somebody_else_uses_a_key(
    beat: Beat, client: redis.Redis, schedules: Schedules, name: str
) -> None:
    key = getattr(KEYS, name)
    process = beat(PROJ_CONF=conf(schedule={"each": EACH}, lease=1))
    leads(process, client)
    eventually(lambda: stream(client, "each"), what="the stream")
    spoil(client, key)
    if name == "quarantine":
        client.hset(KEYS.entries, "broken", "junk")
        client.hset(KEYS.state, "broken", "junk")
        client.zadd(KEYS.due, {"broken": 0})
    said = eventually(lambda: process.lines("CRITICAL"), what="a line that names the key")
    assert f"standing by, because {key} is a list, not a" in said[0]
    assert client.type(key) == b"list", "nobody's data is deleted"
    client.delete(key)
    client.delete("celery")
    eventually(lambda: len(stream(client, "each")) >= 3, what="the stream goes on")
    check_queue(client)
    assert len(process.lines("CRITICAL")) == 1
    assert process.alive
    assert not process.lines("Traceback")


def test_a_beat_that_finds_a_key_of_somebody_else_does_not_lead(beat: Beat, client: redis.Redis) -> None:
    key = RunKeys("redbeat-lite").feed
    spoil(client, key)
    process = beat(PROJ_CONF=conf(schedule={"each": EACH}, lease=1))
    eventually(lambda: process.lines(f"CRITICAL.*{key} is a list, not a stream"), what="a line that names the key")
    assert not client.exists(KEYS.leader)
    client.delete(key)
    eventually(lambda: stream(client, "each"), what="the stream")


@pytest.mark.parametrize(("sound_ones", "spoiled"), [(160, 40), pytest.param(800, 200, marks=pytest.mark.soak)])
def test_of_many_entries_those_that_are_spoiled_stop_alone(
    beat: Beat, client: redis.Redis, schedules: Schedules, sound_ones: int, spoiled: int
) -> None:
    process = beat(PROJ_CONF=conf(schedule={"each": EACH}))
    leads(process, client)
    due = datetime.now(UTC) + timedelta(seconds=2)
    schedules.add_many(
        Entry(f"e{n}", "proj.add", every(3600), start_at=due, expires=None) for n in range(spoiled + sound_ones)
    )
    pipe = client.pipeline(transaction=True)
    for n in range(spoiled // 2):
        pipe.hset(KEYS.entries, f"e{n}", DEFINITIONS[n % len(DEFINITIONS)])
    for n in range(spoiled // 2, spoiled):
        pipe.hset(KEYS.state, f"e{n}", STATES[n % len(STATES)])
    pipe.execute()
    sound = {f"e{n}" for n in range(spoiled, spoiled + sound_ones)}
    with Stopwatch(process) as watch:
        eventually(lambda: client.llen("celery") >= len(sound), what="the sound entries")
    watch.at_most(6)
    late = datetime.now(UTC) - due
    print(f"the last of {sound_ones} came {late.total_seconds():.3f} s after its time")
    eventually(lambda: sound <= {m.entry for m in queued(client)}, what="the sound entries")
    assert late < timedelta(seconds=3)
    assert {m.entry for m in queued(client)} == sound | {"each"}
    check_queue(client)
    records = eventually(lambda: len(q := schedules.quarantined()) >= spoiled and q, what="the quarantine")
    assert {f"e{n}" for n in range(spoiled)} == set(records)
    assert all(record["error"] for record in records.values())
    assert len(process.lines("ERROR.*is quarantined")) == spoiled
    seen = len(stream(client, "each"))
    eventually(lambda: len(stream(client, "each")) >= seen + 3, what="the stream goes on")
    assert process.alive
    assert not process.lines("CRITICAL|Traceback")


def test_junk_in_the_hashes_of_the_lease_and_of_the_meta_data_stops_nobody(
    beat: Beat, client: redis.Redis, schedules: Schedules
) -> None:
    client.hset(
        KEYS.meta, mapping={"format": "x", "term": "many", "clock": "noon", "config:proj": "[[", "other": b"\xff"}
    )
    client.hset(KEYS.leader, mapping={"token": b"\xff", "pid": "nobody"})  # and it never ends
    client.hset(KEYS.quarantine, "old", b"\xff{")
    process = beat(PROJ_CONF=conf(schedule={"each": EACH}, lease=1))
    with Stopwatch(process) as watch:
        eventually(lambda: len(stream(client, "each")) >= 3, what="the stream")
    watch.at_most(6)
    assert list(schedules.quarantined()) == ["old"]
    assert process.alive
    assert not process.lines("CRITICAL|Traceback")
