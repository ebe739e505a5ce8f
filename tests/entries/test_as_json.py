"""An entry as JSON: the same wherever it is shown, and enough to make it again."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from celery import Celery
from fastapi.encoders import jsonable_encoder

from redbeat_lite import Calendar, Entry, Expect, Misfire, Once, Pause, Schedules, cron, every
from redbeat_lite.interchange.document import Record, entry_from
from redbeat_lite.settings import Settings

FULL = {
    "args": [1, "two"],
    "kwargs": {"since": datetime(2026, 1, 1, tzinfo=UTC)},
    "options": {"queue": "slow"},
    "expires": "1h30m",
    "once": Once(on_conflict="wait", lease="2m"),
    "misfire": Misfire("all", grace="1d", limit=5),
    "jitter": "30s",
    "end_at": datetime(2090, 1, 1, tzinfo=UTC),
    "max_runs": 3,
    "description": "täglich",
    "expect": Expect(finish_within="5m"),
    "on_failure": Pause(3),
    "calendar": "closed",
    "tags": ["b", "a"],
}


def test_it_is_plain_json_that_makes_the_entry_again(app: Celery, schedules: Schedules) -> None:
    schedules.calendars["closed"] = Calendar({datetime(2030, 1, 1).date()}, datetime(2080, 1, 1).date())
    schedules.add("full", "add", cron("0 3 * * *", tz="Europe/Berlin"), **FULL)
    found = schedules["full"]
    told = found.as_dict()
    assert json.loads(json.dumps(told)) == told
    assert (told["status"], told["next_run_at"][-6:], told["expires"]) == ("waiting", "+00:00", 5400.0)
    assert (told["misfire"], told["tags"]) == ({"policy": "all", "grace": 86_400.0, "limit": 5}, ["a", "b"])
    fields = {field: told[field] for field in found.definition()}
    again = entry_from(Record("full", fields, 0), Settings.from_app(app), app)
    assert {**again.definition(), "calendar": "closed"} == {**found.definition(), "calendar": "closed"}


def test_one_that_is_not_stored_tells_its_definition() -> None:
    told = Entry("a", "t", every(5)).as_dict()
    assert (told["name"], told["schedule"], told["next_run_at"], told["last_run"]) == ("a", {"every": "5s"}, None, None)


def test_a_web_framework_returns_it(schedules: Schedules) -> None:
    schedules.add("a", "add", 60)
    assert jsonable_encoder(schedules["a"].as_dict()) == schedules["a"].as_dict()
