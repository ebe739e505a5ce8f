"""Freezes where people meet them: the calls, the commands, and who tells of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import EntryNotFound, Freeze, InvalidEntry, Schedules, cron, every
from redbeat_lite.beat.status import status
from redbeat_lite.operate.doctor import examine
from redbeat_lite.pipeline.pipeline_keys import index_key
from tests.cli.conftest import Cli
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.run_records import Worker

HOUR = timedelta(hours=1)


def run(cli: Cli, *words: str, code: int = 0) -> str:
    said = cli(*words, code=code)
    return " ".join((said.out + said.err).split())


@pytest.fixture
def billing(schedules: Schedules) -> Schedules:
    """Three entries."""
    schedules.add("billing-a", "add", cron("0 9 * * *", tz="UTC"), tags=("money",))
    schedules.add("billing-b", "add", every(60), tags=("money", "fast"))
    schedules.add("other[1]", "add", every(60))
    return schedules


def test_status_tells_what_goes_on_meanwhile(
    cli: Cli, app: Celery, make_app: Callable[..., Celery], billing: Schedules, client: redis.Redis
) -> None:
    client.zadd(index_key("redbeat-lite"), {"a run": 1})
    Worker(client).reports("other", "empty")
    assert "goes on" not in run(cli, "status")
    billing.freezes.add("*", seconds=60)
    assert "goes on queued messages; 1 run of pipelines" in run(cli, "status")
    found = json.loads(cli("status", "--json").out)
    assert (found["pipelines"], found["queues"]) == (1, ["empty", "other"])


def soon() -> datetime:
    return (datetime.now(UTC) + HOUR).replace(microsecond=0)


@together(
    ("given", "words"),
    [
        ({}, "until: expected either until or seconds, got (None, None)"),
        ({"seconds": 5, "until": soon()}, "expected either until or seconds"),
        ({"seconds": 0}, 'a text such as "1h30m", at least 0.001 s and at most 1000 years, got 0'),
        ({"seconds": "2x"}, "seconds: expected seconds"),
        ({"seconds": float("nan")}, "seconds: expected seconds"),
        ({"seconds": timedelta(microseconds=1)}, "seconds: expected seconds"),
        ({"seconds": timedelta(days=-1)}, "seconds: expected seconds"),
        ({"until": datetime(2026, 1, 1)}, "until: expected an aware datetime"),
        (
            {"until": datetime(2020, 1, 1, tzinfo=UTC)},
            "until: expected an instant still to come, within 1,000 years, got 2020",
        ),
        ({"until": datetime.max.replace(tzinfo=UTC)}, "until: expected an instant still to come, within 1,000 years"),
        ({"seconds": 5, "name": ""}, "of 1 to 600 characters, got ''"),
        ({"seconds": 5, "task": None}, "task: expected a name or a pattern"),
        ({"seconds": 5, "task": "\ud800"}, "task: expected a name or a pattern"),
        ({"seconds": 5, "name": 601 * "x"}, "name: expected a name or a pattern, as billing-*, of 1 to 600"),
        ({"seconds": 5, "tag": "a,b"}, "tag: expected text of 1 to 100 characters"),
        ({"seconds": 5, "note": 7}, "note: expected text"),
    ],
)
def test_what_is_wrong_is_named(schedules: Schedules, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidEntry) as caught:
        schedules.freezes.add(**given)
    assert words in str(caught.value)
    assert [*schedules.freezes] == []


def test_freezes_are_made_listed_and_thawed(schedules: Schedules) -> None:
    until = soon()
    first = schedules.freezes.add("billing-*", tag="money", task="a*", until=until, note="why")
    second = schedules.freezes.add(seconds=HOUR)
    assert [*schedules.freezes] == [first, second]
    assert first.selection == ("billing-*", "money", "a*")
    assert (first.until, first.note, first.thawed) == (until, "why", None)
    assert second.until - second.since == HOUR
    schedules.freezes.thaw(first.id)
    for gone in (first.id, "nobody"):
        with pytest.raises(EntryNotFound, match=f"no freeze '{gone}' holds"):
            schedules.freezes.thaw(gone)
    assert [*schedules.freezes] == [second]
    frozen, thawed = [each for each in schedules.changes() if each.action in ("frozen", "thawed")][::-1][::2]
    assert (frozen.note, {field: after for field, _, after in frozen.fields}["until"]) == (
        "why",
        until.isoformat(),
    )
    assert (thawed.action, thawed.fields) == ("thawed", (("id", None, first.id),))


def test_the_ends_of_time_are_instants(schedules: Schedules) -> None:
    schedules.add("a", "add", cron("0 * * * *"))
    first, last = datetime.min.replace(tzinfo=timezone(HOUR)), datetime.max.replace(tzinfo=timezone(-HOUR))
    assert len(schedules.upcoming(until=last, limit=2)) == 2
    assert schedules.backfills.start("a", first, first, max_active=None, dry_run=True).start.year == 1


def test_there_are_at_most_a_hundred(schedules: Schedules, client: redis.Redis) -> None:
    known = schedules.freezes.known()
    now = datetime.now(UTC).replace(microsecond=0)
    many = known.replaced(*(Freeze(f"{n}", "a", None, "*", now, now + HOUR) for n in range(99)))
    client.hset(KEYS.meta, "freezes", many.text)
    schedules.freezes.add(seconds=5)
    with pytest.raises(InvalidEntry, match="freezes: expected at most 100 of them, got 101"):
        schedules.freezes.add(seconds=5)


def test_two_who_freeze_at_once_both_do(schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    known, made = schedules.freezes.known, list[Freeze]()

    def raced() -> Any:
        found = known()
        if not made:
            made.append(Schedules(schedules._app).freezes.add("b", seconds=5))
        return found

    monkeypatch.setattr(schedules.freezes, "known", raced)
    mine = schedules.freezes.add("a", seconds=5)
    assert [*Schedules(schedules._app).freezes] == [*made, mine]


def test_commands(cli: Cli, billing: Schedules) -> None:
    assert run(cli, "freezes") == "Nothing is frozen."
    said = run(cli, "freeze", "billing-*", "--tag", "fast", "--for", "2h", "--note", "deploy")
    [made] = billing.freezes
    assert said.startswith("froze billing-*, tag fast until ")
    assert said.endswith(f": 1 entry; to end it: thaw {made.id}")
    assert (made.until - made.since, made.note) == (2 * HOUR, "deploy")
    [listed] = json.loads(cli("freezes", "--json").out)
    assert (listed["id"], listed["tag"], listed["until"]) == (made.id, "fast", made.until.isoformat())
    assert f"{made.id} billing-*, tag fast" in run(cli, "freezes")
    assert run(cli, "thaw", made.id) == f"thawed '{made.id}'"
    assert "no freeze" in run(cli, "thaw", made.id, code=1)
    assert "3 entries" in run(cli, "freeze", "*", "--until", soon().isoformat())
    assert "say for how long: --for or --until" in run(cli, "freeze", "*", code=1)
    assert "say which entries: a NAME or a pattern" in run(cli, "freeze", "--for", "2h", code=1)
    assert "froze tag fast until" in run(cli, "freeze", "--tag", "fast", "--for", "2h")
    assert "seconds, a timedelta or a text" in run(cli, "freeze", "*", "--for", "soon", code=1)
    assert run(cli, "freeze", "all", "--for", "2h").endswith("To freeze all entries: freeze '*'")
    assert "until 2100-01-01 01:00:00+01:00" in run(cli, "freeze", "z", "--until", "2100-01-01T00:00Z")
    assert "until 2100-01-01 01:00:00+01:00" in run(cli, "log", "--limit", "1")


def test_a_freeze_of_the_very_name_freezes_that_one(cli: Cli, billing: Schedules) -> None:
    assert ": 1 entry;" in run(cli, "freeze", "other[1]", "--for", "2h", "--note", "disk")
    [made] = billing.freezes
    assert (made.selection.covers(billing["other[1]"]), made.note) == (True, "disk")
    assert billing["other[1]"].paused_note is None


def test_who_looks_is_told(cli: Cli, app: Celery, billing: Schedules) -> None:
    made = billing.freezes.add("billing-*", seconds=HOUR, note="deploy")
    assert status(app).freezes == (made,)
    assert "frozen billing-*, until" in run(cli, "status")
    assert json.loads(cli("status", "--json").out)["freezes"][0]["id"] == made.id
    listed = json.loads(cli("list", "--status", "frozen", "--json").out)
    assert {each["name"]: each["frozen_until"] for each in listed} == dict.fromkeys(
        ("billing-a", "billing-b"), made.until.isoformat()
    )
    assert re.search(r"frozen until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+", run(cli, "list", "billing-a"))
    assert "frozen until" not in run(cli, "list", "other*")
    assert "status frozen" in run(cli, "show", "billing-b")
    assert "freeze" not in [each.check for each in examine(app)]
    assert "froze billing-* until" in run(cli, "why", "billing-b")
    billing.freezes.thaw(made.id)
    assert "froze" not in run(cli, "why", "billing-b")
    assert status(app).freezes == ()


@together("given", [{"name": "*", "seconds": 60}, {"name": "a", "seconds": timedelta(days=8)}], emptied=True)
def test_the_doctor_tells_of_freezes_that_may_be_forgotten(
    app: Celery, schedules: Schedules, given: dict[str, Any]
) -> None:
    made = schedules.freezes.add(**given)
    [finding] = [each for each in examine(app) if each.check == "freeze"]
    assert finding.what.startswith(f"{made.name}: frozen by {made.actor} until ")
    assert f"thaw {made.id}" in finding.todo


def test_while_all_is_frozen_nothing_is_late(app: Celery, schedules: Schedules, client: redis.Redis) -> None:
    schedules.add("a", "add", every(60))
    client.zadd(KEYS.due, {"a": 1000})
    assert status(app).overdue == 1
    schedules.freezes.add(seconds=60)
    assert (status(app).overdue, status(app).lag) == (0, 0.0)


def test_what_is_frozen_comes_at_the_end(cli: Cli, schedules: Schedules) -> None:
    schedules.add("held", "add", every(60))
    held = schedules.freezes.add("held", seconds=1000)
    found = schedules.upcoming(held.until + timedelta(seconds=90))
    assert found[0].at == held.until > found[0].nominal
    [row] = json.loads(cli("next", "held", "--limit", "1", "--json").out)
    assert row["at"] == held.until.isoformat()
