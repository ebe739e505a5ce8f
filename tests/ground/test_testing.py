"""``redbeat_lite.testing``: what users hold their own schedules to."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import crontab

from redbeat_lite import Entry, InvalidEntry, at, cron, every
from redbeat_lite.testing import Fired, schedule_clock
from tests.support.pages import blocks, document
from tests.support.processes import ROOT

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def app() -> Celery:
    """An app whose broker could hold no schedule, and which is never asked."""
    app = Celery("shop", broker="amqp://nowhere.invalid", set_as_current=False)
    app.conf.timezone = "Europe/Berlin"
    app.conf.beat_schedule = {
        "midnight": {"task": "shop.close_day", "schedule": crontab(minute=0, hour=0)},
        "swallowed": {"task": "shop.report", "schedule": crontab(minute=30, hour=2), "args": ("daily",)},
        "hourly": {"task": "shop.sync", "schedule": crontab(minute=0), "kwargs": {"full": False}},
        "shift": {"task": "shop.rotate", "schedule": timedelta(hours=8)},
    }
    return app


def of(fired: list[Fired], name: str) -> list[str]:
    return [f"{each.nominal:%d %H:%M%z}" for each in fired if each.name == name]


def test_a_day_without_one_of_its_hours(app: Celery) -> None:
    fired = schedule_clock("2026-03-29 00:00", app=app).run("2026-03-30 00:00")
    assert of(fired, "midnight") == ["29 00:00+0100"]
    assert of(fired, "swallowed") == ["29 03:00+0200"]
    assert len(of(fired, "hourly")) == 23
    assert of(fired, "shift") == ["29 09:00+0200", "29 17:00+0200"]
    assert [each.at for each in fired] == sorted(each.at for each in fired)
    assert next(each for each in fired if each.name == "swallowed") == Fired(
        "swallowed",
        "shop.report",
        datetime(2026, 3, 29, 3, 0, tzinfo=BERLIN),
        ("daily",),
        {},
        datetime(2026, 3, 29, 3, 0, tzinfo=BERLIN),
    )


def test_a_day_takes_milliseconds(app: Celery) -> None:
    schedule_clock("2026-03-01 00:00", app=app).run()
    start = time.thread_time()
    schedule_clock("2026-03-29 00:00", app=app).run()
    assert time.thread_time() - start < 0.1


def test_times_are_read_and_shown_in_one_zone_and_schedules_run_in_their_own(app: Celery) -> None:
    fired = schedule_clock("2026-06-01 00:00", tz="Asia/Tokyo", app=app).run(timedelta(days=1))
    assert of(fired, "midnight") == ["01 07:00+0900"]  # midnight in Berlin


def test_a_run_goes_on_where_the_last_one_ended(app: Celery) -> None:
    clock = schedule_clock("2026-06-01 00:00", app=app)
    halves = clock.run("2026-06-01 12:00") + clock.run("2026-06-02 00:00")
    assert halves == schedule_clock("2026-06-01 00:00", app=app).run("2026-06-02 00:00")
    assert clock.now == datetime(2026, 6, 2, tzinfo=BERLIN)
    with pytest.raises(ValueError, match="still to come"):
        clock.run("2026-06-01 00:00")


def test_fields_of_an_entry_hold_as_they_do_in_the_beat() -> None:
    bare = Celery("bare", set_as_current=False)
    start = datetime(2026, 6, 1, tzinfo=UTC)
    entries = [
        Entry("limited", "t", every(60), max_runs=2),
        Entry("window", "t", every(600), start_at=start + timedelta(hours=1), end_at=start + timedelta(hours=1.4)),
        Entry("off", "t", every(60), enabled=False),
        Entry("once", "t", at(start + timedelta(minutes=5))),
        Entry("spread", "t", cron("0 4 * * *"), jitter=300),
    ]
    fired = schedule_clock(start, app=bare, entries=entries).run()
    assert of(fired, "limited") == ["01 00:01+0000", "01 00:02+0000"]
    assert of(fired, "window") == ["01 01:00+0000", "01 01:10+0000", "01 01:20+0000"]
    assert of(fired, "off") == []
    assert of(fired, "once") == ["01 00:05+0000"]
    [spread] = [each for each in fired if each.name == "spread"]
    assert timedelta(0) < spread.at - spread.nominal <= timedelta(minutes=5)
    assert entries[0].version == 0


def test_entries_in_the_form_of_beat_schedule_take_the_place_of_the_apps(app: Celery) -> None:
    more = {"hourly": {"task": "shop.sync", "schedule": cron("0 5 * * *")}}
    fired = schedule_clock("2026-06-01", app=app, entries=more).run()
    assert of(fired, "hourly") == ["01 05:00+0200"]


def test_periodic_tasks_that_are_added_in_code_are_there(app: Celery) -> None:
    @app.on_after_finalize.connect
    def add(sender: Celery, **_: object) -> None:
        sender.add_periodic_task(crontab(minute=15, hour=6), sender.signature("shop.added"), name="added")

    assert of(schedule_clock("2026-06-01", app=app).run(), "added") == ["01 06:15+0200"]


def test_a_wrong_entry_fails_the_test_instead_of_being_left_out(app: Celery) -> None:
    app.conf.beat_schedule["wrong"] = {"task": "shop.sync", "schedul": 60}
    with pytest.raises(InvalidEntry, match="did you mean 'schedule'"):
        schedule_clock("2026-06-01", app=app)


def test_the_time_of_the_process_agrees_while_the_clock_is_entered(app: Celery) -> None:
    before = datetime.now(UTC)
    app.conf.beat_schedule["lazy"] = {
        "task": "shop.sync",
        "schedule": crontab(minute=0, hour=12),
        "args": (BeatLazyFunc(lambda: datetime.now(UTC).isoformat()),),
    }
    with schedule_clock("2026-06-01 00:00", app=app) as clock:
        assert datetime.now(UTC) == clock.now
        for fired in clock.walk():
            assert datetime.now(BERLIN) == fired.at == clock.now
            assert time.time() == fired.at.timestamp()
            if fired.name == "lazy":
                assert fired.args == ("2026-06-01T10:00:00+00:00",)
        assert datetime.now(UTC) == datetime(2026, 6, 1, 22, tzinfo=UTC)
    assert abs(datetime.now(UTC) - before) < timedelta(minutes=1)


def run(directory: Path, *command: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=directory, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_the_page_shows_works(tmp_path: Path) -> None:
    pages = [block.text for block in blocks(document("testing.md")) if block.language == "python"]
    for text in pages:
        (tmp_path / text.split()[1]).write_text(text)
    (tmp_path / "test_after.py").write_text(
        "import datetime\n\ndef test_time_goes_on():\n    assert type(datetime.datetime.now()) is datetime.datetime\n"
    )
    assert "5 passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert run(tmp_path, "without_pytest.py").splitlines() == [
        "nightly 2026-06-01 18:00:00+00:00",
        "nightly 2026-06-02 18:00:00+00:00",
    ]
    assert len(pages) == 5
