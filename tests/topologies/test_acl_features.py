"""The user ``api`` of security.md can use every page and every command of redbeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from redbeat_lite import Pipeline, PipelineRun, PipelineTask, Schedules, every, lock
from redbeat_lite.cli import redbeat
from redbeat_lite.pipeline.sweeper import sweep
from redbeat_lite.web import RIGHTS
from redbeat_lite.web.site import ROUTES
from tests.support.beats import KEYS
from tests.support.server import Server
from tests.topologies.test_acl import admin, denied, guarded, url
from tests.web.conftest import Visitor

__all__ = ["admin", "guarded"]

#: Commands that never end by themselves or need a second schedule. Their calls of the server
#: are those of `status`, of the page and of `list`.
LEFT_OUT = {"watch", "web", "shadow"}

OPEN_INCIDENT = '["failed", "entry", "2023-11-14T22:13:20Z", "as asked", 1]'


@pytest.fixture
def app(guarded: Server, admin: redis.Redis, make_app: Callable[..., Celery]) -> Iterator[Celery]:
    """An app whose every connection is of the user ``api``."""
    app = make_app(broker_url=url(guarded, "api"))

    @app.task(name="add", shared=False)
    def add() -> None: ...

    @app.task(name="step", base=PipelineTask, shared=False)
    def step(params: dict[str, Any]) -> None: ...

    yield app
    # The doctor asks for it where nobody has said that there is an append-only file.
    assert set(denied(admin)) <= {"api: command config|get"}


@pytest.fixture
def schedules(app: Celery) -> Schedules:
    return Schedules(app)


def start(app: Celery, run_id: str) -> PipelineRun:
    return Pipeline(app, [("first", "step", 2), ("second", "step", 1)]).start(run_id)


def test_every_page(app: Celery, schedules: Schedules) -> None:
    schedules.add("entry", "add", every(60))
    start(app, "run")
    visitor = Visitor(app, *RIGHTS)
    for path in (path[1:] for method, path in ROUTES if method == "GET" and path != "/pipeline"):
        assert visitor.get(path).status in (200, 303, 404), path
    for path in ("entry", "runs", "changes", "edit"):
        assert visitor.get(path, name="entry").status == 200, path
    assert visitor.get("why", name="entry").status == 200
    assert visitor.get("pipeline", id="run").status == 200
    assert visitor.get("doctor", examine="on").status == 200


def test_every_action_of_the_page(app: Celery, schedules: Schedules, admin: redis.Redis) -> None:
    schedules.add("entry", "add", every(60))
    start(app, "run")
    visitor, done = Visitor(app, *RIGHTS), set()

    def post(path: str, **form: Any) -> None:
        answer = visitor.post(path, **form)
        assert answer.status in (200, 303), (path, answer.text)
        done.add(path)

    def confirm(path: str, **form: Any) -> None:
        answer = visitor.confirm(path, **form)
        assert answer.status == 303, (path, answer.text)
        done.add(path)

    post("add", name="added", task="add", every="60", save=1)
    post("edit", name="entry", version=1, jitter="1s", save=1)
    for path in ("run", "pause", "resume"):
        post(path, name="entry")
        confirm(f"{path}-all", q="entry")
    post("freeze", **{"for": "1h"})
    post("thaw")
    past = datetime.now(UTC) - timedelta(minutes=5)
    backfill = schedules.backfills.start("entry", past, datetime.now(UTC), max_active=None)
    for path in ("backfills-pause", "backfills-resume", "backfills-cancel"):
        post(path, id=backfill.id)
    post("pipelines-cancel", id="run", terminate="on")
    post("pipelines-resume", id="run")
    with lock(app, "key"):
        post("locks-clear", id="key")
    admin.hset("{redbeat-lite}:runs:incidents", "failed:entry", OPEN_INCIDENT)
    [incident] = schedules.incidents()
    post("ack", id=incident.id, note="seen")
    for path in ("quarantine-release", "quarantine-remove"):
        admin.hset(KEYS.quarantine, path, '{"error": "e", "definition": "{}"}')
        visitor.post(path, name=path)
        done.add(path)
    post("remove", name="added")
    confirm("remove-all", q="entry")
    assert done == {path[1:] for method, path in ROUTES if method == "POST"}


def test_every_command(app: Celery, schedules: Schedules, tmp_path: Path) -> None:
    past, document = (datetime.now(UTC) - timedelta(minutes=5)).isoformat(), tmp_path / "schedule.json"
    run_id = start(app, "run").id
    lines = f"""
        add entry add --every 60
        edit entry --every 90
        list
        list --task add
        show entry
        pause entry
        resume entry
        run entry
        pause entry --for 1h
        resume entry
        freeze --for 1h
        thaw
        backfill entry --from {past} --max-active none --yes
        backfills
        next
        log
        runs
        runs entry
        why entry
        quarantine list
        locks list
        pipelines list
        pipelines show {run_id}
        pipelines cancel {run_id}
        pipelines resume {run_id}
        calendars list
        calendars set closed 2030-01-01
        status
        incidents
        ack nothing
        health --cluster
        doctor
        export {document}
        plan {document}
        apply {document} --yes
        remove entry
        calendars remove closed
        import {document} --apply
    """
    used = set()
    for words in (line.split() for line in lines.strip().splitlines()):
        ended = CliRunner().invoke(redbeat, words, obj=CLIContext(app=app, no_color=True, workdir=None))
        assert ended.exit_code != 2, (words, ended.output)
        assert "no permissions" not in ended.output, (words, ended.output)
        used.add(words[0])
    assert used | LEFT_OUT == set(redbeat.commands or redbeat.list_commands(None))


def test_a_cancelled_run_is_cancelled_whole(app: Celery, schedules: Schedules, admin: redis.Redis) -> None:
    run = start(app, "run")
    assert run.cancel(note="wrong day")
    assert run.status().state == "ABORTED"
    assert schedules.changes(limit=1)[0].note == "wrong day"
    assert admin.zrange("{redbeat-lite}:pipelines", 0, -1) == []


def test_a_cancel_whose_clean_up_is_refused_is_recorded_and_cleaned_up_later(
    guarded: Server, admin: redis.Redis, make_app: Callable[..., Celery], app: Celery
) -> None:
    run = start(app, "run")
    admin.execute_command("ACL", "SETUSER", "api", "-zremrangebyrank")
    assert run.cancel(note="wrong day")
    assert Schedules(app).changes(limit=1)[0].note == "wrong day"
    admin.zadd("{redbeat-lite}:pipelines", {"0:run": 0})
    sweep(make_app(broker_url=guarded.url))
    assert admin.zrange("{redbeat-lite}:pipelines", 0, -1) == []
    assert admin.zrange("{redbeat-lite}:ended-runs", 0, -1) == [b"run"]
    admin.execute_command("ACL", "LOG", "RESET")
