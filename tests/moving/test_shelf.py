"""Moving in from the schedule file that Celery's own scheduler writes."""

from __future__ import annotations

import dbm.dumb
import os
import pickle
import shelve
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, ScheduleEntry
from celery.schedules import crontab, schedule, solar

from redbeat_lite import Scheduler, Schedules
from redbeat_lite.errors import ConfigurationError
from redbeat_lite.importers.found import Found, Left
from redbeat_lite.importers.moving import Move, MoveIn
from redbeat_lite.importers.shelf import ShelfSource


class OfOurOwn(schedule):  # type: ignore[misc]  # Celery ships no types
    """A schedule class that only the app knows."""


class Hostile:
    """What somebody might plant in a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def shelf_app(make_app: Callable[..., Celery]) -> Celery:
    app = make_app()
    app.conf.beat_schedule = {
        "interval": {"task": "shop.sync", "schedule": 3600},
        "crontab": {"task": "shop.sync", "schedule": crontab(minute=0, hour=3)},
        "solar": {"task": "shop.sync", "schedule": solar("sunset", 52.5, 13.4)},
        "own": {"task": "shop.sync", "schedule": OfOurOwn(7200)},
        "fresh": {"task": "shop.sync", "schedule": 60},
    }
    return app


def written(app: Celery, path: Path, **runs: timedelta) -> Path:
    """The file as Celery's own scheduler leaves it; these entries last ran so long ago."""
    scheduler = PersistentScheduler(app, schedule_filename=str(path))
    for name, ago in runs.items():
        entry = next(scheduler.schedule[name])
        entry.last_run_at -= ago
        entry.total_run_count = 9
        scheduler.schedule[name] = entry
    scheduler.close()
    return path


def plan(app: Celery, path: Path, *, apply: bool = False) -> dict[str, Move]:
    mover = MoveIn(app)
    try:
        moves = mover.plan(ShelfSource(path).read())
        if apply:
            mover.apply(moves)
        return {move.name: move for move in moves}
    finally:
        mover.close()


def test_each_entry_goes_on_from_its_last_run(
    shelf_app: Celery, tmp_path: Path, make_beat: Callable[[Celery], Scheduler]
) -> None:
    ago = {"interval": timedelta(minutes=50), "crontab": timedelta(hours=30), "solar": timedelta(hours=2)}
    path = written(shelf_app, tmp_path / "celerybeat-schedule", own=timedelta(0), **ago)
    running = PersistentScheduler(shelf_app, schedule_filename=str(path))
    theirs = {name: running.schedule[name].is_due() for name in ("interval", "solar", "fresh", "crontab")}
    now = datetime.now(UTC)
    answers = {name: now + timedelta(seconds=0 if due else wait) for name, (due, wait) in theirs.items()}
    running.close()
    moves = plan(shelf_app, path, apply=True)
    for name, answer in answers.items():
        entry = moves[name].entry
        assert entry is not None
        # Our instants of the sun are whole seconds.
        assert abs(max(entry.next_run_at, now) - answer) <= timedelta(seconds=1 if name == "solar" else 0.1), name
    schedules = Schedules(shelf_app)
    assert {name: entry.total_run_count for name, entry in schedules.items()} == {
        "interval": 9,
        "crontab": 9,
        "solar": 9,
        "own": 9,
        "fresh": 0,
    }
    assert {entry.source for entry in schedules.values()} == {"config:proj"}
    before = schedules["interval"].next_run_at
    make_beat(shelf_app).run_due()
    assert schedules["interval"].next_run_at == before
    assert schedules["crontab"].total_run_count == 10, "it was overdue there, so it is here"


def test_the_file_is_read_while_its_beat_has_it_open_and_is_left_as_it_is(shelf_app: Celery, tmp_path: Path) -> None:
    running = PersistentScheduler(shelf_app, schedule_filename=str(tmp_path / "celerybeat-schedule"))
    assert running.schedule
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert len([*ShelfSource(tmp_path / "celerybeat-schedule").read()]) == 5
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    running.close()


def test_what_the_configuration_no_longer_has_is_left_out(shelf_app: Celery, tmp_path: Path) -> None:
    path = written(shelf_app, tmp_path / "celerybeat-schedule")
    del shelf_app.conf.beat_schedule["interval"]
    move = plan(shelf_app, path)["interval"]
    assert (move.action, "beat_schedule" in move.notes[0]) == ("left out", True)


def test_nothing_in_the_file_runs_code(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    arguments = (Hostile(planted),), {"x": Hostile(planted)}
    entry = ScheduleEntry("bad", "shop.sync", datetime.now(UTC), 1, crontab(), *arguments, {})
    with shelve.open(str(tmp_path / "s")) as shelf:
        shelf["entries"] = {"bad": entry, "worse": Hostile(planted)}
    found = {each.name: each for each in ShelfSource(tmp_path / "s").read()}
    assert not planted.exists()
    assert isinstance(found["bad"], Found)
    assert isinstance(found["worse"], Left)


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_files_of_every_python_and_zone_are_read(
    tmp_path: Path, make_app: Callable[..., Celery], protocol: int
) -> None:
    at = datetime.now(UTC)
    zones = {zone: make_app(timezone=zone).timezone for zone in ("Europe/Berlin", "UTC")} | {"fixed": UTC}
    with shelve.open(str(tmp_path / "s"), protocol=protocol) as shelf:
        shelf["entries"] = {
            name: ScheduleEntry(name, "shop.sync", at.astimezone(zone), 1, crontab()) for name, zone in zones.items()
        }
    found = {each.name: each for each in ShelfSource(tmp_path / "s").read()}
    assert {name: getattr(each, "since", each) for name, each in found.items()} == dict.fromkeys(zones, at)


def test_a_file_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no schedule file"):
        ShelfSource(tmp_path / "absent")
    (tmp_path / "text").write_text("no shelf")
    with pytest.raises(ConfigurationError, match="cannot be read as a schedule of Celery's"):
        [*ShelfSource(tmp_path / "text").read()]
    with dbm.dumb.open(str(tmp_path / "empty"), "c") as shelf:
        shelf[b"other"] = b""
    with pytest.raises(ConfigurationError, match="holds no schedule of Celery's"):
        [*ShelfSource(tmp_path / "empty").read()]
