"""The real command line: ``import --from`` and ``shadow``, beside real beats of the other packages."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule
from django.db import connection
from redbeat import RedBeatSchedulerEntry
from redbeat.schedulers import get_redis

from redbeat_lite import Schedules
from tests.support.messages import of_entry, queued
from tests.support.processes import ROOT, Process, celery, run_celery
from tests.support.server import Server
from tests.support.waiting import eventually


@pytest.fixture
def peer_app(make_app: Callable[..., Celery], server: Server) -> Celery:
    """The project of the command lines, in this process."""
    app = make_app(redbeat_redis_url=server.url)
    app.conf.beat_schedule = {"configured": {"task": "proj.sync", "schedule": 3600}}
    return app


@pytest.fixture
def start(server: Server, owned: ExitStack) -> Callable[..., Process]:
    """Starts ``celery -A proj …``."""

    def begin(*words: str, **env: Any) -> Process:
        environment = {"MOVING_URL": server.url, "COLUMNS": "80", **env}
        return owned.enter_context(celery("tests.interchange.proj", *words, **environment))

    return begin


def redbeat(server: Server, *words: str, code: int = 0, **env: str) -> str:
    """Run ``celery -A proj redbeat …`` to its end and return what it says."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MOVING_URL": server.url, "MOVING_ALONE": "1", **env}
    done = run_celery("tests.interchange.proj", "redbeat", *words, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def save(app: Celery, name: str, found: Any, **fields: Any) -> None:
    RedBeatSchedulerEntry(name, "proj.sync", found, app=app, **fields).save()


def test_a_dry_run_tells_and_apply_does_it(peer_app: Celery, server: Server) -> None:
    save(peer_app, "often", schedule(60), kwargs={"full": True})
    save(peer_app, "nightly report of everything that happened in the shop since yesterday", crontab(0, 3))
    save(peer_app, "weekly", crontab(0, 9, day_of_week=1), enabled=False)
    save(peer_app, "", schedule(60))
    told = redbeat(server, "import", "--from", "redbeat", code=3)
    assert "From celery-redbeat: " in told
    assert "3 to import, 0 stored already, 1 left out. Nothing was written; --apply does it." in told
    assert "expected text of 1 to 200 characters" in told
    assert len([line for line in told.splitlines() if line.startswith("add ")]) == 3
    assert len(Schedules(peer_app)) == 0
    done = json.loads(redbeat(server, "import", "--from", "redbeat", "--apply", "--json", code=3))
    assert [each["action"] for each in done].count("add") == 3
    often = next(each["entry"] for each in done if each["name"] == "often")
    assert datetime.fromisoformat(often["next_run_at"]) == Schedules(peer_app)["often"].next_run_at
    assert "disabled" in redbeat(server, "list", "weekly")
    again = redbeat(server, "import", "--from", "redbeat", "--apply", code=3)
    assert "0 imported, 3 stored already, 1 left out\n" in again
    assert "often" not in again
    assert "lock" not in redbeat(server, "import", "--from", "redbeat", "--apply", "--replace", code=3)
    get_redis(peer_app).set(peer_app.redbeat_conf.lock_key, "a token", ex=90)
    said = redbeat(server, "import", "--from", "redbeat", "--apply", "--replace", code=3)
    assert "The lock of celery-redbeat is held; it expires in 1 min " in said.partition(" imported, ")[2]
    assert said.endswith("still runs, stop it: both would send.\n"), "where nobody overlooks it"


def test_a_shadow_ends_in_time_and_tells_by_its_exit_code(peer_app: Celery, server: Server) -> None:
    save(peer_app, "often", schedule(1))
    start = time.monotonic()
    said = redbeat(server, "shadow", "--from", "redbeat", "--for", "3s", "--tolerance", "1s", "--json", code=3)
    assert time.monotonic() - start > 3
    difference, summary = map(json.loads, said.splitlines())
    assert (difference["name"], difference["kind"]) == ("often", "not sent")
    assert summary == {"watched": 1, "agreed": 0, "undecided": 0, "differences": {"not sent": 1}}


def test_each_wrong_request_is_said_in_a_line(server: Server) -> None:
    wrong = {
        ("import", "--from", "redbeat", "-"): "give either the PATH of a file that export has",
        ("import",): "give either the PATH of a file that export has written, or --from",
        ("import", "--from", "celery-shelve"): "'celery-shelve' is not one of 'redbeat', 'django-celery-beat'",
        ("shadow", "--from", "celery-shelve"): "'celery-shelve' is not one of 'redbeat', 'django-celery-beat'",
        ("shadow", "--from", "redbeat", "--tolerance", "soon"): "--tolerance: expected",
    }
    for words, message in wrong.items():
        said = redbeat(server, *words, code=1)
        assert message in said.splitlines()[-1]
    said = redbeat(server, "import", "--from", "redbeat", "--apply", code=1)
    assert f"no entry of celery-redbeat in {server.url}, keys redbeat:*; keep redbeat_redis_url" in said
    assert len(said.splitlines()) == 1


def test_a_server_that_cannot_be_reached_is_named(server: Server) -> None:
    url = "redis://127.0.0.1:1/0"
    said = redbeat(server, "import", "--from", "redbeat", code=2, MOVING_URL=url)
    assert f"celery-redbeat: cannot read {url}" in said
    assert len(said.splitlines()) == 1


def test_a_django_project_is_read_where_its_settings_say(server: Server, tmp_path: Path, models: Any) -> None:
    settings, database = "tests.interchange.djangosettings", str(tmp_path / "db.sqlite3")
    env = {"DJANGO_SETTINGS_MODULE": settings, "MOVING_DATABASE": database}
    said = redbeat(server, "import", "--from", "django-celery-beat", code=2, **env)
    assert "no such table" in said
    shutil.copy(connection.settings_dict["NAME"], database)
    said = redbeat(server, "import", "--from", "django-celery-beat", "--apply", code=1, **env)
    assert f"no entry of django-celery-beat in database {database}" in said
    at_five = models.CrontabSchedule.objects.create(hour="17", minute="0", timezone="Europe/London")
    models.PeriodicTask(name="tea", task="proj.sync", crontab=at_five).save()
    shutil.copy(connection.settings_dict["NAME"], database)
    said = redbeat(server, "import", "--from", "django-celery-beat", "--apply", **env)
    assert "1 imported, 0 stored already, 0 left out" in said
    assert "0 17 * * * Europe/London" in " ".join(said.split())


def test_the_switch_from_a_running_celery_redbeat(
    peer_app: Celery, server: Server, client: redis.Redis, start: Callable[..., Process]
) -> None:
    """Watched by a shadow, stopped, carried over, and gone on with: no run is missing, none comes twice."""
    save(peer_app, "often", schedule(1))
    save(peer_app, "rarely", schedule(3600))
    old = start("beat", "-S", "redbeat.RedBeatScheduler", "-l", "INFO", "--max-interval", "1")
    eventually(lambda: of_entry(client, "often") or client.llen("celery") >= 2, what="runs")
    shadow = start("redbeat", "shadow", "--from", "redbeat")
    shadow.says("Watching 3 entries of celery-redbeat")
    seen = client.llen("celery")
    eventually(lambda: client.llen("celery") >= seen + 4, what="more runs")
    shadow.signal(signal.SIGTERM)
    # How late the old beat is, and whether that is worth telling, is the machine's affair.
    assert shadow.wait() in (0, 3), shadow.output
    assert not shadow.lines("  (early|more|left out|not sent)  "), shadow.output
    assert int(shadow.says("runs agreed").split()[0]) >= 1
    old.terminate()
    old.wait()
    before = client.llen("celery")
    last = RedBeatSchedulerEntry.from_key("redbeat:often", app=peer_app).last_run_at
    redbeat(server, "import", "--from", "redbeat", "--apply")
    assert Schedules(peer_app)["configured"].source == "config:proj"
    start("beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO")
    ours = eventually(lambda: of_entry(client, "often"), what="runs of ours")
    # Counted from its last run; what the switch has missed is made up for once.
    assert ours[0].scheduled_at is not None
    assert (ours[0].scheduled_at - last) % timedelta(seconds=1) <= timedelta(milliseconds=1)
    assert ours[0].scheduled_at > last
    assert {message.entry for message in queued(client)[before:]} == {"often"}, "and nothing else was due"
    eventually(lambda: len(of_entry(client, "often")) >= 3, what="its pace")
    again = redbeat(server, "import", "--from", "redbeat", "--replace")
    assert "A beat of redbeat_lite leads" in again


def test_a_shadow_outlives_the_server_that_it_reads(
    own_server: Callable[..., Server], start: Callable[..., Process]
) -> None:
    watched = own_server()
    shadow = start("redbeat", "shadow", "--from", "redbeat", "--json", MOVING_URL=watched.url)
    eventually(lambda: _looks(watched) > 1, what="the first look, and another one")
    watched.stop()
    shadow.says("cannot read redis://.*; looking again")
    watched.start()
    eventually(lambda: _clients(watched), what="another look")
    shadow.stop()
    assert json.loads(shadow.output.splitlines()[-1])["watched"] == 0


def _looks(server: Server) -> int:
    """How often somebody has read a sorted set, which each look begins with."""
    with server.client() as client:
        stats: Any = client.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if name.startswith("cmdstat_zrange"))


def _clients(server: Server) -> bool:
    """Whether anybody but the one who asks is connected."""
    with server.client() as client:
        return int(client.info("clients")["connected_clients"]) > 1
