"""The users of security.md can do all that they need, and nothing beside it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any

import pytest
import redis
from celery import Celery
from celery import beat as celery_beat
from celery.bin.base import CLIContext
from click.testing import CliRunner

import redbeat_lite
from redbeat_lite import Entry, PipelineRun, Scheduler, Schedules, at, every, manual
from redbeat_lite.cli import redbeat
from redbeat_lite.once import lock_store
from redbeat_lite.operate.doctor import examine
from redbeat_lite.runs import incident_store
from redbeat_lite.store import leader_store, store, transact
from redbeat_lite.store.scripts import source
from redbeat_lite.store.server_check import server_faults, server_of
from tests.support.beats import KEYS, leads
from tests.support.cases import together
from tests.support.messages import queued
from tests.support.pages import document
from tests.support.processes import Process, celery
from tests.support.run_records import Worker
from tests.support.run_rows import KEYS as RUNS
from tests.support.run_rows import RunRows
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

PAGE = document("security.md").read_text()


def rules() -> dict[str, list[str]]:
    """The users of the page: name -> the words of its ACL SETUSER."""
    blocks = re.findall(r"```text\nACL SETUSER (\w+) (.*?)```", PAGE, re.DOTALL)
    return {name: words.split() for name, words in blocks}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def admin(guarded: Server) -> Iterator[redis.Redis]:
    with guarded.client() as client:
        client.flushall()
        for name, words in rules().items():
            client.execute_command("ACL", "SETUSER", name, "reset", *words)
        client.execute_command("ACL", "LOG", "RESET")
        yield client


def url(server: Server, user: str) -> str:
    return f"redis://{user}:secret-of-the-{user}@127.0.0.1:{server.port}/0"


def denied(admin: redis.Redis) -> list[str]:
    """What users were refused, as the server tells."""
    log: list[dict[str, Any]] = admin.acl_log()
    return [f"{each['username']}: {each['reason']} {each['object']}" for each in log]


def test_the_page_has_the_users() -> None:
    assert set(rules()) == {"api", "beat", "worker"}


@together("user", ["beat", "worker"])
def test_each_command_of_a_script_is_granted(user: str) -> None:
    granted = {word[1:] for word in rules()[user] if word.startswith("+")}
    lua = resources.files("redbeat_lite.store.scripts").joinpath("lua")
    others = ("shared", *(("schedule", "leader") if user == "worker" else ()))  # no worker edits, and none leads
    for folder in (folder for folder in lua.iterdir() if folder.name not in others):
        for script in (f"{folder.name}/{file.name.removesuffix('.lua')}" for file in folder.iterdir()):
            used = {name.lower() for name in re.findall(r"redis\.p?call\('(\w+)'", source(script))}
            assert used <= granted, script


def test_each_command_of_a_step_is_granted() -> None:
    """Steps of transact name their commands in the modules that make them."""
    statements = "\n".join(
        text
        for module in (incident_store, leader_store, lock_store, store, transact)
        for name, text in vars(module).items()
        if name.startswith("_") and not name.startswith("__") and isinstance(text, str)
    )
    rows = re.findall(r"^ *(?:IF )?([A-Z]+) [a-z]+ ", statements, re.MULTILINE)
    used = {command.lower() for command in rows}
    assert {"hget", "hset", "hdel", "zadd", "zrem", "zscore", "xadd", "pexpire", "publish"} <= used
    for user in ("api", "beat"):
        assert used <= {word[1:] for word in rules()[user] if word.startswith("+")}


def use_everything(app: Celery) -> None:
    schedules = Schedules(app)
    schedules.add("one", "proj.add", every(3600), description="first")
    schedules.add_many([Entry(f"e{n}", "proj.add", every(60 + n)) for n in range(10)])
    schedules.update("one", schedule=every(10))
    schedules.pause("one", note="stop")
    schedules.resume("one")
    assert schedules["one"].name in schedules
    assert len(schedules.list()) == len(list(schedules)) == len(schedules) == 11
    assert len(list(schedules.items())) == len(list(schedules.values())) == 11
    assert not schedules.quarantined()
    assert not schedules.incidents() + schedules.incidents(closed=True)
    schedules.upcoming(datetime.now(UTC) + timedelta(seconds=15))
    assert schedules.runs("one") == schedules.runs() == []
    assert schedules["one"].last_run is None
    use_backfills(schedules)
    schedules.remove("one")
    with redbeat_lite.lock(app, "anything") as held:
        assert held
        assert redbeat_lite.locks(app).list()
        redbeat_lite.locks(app).clear("anything")
    schedules.clear()


def use_backfills(schedules: Schedules) -> None:
    past = datetime.now(UTC) - timedelta(days=1)
    backfill = schedules.backfills.start("one", past, past, max_active=None, again=len([*schedules.backfills]))
    schedules.backfills.pause(backfill.id)
    schedules.backfills.resume(backfill.id)
    assert schedules.backfills.cancel(backfill.id) == schedules.backfills[backfill.id]


def test_the_api(guarded: Server, admin: redis.Redis, make_app: Callable[..., Celery]) -> None:
    use_everything(make_app(broker_url=url(guarded, "api")))
    app = make_app(broker_url=url(guarded, "api"))
    Schedules(app).add("one", "proj.add", every(3600))
    rows, now = RunRows(admin, Schedules(app)), datetime.now(UTC)
    rows.row("one", now, "running", "runs", 0)
    rows.guard("runs", "running", 60)
    rows.row("one", now, "failed", "ended", 0, 0, 0, rows.line("one", now, "failed", "ended", error="as asked"))
    assert {run.error for run in Schedules(app).runs("one")} == {None, "as asked"}
    asked = (["list"], ["show", "one"], ["runs"], ["runs", "one"], ["why", "one"], ["pipelines", "list"], ["status"])
    for words, code in (*((each, 0) for each in asked), (["health", "--cluster"], 1)):
        said = CliRunner().invoke(redbeat, words, obj=CLIContext(app=app, no_color=True, workdir=None))
        assert said.exit_code == code, said.output  # 1: no beat leads
    schedules = Schedules(app)
    by_hand = schedules.run_now("one")
    assert len(queued(admin)) == 1
    assert [run.outcome for run in schedules.runs("one") if run.task_id == by_hand] == ["waiting"]
    schedules.clear()
    admin.delete(RUNS.feed, RUNS.rows("one"))
    assert not denied(admin)
    admin.zadd("{redbeat-lite}:pipelines", {"0:run": 0})
    admin.execute_command("ACL", "SETUSER", "api", "resetkeys", "~{redbeat-lite}:*")
    with pytest.raises(redis.exceptions.NoPermissionError):  # instead of an empty list
        PipelineRun.brief(app)
    admin.execute_command("ACL", "SETUSER", "api", "reset", *rules()["api"])
    admin.execute_command("ACL", "LOG", "RESET")
    admin.execute_command("ACL", "SETUSER", "api", "-xadd")
    use_everything(make_app(broker_url=url(guarded, "api")))  # as it did before there was a record
    admin.execute_command("ACL", "SETUSER", "api", "-set")
    with (
        Stopwatch() as watch,
        pytest.raises(redbeat_lite.LockUnavailable, match="set"),
        redbeat_lite.lock(make_app(broker_url=url(guarded, "api")), "key"),
    ):
        pass
    watch.at_most(4)  # no waiting gives a user rights
    with redis.Redis.from_url(url(guarded, "api")) as client:
        for command in (
            ["GET", "other"],
            ["BRPOP", "celery", "1"],
            ["CONFIG", "GET", "*"],
            ["FLUSHALL"],
            ["KEYS", "*"],
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)


def test_beats(guarded: Server, admin: redis.Redis, make_app: Callable[..., Celery], running: list[Process]) -> None:
    app = make_app(broker_url=guarded.url)
    conf = {"beat_schedule": {"fast": {"task": "proj.add", "schedule": 0.2}}, "redbeat_lite_lease": 1}
    env = {"PROJ_URL": url(guarded, "beat"), "PROJ_CONF": json.dumps(conf)}
    words = ("beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO")
    running += [celery("tests.acceptance.proj", *words, **env) for _ in range(2)]
    schedules = Schedules(app)
    schedules.add("once", "proj.add", every(0.2), once=True)
    schedules.add("last", "proj.add", at(datetime.now(UTC) + timedelta(seconds=0.5)), remove_when_done=True)
    past = datetime.now(UTC) - timedelta(days=1)
    schedules.add("past", "proj.add", manual())
    schedules.backfills.start("past", past, past, max_active=None)
    schedules.add("bad", "proj.add", every(0.2))
    admin.hset(KEYS.entries, "bad", "rubbish")
    admin.zadd(KEYS.due, {"bad": 0})
    eventually(lambda: {"fast", "once", "last", "past"} <= {each.entry for each in queued(admin)}, what="messages")
    eventually(lambda: list(schedules.quarantined()) == ["bad"], what="the quarantine")
    eventually(lambda: "last" not in schedules, what="the end of the last run")
    admin.delete(KEYS.state)  # to be rebuilt
    eventually(lambda: admin.hlen(KEYS.state) == admin.hlen(KEYS.entries) > 0, what="the states")
    [leader] = [each for each in running if each.pid == int(admin.hget(KEYS.leader, "pid") or 0)]
    [other] = [each for each in running if each is not leader]
    leader.terminate()
    leads(other, admin)
    other.terminate()
    for process in running:
        assert process.wait() == 0
        assert not process.lines("CRITICAL|Traceback|permission|may not"), process.output
        assert "secret" not in process.output
    assert set(denied(admin)) <= {"beat: command config|get"}
    with redis.Redis.from_url(url(guarded, "beat")) as client:
        for command in (["GET", "other"], ["CONFIG", "SET", "save", ""], ["FLUSHALL"], ["KEYS", "*"], ["SHUTDOWN"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)


@pytest.mark.skipif(not hasattr(celery_beat, "BeatPidbox"), reason="this Celery has no remote control of beat")
def test_a_beat_answers_a_ping(guarded: Server, admin: redis.Redis, running: list[Process]) -> None:
    rights = re.search(r"answers pings\]\S+ needs\s+`([^`]+)` too", PAGE)
    assert rights
    admin.execute_command("ACL", "SETUSER", "beat", *rights[1].split())
    words = ("beat", "-S", "redbeat_lite.Scheduler", "--enable-remote-control", "-n", "one")
    beat = celery("tests.acceptance.proj", *words, PROJ_URL=url(guarded, "beat"))
    running.append(beat)
    with Celery(broker=url(guarded, "worker")) as app:
        inspect = app.control.inspect(timeout=1, limit=1)
        eventually(lambda: inspect.ping() == {"celerybeat@one": {"ok": "pong"}}, what="an answer")
    beat.stop()
    assert not beat.lines("Traceback|permission"), beat.output
    assert set(denied(admin)) <= {"beat: command config|get"}


@pytest.mark.parametrize("user", ["api", "beat", "worker"])
def test_nobody_can_ask_for_the_servers_passwords(guarded: Server, admin: redis.Redis, user: str) -> None:
    with redis.Redis.from_url(url(guarded, user)) as client:
        for command in (["CONFIG", "GET", "requirepass"], ["ACL", "LIST"], ["ACL", "GETUSER", "default"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)


def test_what_nobody_may_ask_is_not_guessed(
    guarded: Server, admin: redis.Redis, make_app: Callable[..., Celery]
) -> None:
    app = make_app(broker_url=url(guarded, "api"))
    assert [each.check for each in examine(app) if each.check in ("permission", "persistence")] == ["permission"]
    with redis.Redis.from_url(url(guarded, "beat")) as client:
        assert not [*server_faults(server_of(client))]
        admin.config_set("appendonly", "yes")
        try:
            found = server_of(client)
            assert found
            assert found.persistent
        finally:
            admin.config_set("appendonly", "no")


def test_whoever_may_not_use_the_wake_channel_can_edit_and_freeze(
    guarded: Server, admin: redis.Redis, make_app: Callable[..., Celery]
) -> None:
    admin.execute_command("ACL", "SETUSER", "api", "resetchannels")
    schedules = Schedules(make_app(broker_url=url(guarded, "api")))
    schedules.add("entry", "add", every(60))
    schedules.freeze("1h")
    assert schedules.frozen()
    schedules.thaw()
    assert not schedules.frozen()
    assert set(denied(admin)) == {f"api: channel {KEYS.wake}"}


def test_a_beat_that_may_not_ask_about_its_server_works(
    guarded: Server, admin: redis.Redis, make_app: Callable[..., Celery]
) -> None:
    admin.execute_command("ACL", "SETUSER", "beat", "-info")
    app = make_app(broker_url=url(guarded, "beat"))
    scheduler = Scheduler(app)
    Schedules(app).add("entry", "add", every(0.05))
    eventually(lambda: scheduler.run_due() is not None and queued(admin), what="a message")
    assert scheduler.leader.holds_lease
    scheduler.close()


def test_a_beat_looks_for_incidents(guarded: Server, admin: redis.Redis, make_app: Callable[..., Celery]) -> None:
    scheduler = Scheduler(make_app(broker_url=url(guarded, "beat")))
    Worker(admin).reports()
    scheduler.run_due()
    scheduler._parts.incidents.check()
    api = Schedules(make_app(broker_url=url(guarded, "api")))
    api.add("entry", "add", every(0.5), expect={"start_within": 0.1})
    eventually(lambda: scheduler.run_due() is not None and queued(admin), what="a message")
    Worker(admin).tells("entry", "failed")
    scheduler._parts.incidents.check()
    [incident] = api.incidents()
    assert api.acknowledge(incident.id, "mine").acknowledged == "mine"
    api.remove("entry")
    scheduler._parts.incidents.check()
    assert [each.id for each in api.incidents(closed=True)] == [incident.id]
    scheduler.close()
    assert set(denied(admin)) <= {"beat: command config|get"}


def test_workers(guarded: Server, admin: redis.Redis, running: list[Process]) -> None:
    env = {"PROJ_URL": url(guarded, "worker")}
    worker = celery("tests.topologies.workproj", "worker", "-P", "prefork", "-c", "2", "-l", "INFO", **env)
    running.append(worker)
    worker.says("ready")
    caller = Process([sys.executable, "-m", "tests.topologies.workproj"], env)
    running.append(caller)
    assert caller.wait(40) == 0, caller.output + worker.output
    assert "SUCCEEDED" in caller.output, caller.output + worker.output
    eventually(lambda: _has_done_all(worker), what="all tasks")
    eventually(lambda: admin.xlen("{redbeat-lite}:runs:feed") == 3, what="the ends of two runs, and of an attempt")
    worker.terminate()
    assert not denied(admin), worker.output
    assert worker.wait() == 0, worker.output
    for process in running:
        assert not process.lines("Traceback|permission"), process.output
        assert "secret" not in process.output


def test_a_worker_cannot_write_the_schedule(guarded: Server, admin: redis.Redis) -> None:
    writes = (
        ("HSET", KEYS.entries, "entry", "{}"),
        ("HSET", KEYS.state, "entry", "{}"),
        ("HSET", KEYS.meta, "freeze", "{}"),
        ("ZADD", KEYS.due, "0", "entry"),
        ("DEL", KEYS.leader),
        ("PUBLISH", KEYS.wake, "x"),
    )
    with redis.Redis.from_url(url(guarded, "worker")) as client:
        for command in writes:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)


def _has_done_all(worker: Process) -> bool:
    """Whether no task is under way: at a stop just as a child begins one, Celery 5.7 may wait for it for 30 s."""
    waited = worker.lines(r"proj\.wait\[.* succeeded")
    return len(waited) == 3 and len(worker.lines(" received$")) == len(worker.lines("succeeded|ignored$|retry: "))
