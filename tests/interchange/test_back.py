"""The example that goes back: what it writes into the real stores of the others is what their own code reads there."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, solar
from redbeat import RedBeatSchedulerEntry
from redbeat.schedulers import get_redis

from redbeat_lite import Schedules, at, cron, every, rrule
from redbeat_lite.interchange.move_in import MoveIn
from redbeat_lite.interchange.sources import DjangoBeatSource, RedBeatSource
from tests.support.frozen import Clock
from tests.support.processes import ROOT, run_python
from tests.support.server import Server

SCRIPT = ROOT / "examples" / "back" / "back.py"


@pytest.fixture
def back(clock: Clock) -> Any:
    """The script, as it is where the clock stands still."""
    spec = importlib.util.spec_from_file_location("back", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def peer_app(make_app: Callable[..., Celery], server: Server) -> Celery:
    return make_app(redbeat_redis_url=server.url)


def returned(app: Celery, source: Any) -> dict[str, Any]:
    """What would come over if one moved in again, over what is here."""
    return {move.name: move for move in MoveIn(app, replace=True).plan(source.read())}


def common(schedules: Schedules) -> None:
    """Entries that both of the others can have, and some that neither can."""
    schedules.add("plain", "shop.sync", every("90s"), args=(1, "a"), kwargs={"full": True})
    schedules.add("cron", "shop.sync", cron("*/5 3 * * mon-fri"), options={"queue": "slow", "priority": 3})
    schedules.add("celerys", "shop.sync", crontab(minute="0", hour="3", day_of_month=[1, 15]), expires=90)
    schedules.add("tagged", "shop.sync", 60, tags=("a",), misfire="skip", jitter=5)
    schedules.add("paused", "shop.sync", 60)
    schedules.pause("paused", note="the disk")
    schedules.add("aligned", "shop.sync", every(60, align=True))
    schedules.add("either", "shop.sync", cron("0 3 1 * mon"))
    schedules.add("easter", "shop.sync", rrule("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17;BYMINUTE=0;BYSECOND=0"))
    schedules.add("spread", "shop.sync", cron("H 3 * * *"))


LOST = ("aligned", "either", "easter", "spread")


def test_edits_go_back_to_celery_redbeat(
    back: Any, peer_app: Celery, clock: Clock, capsys: Any, make_beat: Any
) -> None:
    RedBeatSchedulerEntry("plain", "shop.sync", crontab(minute=7), app=peer_app, total_run_count=5).save()
    schedules = Schedules(peer_app)
    common(schedules)
    schedules.add("sunny", "shop.sync", solar("sunset", 52, 13))
    schedules.add("bounded", "shop.sync", 60, max_runs=3)
    schedules.add("tokyo", "shop.sync", cron("0 3 * * *", tz="Asia/Tokyo"))
    schedules.add("home", "shop.sync", cron("0 3 * * *", tz="Europe/Berlin"))
    beat = make_beat(peer_app)
    clock.forward(100)
    beat.tick()
    before = {name: (entry.last_run_at, entry.total_run_count) for name, entry in schedules.items()}
    assert before["plain"][1] == 1
    keys = get_redis(peer_app).keys("redbeat:*")
    assert back.back(peer_app, "celery-redbeat", apply=False) == 3
    assert get_redis(peer_app).keys("redbeat:*") == keys, "nothing was written"
    capsys.readouterr()
    assert back.back(peer_app, "celery-redbeat", apply=True) == 3
    said = capsys.readouterr().out
    lost = {*LOST, "sunny", "bounded", "tokyo"}
    assert {line.partition(":")[0] for line in said.splitlines() if ": cannot be carried" in line} == lost
    assert "tagged: carried, without jitter, tags, misfire" in said
    assert "paused: carried, without the note of its pause" in said

    theirs = RedBeatSchedulerEntry.from_key("redbeat:plain", app=peer_app)
    assert (theirs.args, theirs.kwargs) == ([1, "a"], {"full": True})
    assert (theirs.last_run_at, theirs.total_run_count) == before["plain"]
    assert not RedBeatSchedulerEntry.from_key("redbeat:paused", app=peer_app).enabled
    again = returned(peer_app, RedBeatSource(peer_app))
    assert {*again} == {*before} - lost
    for name, move in again.items():
        if name != "paused":
            assert abs(move.entry.next_run_at - schedules[name].next_run_at) < timedelta(seconds=5.1), name
    assert again["celerys"].entry.options == {"expires": 90}
    assert again["cron"].entry.options == {"queue": "slow", "priority": 3}


def test_the_script_looks_before_it_writes(peer_app: Celery, server: Server) -> None:
    Schedules(peer_app).add("hourly", "shop.sync", 3600)
    env = {**os.environ, "MOVING_URL": server.url, "PYTHONPATH": str(ROOT)}
    command = ("tests.interchange.proj:app", "celery-redbeat")
    for words, said in (((), "hourly: can be carried\n"), (("--apply",), "hourly: carried\n")):
        assert not get_redis(peer_app).exists("redbeat:hourly")
        done = run_python(str(SCRIPT), *command, *words, cwd=ROOT, env=env)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    assert RedBeatSchedulerEntry.from_key("redbeat:hourly", app=peer_app).schedule.run_every == timedelta(hours=1)


def test_edits_go_back_to_django_celery_beat(
    back: Any, models: Any, make_app: Callable[..., Celery], clock: Clock, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    interval = models.IntervalSchedule.objects.create(every=7, period="hours")
    models.PeriodicTask(name="cron", task="shop.old", interval=interval, total_run_count=5).save()
    schedules = Schedules(app)
    common(schedules)
    schedules.add("sunny", "shop.sync", solar("sunset", 52, 13))
    schedules.add("half", "shop.sync", 0.5)
    schedules.add("soon", "shop.sync", at(clock.now + timedelta(hours=1)))
    bounds = {"start_at": clock.now + timedelta(days=1), "end_at": clock.now + timedelta(days=2)}
    schedules.add("bounded", "shop.sync", 60, description="why", **bounds)
    schedules.add("once", "shop.sync", 60, max_runs=1)
    schedules.add("thrice", "shop.sync", 60, max_runs=3)
    schedules.add("tokyo", "shop.sync", cron("0 3 * * *", tz="Asia/Tokyo"))
    assert back.back(app, "django-celery-beat", apply=False) == 3
    assert models.PeriodicTask.objects.count() == 1
    capsys.readouterr()
    assert back.back(app, "django-celery-beat", apply=True) == 3
    said = capsys.readouterr().out
    lost = {*LOST, "thrice"}
    assert {line.partition(":")[0] for line in said.splitlines() if ": cannot be carried" in line} == lost
    row = models.PeriodicTask.objects.get(name="cron")
    assert (row.task, row.interval, row.queue, row.priority) == ("shop.sync", None, "slow", 3)
    assert row.crontab.timezone == ZoneInfo("Europe/Berlin")
    again = returned(app, DjangoBeatSource())
    assert {*again} == {*schedules} - lost
    for name, move in again.items():
        ours = schedules[name]
        if name not in ("paused", "once"):
            assert abs(move.entry.next_run_at - ours.next_run_at) < timedelta(seconds=5.1), name
        assert (move.entry.task, move.entry.args, move.entry.kwargs) == (ours.task, ours.args, ours.kwargs)
        assert (move.entry.start_at, move.entry.end_at) == (ours.start_at, ours.end_at), name
    assert again["celerys"].entry.options == {"expires": 90}
    assert again["bounded"].entry.description == "why"
    assert again["once"].entry.max_runs == again["soon"].entry.max_runs == 1
