"""Names that look like keys, patterns or code, and bytes that look like pickles, stay names and bytes."""

from __future__ import annotations

import ast
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

import redbeat_lite
from redbeat_lite import Entry, InvalidEntry, Pipeline, PipelineTask, Scheduler, Schedules, every
from redbeat_lite.pipeline import sweep
from redbeat_lite.runs.run_store import RunKeys
from tests.support.cases import together
from tests.support.messages import of_entry
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

NAMES = [
    "{redbeat-lite}:leader",
    "}{",
    "{other}:due",
    "*",
    "a:b:c",
    "../../etc/passwd",
    "return redis.call('FLUSHALL')",
    "'; DROP TABLE entries; --",
    "%s %(x)s {0}",
    "${jndi:ldap://x}",
    "имя 名前 🥁",
    "-1",
    "+inf",
    "True",
]


@pytest.fixture
def scheduler(app: Celery) -> Iterator[Scheduler]:
    scheduler = Scheduler(app)
    yield scheduler
    scheduler.close()


def keys_of(client: redis.Redis) -> set[bytes]:
    return {key for key in client.keys("*") if not key.startswith((b"_kombu.", b"celery"))}


def test_names_of_entries_are_no_keys(app: Celery, scheduler: Scheduler, client: redis.Redis) -> None:
    schedules = Schedules(app)
    for name in NAMES:
        schedules.add(name, "add", every(0.05), expires=None)
    assert set(schedules) == set(NAMES)

    def is_sent() -> bool:
        scheduler.run_due()
        return all(of_entry(client, name) for name in NAMES)

    eventually(is_sent, what="a message of each entry")
    for name in NAMES:
        schedules.pause(name, note=name)
        assert schedules[name].paused_note == name
    scheduler.run_due()
    ours = [getattr(scheduler.store.keys, name).encode() for name in scheduler.store.keys.__slots__]
    replies = re.compile(re.escape(scheduler.store.keys.reply("").encode()) + rb"[0-9a-f]{32}")
    ours += [RunKeys(scheduler.store.keys.prefix).rows(name).encode() for name in NAMES]
    assert [key for key in keys_of(client) if key not in ours and not replies.fullmatch(key)] == []
    assert not schedules.quarantined()
    for name in NAMES:
        schedules.remove(name)
    assert not set(schedules) & set(NAMES)


@together("name", ["", "a\nb", "a\x00b", "\x1b[31m", "x" * 201, "\ud800"])
def test_names_that_could_forge_a_log_line_are_refused(app: Celery, name: str) -> None:
    with pytest.raises(InvalidEntry):
        Schedules(app).add(name, "add", every(1))


@pytest.mark.parametrize("option", ["queue", "routing_key"])
def test_no_message_goes_into_a_key_of_the_schedule(
    app: Celery, scheduler: Scheduler, client: redis.Redis, option: str
) -> None:
    schedules, keys = Schedules(app), scheduler.store.keys
    with pytest.raises(InvalidEntry, match=f"options.{option}"):
        schedules.add("hostile", "add", every(50), options={option: keys.quarantine})
    schedules.add_many([Entry(name, "add", every(0.05)) for name in ("sound", "hostile")])
    schedules.add("like", "add", every(50), options={option: f"{{{keys.prefix}s}}"})
    definition = {"v": 3, "task": "add", "schedule": {"every": "50ms"}, "options": {option: keys.quarantine}}
    client.hset(keys.entries, "hostile", json.dumps(definition))
    eventually(lambda: scheduler.run_due() is not None and "hostile" in schedules.quarantined(), what="set aside")
    eventually(lambda: scheduler.run_due() is not None and of_entry(client, "sound"), what="the sound one")


def test_keys_of_locks_cannot_leave_the_prefix(app: Celery, client: redis.Redis) -> None:
    for name in NAMES:
        with redbeat_lite.lock(app, name, lease=5) as held:
            assert held
            assert {
                key
                for key in client.keys("*")
                if not key.startswith((b"{redbeat-lite}:once:", b"{redbeat-lite}:guard:"))
            } == set()
    assert {info.key for info in redbeat_lite.locks(app).list()} == set()


def test_ids_of_runs_cannot_leave_the_prefix(app: Celery, client: redis.Redis) -> None:
    @app.task(name="step", base=PipelineTask, shared=False)
    def step(params: dict[str, Any]) -> None:
        """Never runs."""

    for name in NAMES:
        try:
            Pipeline(app, [["step", 1]]).start(name)
        except ValueError:
            continue  # an id that is refused can do no harm either
    assert all(key.startswith((b"{redbeat-lite:", b"{redbeat-lite}:")) for key in keys_of(client)), keys_of(client)


@pytest.mark.parametrize("junk", ["x", "-1", "nan", "inf", "1e308", str(2**63)])
def test_fencing_numbers_begin_anew_after_junk(app: Celery, client: redis.Redis, junk: str) -> None:
    with redbeat_lite.lock(app, "key") as held:
        before = held.fence
    client.set("{redbeat-lite}:once:fence", junk)
    for _ in range(2):
        with redbeat_lite.lock(app, "key") as held:
            assert held.fence > before
            before = held.fence


def test_one_lock_that_cannot_be_read_hides_no_other(app: Celery, client: redis.Redis) -> None:
    index, lock = "{redbeat-lite}:once:index", "{redbeat-lite}:once:lock:"
    client.hset(f"{lock}numbers", mapping={"since": "abc", "fence": "9" * 30, "task": b"\xff"})
    client.set(f"{lock}type", "x")
    client.zadd(index, dict.fromkeys(["numbers", "type", b"\xff"], 9e12))
    with redbeat_lite.lock(app, "sound"):
        found = {info.key: info for info in redbeat_lite.locks(app).list()}
    assert found.keys() == {"sound"}
    assert found["sound"].since is not None


