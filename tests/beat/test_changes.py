"""What a beat writes into the record of changes, and what it does not."""

from __future__ import annotations

import os
import socket
from typing import Any

import redis

from redbeat_lite import Scheduler, Schedules, at, cron, every
from redbeat_lite._base.times import from_ms, to_ms
from redbeat_lite.entries.words import last_sign_of_life
from redbeat_lite.store.redis_values import server_ms
from tests.support.frozen import Clock
from tests.support.in_process import KEY, MakeApp, MakeBeat, one_turn
from tests.support.waiting import eventually

BEAT = f"beat of {socket.gethostname()}"
HOST = f"config of {socket.gethostname()}"


def told(schedules: Schedules) -> list[tuple[Any, ...]]:
    """The record, oldest line first, but the terms."""
    changes = [change for change in reversed(schedules.changes()) if change.action != "term begun"]
    return [(change.action, change.actor, change.way, change.names) for change in changes]


def test_the_configuration_is_brought_in_by_its_host(make_app: MakeApp, make_beat: MakeBeat) -> None:
    conf = {name: {"task": "t", "schedule": 60} for name in ("a", "b", "c")}
    schedules = one_turn(make_app(beat_schedule=conf), make_beat)
    assert told(schedules) == [("added", HOST, "config", ("a", "b", "c"))]
    one_turn(make_app(beat_schedule=conf), make_beat)
    assert len(told(schedules)) == 1, "what is the same is no change"
    conf["a"]["schedule"] = 30
    del conf["b"]
    conf["d"] = {"task": "t", "schedule": 60}
    one_turn(make_app(beat_schedule=conf), make_beat)
    changes = {change.action: change for change in schedules.changes(limit=4) if change.way == "config"}
    assert {action: change.names for action, change in changes.items()} == {
        "edited": ("a",),
        "removed": ("b",),
        "added": ("d",),
    }
    assert changes["edited"].fields == (("schedule", '{"schedule":60.0}', '{"schedule":30.0}'),)
    last = schedules["a"].last_change
    assert last is not None
    assert (last.action, last.actor, last.at) == ("edited", HOST, changes["edited"].at)


def test_a_new_term_tells_who_leads_and_when_somebody_led_last(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
) -> None:
    schedules = one_turn(make_app(), make_beat)
    ticked = client.hget(KEY + "meta", "ticked").decode()
    one_turn(make_app(), make_beat)
    second, first = schedules.changes()
    assert (second.action, second.actor, second.way, second.count) == ("term begun", BEAT, "beat", 0)
    assert second.note == f"pid {os.getpid()}"
    now = str(round(second.at.timestamp() * 1000))
    assert second.fields == (("term", "1", "2"), ("ticked", ticked, now))
    assert first.fields[0] == ("term", None, "1")


def test_the_last_sign_of_life_is_that_of_the_end_or_of_the_last_commit(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    schedules = one_turn(make_app(), make_beat)
    begun, ended = schedules.changes()[0].at, from_ms(int(client.hget(KEY + "meta", "ticked")))
    assert begun < ended <= from_ms(server_ms(client)), "a beat that ends says so"
    one_turn(make_app(), make_beat)
    assert last_sign_of_life(schedules.changes()[0]) == ended
    schedules.add("a", "add", every(10))
    clock.forward(10)
    beat = make_beat(make_app())
    beat.leader.acquire()
    client.hset(KEY + "meta", "ticked", to_ms(begun))  # of a renewal before the commit
    beat.run_due()
    committed = from_ms(int(client.hget(KEY + "meta", "ticked")))
    client.delete(beat.store.keys.leader)  # it was killed after the commit
    one_turn(make_app(), make_beat)
    assert last_sign_of_life(schedules.changes()[0]) == committed > ended


def test_what_is_planned_anew_is_no_change_of_anybody(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
) -> None:
    schedules = one_turn(make_app(timezone="Europe/Berlin"), make_beat)
    schedules.add("a", "add", cron("0 3 * * *"))
    schedules.add("b", "add", cron("0 3 * * *"))
    state = client.hget(KEY + "state", "b").partition(b"\n")[0]
    client.hset(KEY + "state", "b", state)
    versions = schedules["a"].version, schedules["b"].version
    beat = make_beat(make_app(timezone="Asia/Tokyo"))
    eventually(lambda: beat.run_due() or schedules["a"].version > versions[0], what="the new plan")
    beat.close()
    assert schedules["a"].last_change == schedules.changes("a")[0]
    assert schedules["b"].last_change is None, "one without a last change gets none"


def test_runs_and_their_ends_are_no_changes(
    inner_beat: Scheduler, schedules: Schedules, clock: Clock, client: redis.Redis
) -> None:
    schedules.add("often", "add", every(10))
    schedules.add("ends", "add", every(10), max_runs=1)
    schedules.add("goes", "add", at(clock.forward(5)), remove_when_done=True)
    for _ in range(3):
        clock.forward(10)
        inner_beat.run_due()
    assert client.llen("celery") > 3
    assert sorted(schedules) == ["ends", "often"]
    assert [action for action, *_ in told(schedules)] == ["added"] * 3


def test_what_is_set_aside_is_told_with_why(
    inner_beat: Scheduler, schedules: Schedules, clock: Clock, client: redis.Redis
) -> None:
    inner_beat.run_due()
    for name in ("a", "b"):
        schedules.add(name, "add", every(10))
        client.hset(KEY + "entries", name, "rubbish")
    clock.forward(10)
    inner_beat.run_due()
    change = schedules.changes()[0]
    assert (change.action, change.actor, change.way) == ("quarantined", "beat", "beat")
    assert (sorted(change.names), change.count) == (["a", "b"], 2)
    assert "not readable as JSON" in change.note
    assert schedules.changes("a")[0] == change


def test_a_name_may_be_any_bytes(inner_beat: Scheduler, schedules: Schedules, client: redis.Redis) -> None:
    inner_beat.run_due()
    client.zadd(KEY + "due", {b"\xff\xfe": 1, "x" * 1_000_000: 1})
    for _ in range(2):
        inner_beat.run_due()
    [change] = [change for change in schedules.changes() if change.action == "removed"]
    # Names behind the first have 500 bytes together, so that the long one is told where it is the first.
    assert change.count == 2
    assert {*map(len, change.names)} <= {2, 800}
    assert change.names
    client.delete(KEY + "quarantine")


def test_what_is_mended(make_app: MakeApp, make_beat: MakeBeat, schedules: Schedules, client: redis.Redis) -> None:
    for name in ("a", "b"):
        schedules.add(name, "add", every(10))
    client.hdel(KEY + "entries", "b")
    one_turn(make_app(), make_beat)
    removed = [change for change in schedules.changes(limit=4) if change.action == "removed"]
    assert [(change.actor, change.names, change.note) for change in reversed(removed)] == [
        ("beat", ("b",), "its definition was gone from Redis"),
    ]
    assert list(schedules) == ["a"]
