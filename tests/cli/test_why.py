"""``why`` as one types it, on a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import redis

from redbeat_lite import Schedules, at, cron, every, manual
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries.changes import Change
from redbeat_lite.entries.run import Run
from redbeat_lite.once.lock_store import OnceKeys
from redbeat_lite.once.worker_reports import WorkerReport
from redbeat_lite.store.redis_values import server_ms
from tests.cli.conftest import Cli
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.changes import forget_changes
from tests.support.frozen import frozen_clock

#: The night before the frozen clock's noon, at three in Berlin.
NIGHT = datetime(2026, 3, 2, 2, tzinfo=UTC)


@pytest.fixture
def nightly(schedules: Schedules, client: redis.Redis) -> Iterator[Schedules]:
    """A schedule with one entry, which has been there for two nights, under a frozen clock."""
    with frozen_clock() as clock:
        clock.forward(-2 * 86_400)
        schedules.add("nightly", "add", cron("0 3 * * *"))
        clock.forward(2 * 86_400)
        forget_changes(client, KEYS)
        yield schedules


def test_it_tells_of_the_last_time_and_the_next_with_who_says_so(
    cli: Cli, nightly: Schedules, client: redis.Redis
) -> None:
    nightly.pause("nightly", note="until the disk is replaced")
    forget_changes(client, KEYS)
    said = cli("why", "nightly")
    assert max(map(len, said.lines)) <= 80
    assert " ".join(said.out.split()) == (
        "answer 'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is paused: until the disk is replaced. "
        "next It has no next run, because it is paused: until the disk is replaced."
    )


def test_a_time_of_day_is_the_last_one_that_has_passed(cli: Cli, nightly: Schedules) -> None:
    def asked(instant: str) -> tuple[str, str]:
        found = cli("why", "nightly", instant, "--json").json
        return found["nominal"], found["verdict"]

    assert asked("03:00") == asked("2026-03-02 03:00") == asked("2026-03-02T02:00Z")
    assert asked("03:00")[0] == asked("02:00Z")[0] == asked("03:00:00+01:00")[0] == NIGHT.isoformat()
    nightly.add("far away", "add", cron("0 3 * * *", tz="Asia/Tokyo"))
    assert "2026-03-01 19:00:00+01:00" in cli("why", "far away", "03:00", "--json").json["verdict"], "by its own zone"
    assert asked("03:00Z")[1] == "'nightly' had no occurrence at 2026-03-02 04:00:00+01:00."
    [none] = {asked("13:08")[1], asked("2026-03-01T13:08")[1]}
    assert none == "'nightly' had no occurrence at 2026-03-01 13:08:00+01:00."
    assert asked("13:07")[1] == "'nightly' had no occurrence at 2026-03-02 13:07:00+01:00."
    assert asked("10h7m") == asked("607m") == asked("03:00"), "a length of time is how long ago"
    assert asked("36449s") == asked("02:59:50"), "to its second, if it is in seconds"


@together("schedule", [5, timedelta(minutes=1), every("1h"), every("1h", align=True), at(NIGHT), manual()])
def test_a_time_is_read_in_the_zone_of_the_app_if_the_schedule_has_none(
    cli: Cli, nightly: Schedules, schedule: Any
) -> None:
    nightly.add("other", "add", schedule, replace=True)
    for instant in ("03:00", "2026-03-02 03:00"):
        verdict = cli("why", "other", instant, "--json").json["verdict"]
        assert re.search(r"(at|for) 2026-03-02 03:00:\d\d\+01:00", verdict), (instant, verdict)


@together("instant", ["tomorrow", "25:00", "03:0", "0001-01-01", "9999-12-31", "2026-13-01"])
def test_what_is_no_instant_is_refused_with_what_was_expected(cli: Cli, nightly: Schedules, instant: str) -> None:
    said = cli("why", "nightly", instant, code=1)
    expected = (
        'an instant such as 2026-12-01T09:00+01:00, or a time of day such as 03:00, or how long ago, such as "1h30m"'
    )
    if instant[:4] in ("0001", "9999"):
        expected = "an instant of the years 1971 to 9998"
    assert said.err == f"Error: instant: expected {expected}, got {instant!r}\n"


def test_an_entry_that_is_not_there(cli: Cli, nightly: Schedules, client: redis.Redis) -> None:
    said = cli("why", "nigthly", code=1)
    assert said.err == "Error: no entry 'nigthly' is stored; did you mean 'nightly'?\n"
    client.hset(KEYS.quarantine, "old", json.dumps({"error": "no such zone", "at": to_ms(NIGHT)}))
    assert "it is in quarantine: no such zone; mend that, then: " in cli("why", "old", code=1).err


def test_it_asks_the_records_and_the_workers(
    cli: Cli, nightly: Schedules, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = timedelta(hours=1)
    silent = ("ticked", str(to_ms(NIGHT - hour)), str(to_ms(NIGHT + hour)))
    changes = [Change(NIGHT + hour, "term begun", "beat-2", "beat", fields=(silent,))]
    runs = [Run("nightly", NIGHT, "waiting", "t", source="schedule")]

    monkeypatch.setattr("redbeat_lite.operate.why_case.RunHistory.of_stored", lambda *_: runs)
    monkeypatch.setattr("redbeat_lite.operate.why_case.search", lambda *_, **__: changes)
    said = msgspec.json.encode(WorkerReport(["celery"], server_ms(client) / 1000))
    workers = OnceKeys("redbeat-lite").workers
    client.hset(workers, "w1@a", said)
    client.expire(workers, 60)

    found = cli("why", "nightly", "03:00", "--json").json
    assert found["verdict"] == (
        "'nightly' was sent for 2026-03-02 03:00:00+01:00, and no worker has reported that it began."
    )
    assert found["causes"] == [], "a worker takes from its queue"
    assert found["timeline"] == [
        {
            "at": (NIGHT - hour).isoformat(),
            "text": "nobody led until 2026-03-02 04:00:00+01:00, when beat-2 began to lead",
        },
        {"at": NIGHT.isoformat(), "text": "run: waiting, task t"},
    ]
    client.delete(workers)
    [cause] = cli("why", "nightly", "03:00", "--json").json["causes"]
    assert cause.startswith("No worker with install() takes from queue 'celery' now.")
    said = " ".join(cli("why", "nightly", "03:00").out.split())
    assert said.endswith(
        "around 2026-03-02 02:00:00+01:00 nobody led until 2026-03-02 04:00:00+01:00, when "
        "beat-2 began to lead 2026-03-02 03:00:00+01:00 run: waiting, task t"
    )