def test_what_is_no_run_leaves_the_index_of_runs(app: Celery, client: redis.Redis) -> None:
    @app.task(name="step", base=PipelineTask, shared=False)
    def step(params: dict[str, Any]) -> None:
        """Never runs."""

    run = Pipeline(app, [["step", 1]]).start()
    client.zadd("{redbeat-lite}:pipelines", {"0:x}y": 0, "x": 0, f"0:{run.id}": 0})
    assert sweep(app) == 3
    assert client.zrange("{redbeat-lite}:pipelines", 0, -1) == [f"0:{run.id}".encode()]


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('unpickled')",))


def test_a_pickle_is_rubbish_like_any_other(app: Celery, scheduler: Scheduler, client: redis.Redis) -> None:
    schedules, bomb = Schedules(app), pickle.dumps(Bomb())
    schedules.add_many([Entry(name, "add", every(0.05)) for name in ("sound", "definition", "state")])
    client.hset(scheduler.store.keys.entries, "definition", bomb)
    client.hset(scheduler.store.keys.state, "state", bomb)
    client.hset(scheduler.store.keys.quarantine, "old", bomb)
    client.publish(scheduler.store.keys.wake, bomb)
    eventually(lambda: scheduler.run_due() is not None and of_entry(client, "sound"), what="the sound one")
    eventually(
        lambda: scheduler.run_due() is not None and set(schedules.quarantined()) >= {"definition", "state", "old"}
    )


def test_a_text_of_megabytes_is_set_aside_and_cut(
    app: Celery, scheduler: Scheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    schedules, keys, megabytes = Schedules(app), scheduler.store.keys, 5_000_000
    schedules.add_many([Entry(name, "add", every(0.05)) for name in ("sound", "definition", "state")])
    scheduler.run_due()
    client.hset(keys.entries, "definition", b"\xff" * megabytes)
    client.hset(keys.state, "state", client.hget(keys.state, "state") + b'{"note":"' + b"x" * megabytes + b'"}')
    long_name = b"n" * megabytes
    client.hset(keys.entries, long_name, client.hget(keys.entries, "sound"))
    client.hset(keys.state, long_name, client.hget(keys.state, "sound"))
    client.zadd(keys.due, {"definition": 0, "state": 0, long_name: 0})
    eventually(
        lambda: scheduler.run_due() is not None and client.hlen(keys.quarantine) == 3, what="all three set aside"
    )
    assert set(client.hkeys(keys.quarantine)) == {b"definition", b"state", long_name}
    assert max(map(len, client.hvals(keys.quarantine))) < 6 * 65_536
    assert max(map(len, caplog.messages)) < 2_000
    schedules.remove("sound")
    schedules.add("sound", "add", every(0.05))
    client.delete("celery")
    eventually(lambda: scheduler.run_due() is not None and of_entry(client, "sound"), what="the sound one")


def test_a_flood_on_the_wake_channel_does_not_hold_the_beat(scheduler: Scheduler, client: redis.Redis) -> None:
    scheduler.run_due()
    scheduler._parts.wakeup.listen()
    flood = client.pipeline(transaction=False)
    for _ in range(5_000):
        flood.publish(scheduler.store.keys.wake, "x")
    flood.execute()
    for _ in range(3):  # the beat is back from waiting although there is more to read
        with Stopwatch() as watch:
            scheduler._parts.wakeup.wait(10, until=lambda: False, leads=True)
        watch.at_most(5)


HOSTILE_KEYS = {
    "attributes": (
        "{x[a].__init__.__globals__[os].environ[PATH]}",
        {"a": {"__type__": "uuid", "__value__": {"hex": "0" * 32}}},
    ),
    "a width": ("{x:>300000000}", "a"),
    "a nested width": ("{x:{x}}", 300_000_000),
    "half of a character": ("{x}", "\ud800"),
}


@pytest.mark.parametrize("what", HOSTILE_KEYS)
def test_a_hostile_key_of_a_once_lock_concerns_its_entry_alone(
    app: Celery, scheduler: Scheduler, client: redis.Redis, what: str
) -> None:
    template, argument = HOSTILE_KEYS[what]
    schedules, keys = Schedules(app), scheduler.store.keys
    schedules.add_many([Entry(name, "add", every(0.05)) for name in ("sound", "hostile")])
    definition = {"v": 3, "task": "add", "schedule": {"every": "50ms"}, "kwargs": {"x": argument}}
    definition["once"] = {"key": template, "scope": "queue"}
    client.hset(keys.entries, "hostile", json.dumps(definition))
    eventually(lambda: scheduler.run_due() is not None and "hostile" in schedules.quarantined(), what="set aside")
    error = "not readable as JSON" if what == "half of a character" else "once.key"
    assert error in schedules.quarantined()["hostile"]["error"]
    eventually(lambda: scheduler.run_due() is not None and of_entry(client, "sound"), what="the sound one")


def test_no_module_can_unpickle_or_evaluate() -> None:
    """Nothing that turns bytes into code is so much as imported."""
    banned = {"pickle", "cPickle", "marshal", "shelve", "dill", "yaml"}
    package = Path(redbeat_lite.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text()
        # To read them as a compiler does takes a second; where none of the words stands, there is nothing to find.
        nodes = ast.walk(ast.parse(text)) if re.search("|".join((*banned, "eval", "exec", "compile")), text) else ()
        for node in nodes:
            if isinstance(node, ast.Import):
                assert not banned & {alias.name.split(".")[0] for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in banned, path
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), path
