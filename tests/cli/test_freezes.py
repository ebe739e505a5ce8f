"""A freeze, and pauses with an end, where people meet them: the calls, the commands, and who tells of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, EntryChanged, EntryNotFound, InvalidEntry, Schedules, at, cron, every
from redbeat_lite._base.times import in_zone, to_ms
from redbeat_lite.beat.status import status
from redbeat_lite.operate.doctor import examine
from redbeat_lite.pipeline.pipeline_keys import index_key
from tests.cli.conftest import Cli
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.run_records import Worker
from tests.support.waiting import eventually

HOUR = timedelta(hours=1)


def when(instant: datetime | None) -> str:
    """The instant as the command line shows it to an app in Berlin."""
    assert instant is not None
    return in_zone(instant, ZoneInfo("Europe/Berlin"))


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
    client.zadd(index_key("redbeat-lite"), {"0:a run": 1})
    Worker(client).reports("other", "empty")
    assert "goes on" not in run(cli, "status")
    billing.freeze(60)
    assert "goes on queued messages; 1 run of pipelines" in run(cli, "status")
    found = json.loads(cli("status", "--json").out)
    assert (found["pipelines"], found["queues"]) == (1, ["empty", "other"])


@together(
    ("length", "note", "words"),
    [
        (0, "", 'a text such as "1h30m", at least 0.001 s and at most 1000 years, got 0'),
        ("2x", "", "seconds: expected seconds"),
        (float("nan"), "", "seconds: expected seconds"),
        (timedelta(microseconds=1), "", "seconds: expected seconds"),
        (timedelta(days=-1), "", "seconds: expected seconds"),
        (5, 7, "note: expected text"),
    ],
)
def test_what_is_wrong_is_named(schedules: Schedules, length: Any, note: Any, words: str) -> None:
    schedules.add("a", "add", every(60), replace=True)
    for call in (
        lambda: schedules.freeze(length, note),
        lambda: schedules.pause("a", note, seconds=length),
        lambda: schedules.select("a").pause(note, seconds=length),
    ):
        with pytest.raises(InvalidEntry) as caught:
            call()
        assert words in str(caught.value)
    assert (schedules.frozen(), schedules["a"].status) == (None, "waiting")


def test_a_freeze_is_made_and_thawed(schedules: Schedules) -> None:
    assert schedules.frozen() is None
    made = schedules.freeze(HOUR, "why")
    assert schedules.frozen() == made
    assert (made.until - made.since, made.note) == (HOUR, "why")
    shorter = schedules.freeze(60)
    assert shorter == made == schedules.frozen(), "one that ends later stays"
    longer = schedules.freeze(2 * HOUR)
    assert longer.until > made.until
    schedules.thaw()
    with pytest.raises(EntryNotFound, match="no freeze holds"):
        schedules.thaw()
    assert schedules.frozen() is None
    assert schedules.freeze(60).until < made.until, "what was thawed does not count"
    thawed, *frozen = [each for each in schedules.changes() if each.action in ("frozen", "thawed")][1:]
    assert (thawed.action, thawed.fields) == ("thawed", ())
    assert (frozen[-1].note, frozen[-1].fields) == ("why", (("until", None, made.until.isoformat()),))


def test_only_the_freeze_that_somebody_has_seen_is_thawed(schedules: Schedules) -> None:
    seen = schedules.freeze(60)
    longer = schedules.freeze(3600, "migration")
    with pytest.raises(EntryChanged, match="somebody else has made another freeze"):
        schedules.thaw(if_since=seen.since)
    assert schedules.frozen() == longer
    schedules.thaw(if_since=longer.since)
    assert schedules.frozen() is None


def test_one_that_cannot_be_read_is_shown(cli: Cli, app: Celery, billing: Schedules, client: redis.Redis) -> None:
    for end in (to_ms(datetime.now(UTC) + HOUR), 9_999_999_999_999_999):
        client.hset(KEYS.meta, "freeze", f"{end}|{{oops")
        assert re.search("frozen until .* by unknown: its reason cannot be read", run(cli, "status"))
        assert "All entries are frozen until" in run(cli, "list")
        assert "All entries are frozen until" in run(cli, "why", "billing-b")
        assert [finding.check for finding in examine(app) if finding.check == "freeze"]
    assert run(cli, "thaw") == "thawed"
    assert billing.frozen() is None


def test_the_last_instant_is_shown_in_every_zone(
    cli: Cli, make_app: Callable[..., Celery], billing: Schedules, client: redis.Redis
) -> None:
    freeze = {"since": "2026-01-01T00:00:00+00:00", "until": "9999-12-31T23:59:59-12:00"}
    client.hset(KEYS.meta, "freeze", f"253402300799000|1|{json.dumps(freeze)}")
    east = make_app(timezone="Pacific/Kiritimati")
    for words in (["status"], ["list"], ["show", "billing-b"], ["why", "billing-b"]):
        assert "frozen until" in run(cli, *words)
    frozen = Schedules(east).frozen()
    assert frozen is not None
    assert frozen.until.astimezone(east.timezone).year == 9999


@together("act", ["freeze", "thaw"])
def test_of_two_who_freeze_at_once_one_is_refused(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    schedules.freeze(60)
    store = schedules._store
    read = store.freeze

    def raced() -> bytes:
        found = read()
        Schedules(schedules._app).freeze(5000)
        return found

    monkeypatch.setattr(store, "freeze", raced)
    with pytest.raises(EntryChanged, match="somebody else has made or ended a freeze just now"):
        schedules.freeze(90) if act == "freeze" else schedules.thaw()
    monkeypatch.undo()
    found = schedules.frozen()
    assert found is not None
    assert found.until - found.since == timedelta(seconds=5000)


def test_the_ends_of_time_are_instants(schedules: Schedules) -> None:
    schedules.add("a", "add", cron("0 * * * *"))
    first, last = datetime.min.replace(tzinfo=timezone(HOUR)), datetime.max.replace(tzinfo=timezone(-HOUR))
    assert len(schedules.upcoming(until=last, limit=2)) == 2
    assert schedules.backfills.start("a", first, first, max_active=None, dry_run=True).start.year == 1


def test_commands(cli: Cli, billing: Schedules) -> None:
    said = run(cli, "freeze", "--for", "2h", "--note", "deploy")
    made = billing.frozen()
    assert made is not None
    assert said.startswith("all entries are frozen until ")
    assert said.endswith("; to end it: thaw")
    assert (made.until - made.since, made.note) == (2 * HOUR, "deploy")
    assert json.loads(cli("freeze", "--for", "1h", "--json").out)["until"] == made.until.isoformat()
    assert "another freeze ends later, and stays: all entries are frozen until" in run(cli, "freeze", "--for", "1h")
    assert run(cli, "freeze", "--for", "3h").startswith("all entries are frozen until ")
    assert "frozen by" in run(cli, "log", "--limit", "1")
    assert run(cli, "thaw") == "thawed"
    assert "no freeze holds" in run(cli, "thaw", code=1)
    assert "Missing option '--for'" in run(cli, "freeze", code=1)
    assert "seconds, a timedelta or a text" in run(cli, "freeze", "--for", "soon", code=1)
    for words in (["freeze", "--for", "1001y"], ["freeze", "--for", "0.0001"], ["pause", "billing-a", "--for", "0s"]):
        assert run(cli, *words, code=1).startswith("Error: --for: expected seconds")
    assert run(cli, "run", "billing-a", "--kwargs", "7", code=1).startswith("Error: --kwargs: expected JSON object")


def test_a_shorter_pause_says_that_the_longer_one_stays(cli: Cli, billing: Schedules) -> None:
    run(cli, "pause", "billing-a", "--for", "2h")
    run(cli, "pause", "billing-b")
    end = when(billing["billing-a"].paused_until)
    assert run(cli, "pause", "billing-a", "--for", "1h") == f"'billing-a' is paused already, until {end}"
    assert run(cli, "pause", "billing-b", "--for", "1h") == "'billing-b' is paused already, until it is resumed"
    said = run(cli, "pause", "*", "--for", "1h")
    assert said.startswith("paused 1 entry paused for as long already: 'billing-a', 'billing-b'")
    assert "already" not in run(cli, "pause", "billing-[a]", "--for", "3h")
    billing.add_many(Entry(f"many-{number}", "add", every(60)) for number in range(12))
    billing.select("many-*").pause()
    assert "and 2 more" in run(cli, "pause", "many-*", "--for", "1h")


def test_an_entry_without_a_next_run_says_why(cli: Cli, billing: Schedules) -> None:
    billing.pause("billing-a")
    assert run(cli, "next", "billing-a") == "No run is planned: 'billing-a' is paused."
    billing.pause("billing-b", seconds=timedelta(days=9000))
    end = when(billing["billing-b"].paused_until)
    assert run(cli, "next", "billing-b") == f"No run is planned: 'billing-b' is paused until {end}."
    assert f"'billing-b' is paused until {end}" in run(cli, "next", "billing-b", "--until", "1h")
    billing.update("other[1]", enabled=False)
    assert run(cli, "next", "other[1]") == "No run is planned: 'other[1]' is disabled."


def test_a_run_that_is_late_or_held_is_listed_when_it_will_be_sent(cli: Cli, schedules: Schedules) -> None:
    due = datetime.now(UTC) + timedelta(milliseconds=300)
    schedules.add("once", "add", at(due))
    eventually(lambda: datetime.now(UTC) > due, what="the run to be late")

    def listed() -> datetime:
        [row] = json.loads(cli("next", "once", "--json").out)
        return datetime.fromisoformat(row["at"])

    assert due < listed() < due + timedelta(minutes=5)
    freeze = schedules.freeze(HOUR)
    assert listed() == freeze.until
    schedules.thaw()
    schedules.select("once").pause(seconds=2 * HOUR)
    assert listed() == schedules["once"].paused_until


def test_a_pause_for_a_time(cli: Cli, billing: Schedules) -> None:
    assert "paused 'other[1]' until 20" in run(cli, "pause", "other[1]", "--for", "2h", "--note", "disk")
    entry = billing["other[1]"]
    assert (entry.paused_note, entry.next_run_at) == ("disk", entry.paused_until)
    assert "no entry 'nobody' is stored" in run(cli, "pause", "nobody", "--for", "2h", code=1)
    assert "paused until" in run(cli, "show", "other[1]")
    assert "paused until" in run(cli, "list", "other*")
    assert "until 20" in run(cli, "log", "--limit", "1")
    assert "resumed 'other[1]'" in run(cli, "resume", "other[1]")
    assert billing["other[1]"].paused_until is None


def test_who_looks_is_told(cli: Cli, app: Celery, billing: Schedules) -> None:
    made = billing.freeze(HOUR, "deploy")
    assert status(app).freeze == made
    assert re.search("frozen until .* by .*: deploy", run(cli, "status"))
    assert json.loads(cli("status", "--json").out)["freeze"]["note"] == "deploy"
    for words in (["list"], ["show", "billing-b"]):
        assert "All entries are frozen until" in run(cli, *words)
    [finding] = [each for each in examine(app) if each.check == "freeze"]
    assert finding.what.startswith(f"all entries are frozen by {made.actor} until ")
    assert f"frozen by {made.actor} (api): until " in run(cli, "why", "billing-b")
    billing.thaw()
    assert "frozen" not in run(cli, "list")
    assert status(app).freeze is None


def test_while_all_is_frozen_nothing_is_late(app: Celery, schedules: Schedules, client: redis.Redis) -> None:
    schedules.add("a", "add", every(60))
    client.zadd(KEYS.due, {"a": 1000})
    assert status(app).overdue == 1
    schedules.freeze(60)
    assert (status(app).overdue, status(app).lag) == (0, 0.0)


@together("holds", ["freeze", "pause"], emptied=True)
def test_what_is_held_comes_at_the_end(cli: Cli, schedules: Schedules, holds: str) -> None:
    schedules.add("held", "add", every(60))
    if holds == "freeze":
        until = schedules.freeze(1000).until
    else:
        end = schedules.pause("held", seconds=1000).paused_until
        assert end is not None
        until = end
    found = schedules.upcoming(until + timedelta(seconds=90))
    assert found[0].at == until > found[0].nominal
    [row] = json.loads(cli("next", "held", "--limit", "1", "--json").out)
    assert row["at"] == until.isoformat()
