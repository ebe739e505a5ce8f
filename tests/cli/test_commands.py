"""What the commands do with the words they are given, on a real server without a beat."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule, solar

from redbeat_lite import Expect, Misfire, Once, Pause, Schedules, at, cron, every, manual, rrule
from redbeat_lite._base.times import duration_text, seconds_of
from redbeat_lite.entries.words import span
from redbeat_lite.operate.entry_options import option_words, schedule_options
from redbeat_lite.operate.texts import distance
from redbeat_lite.rules import schedule_text
from redbeat_lite.store.records import Refused
from redbeat_lite.store.store import Store
from tests.cli.conftest import Cli, Said
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.messages import queued
from tests.support.server import Server, free_port
from tests.support.stopwatch import Stopwatch

SCHEDULES = {
    "--every 1h30m": every(5400),
    "--every 250ms --align": every(0.25, align=True),
    "--every 1h --spread": every(3600, spread=True),
    "--cron 'H H(0-5) * * *' --tz Asia/Tokyo": cron("H H(0-5) * * *", tz="Asia/Tokyo"),
    "--cron '*/5 * * * *' --tz Asia/Tokyo": cron("*/5 * * * *", tz="Asia/Tokyo"),
    "--cron '30 0 3 * * *' --cron-seconds first": cron("30 0 3 * * *", seconds="first"),
    "--at 2090-12-01T09:00:00+01:00": at(datetime(2090, 12, 1, 8, tzinfo=UTC)),
    "--rrule FREQ=DAILY --tz Europe/Berlin": rrule("FREQ=DAILY", tz="Europe/Berlin"),
    "--rrule 'FREQ=DAILY;COUNT=3' --rrule-start 2090-01-01T09:00:00+00:00": rrule(
        "FREQ=DAILY;COUNT=3", start=datetime(2090, 1, 1, 9, tzinfo=UTC)
    ),
    "--manual": manual(),
    "--rrule 'RRULE:FREQ=DAILY EXDATE:20900102,20900104 RDATE:20900102T150000Z' --tz Asia/Tokyo": rrule(
        "RRULE:FREQ=DAILY\nEXDATE:20900102,20900104\nRDATE:20900102T150000Z", tz="Asia/Tokyo"
    ),
    """--schedule '{"crontab": [0, "*/4", "mon,tue", "*", "*"]}'""": crontab(0, "*/4", "mon,tue"),
    """--schedule '{"schedule": 90.0, "relative": true}'""": schedule(90, relative=True),
    """--schedule '{"solar": ["sunset", 52.5, 13.4]}'""": solar("sunset", 52.5, 13.4),
}


class LikePytz(tzinfo):
    """A zone of pytz, which has the local mean time for a datetime that it did not make."""

    zone = "Europe/Berlin"

    def utcoffset(self, dt: datetime | None) -> timedelta:
        return timedelta(minutes=53)

    def dst(self, dt: datetime | None) -> timedelta:
        return timedelta(0)


class TestSchedules:
    @together("shown", SCHEDULES, emptied=True)
    def test_what_show_prints_makes_the_same_schedule(self, cli: Cli, schedules: Schedules, shown: str) -> None:
        schedules.add("first", "add", SCHEDULES[shown])
        [line] = [line for line in cli("show", "first").lines if line.startswith("schedule")]
        assert "".join(line.split()[1:]) in "".join(shown.split())  # long ones go on in the next line
        cli("add", "second", "add", *option_words(schedule_options(schedules["first"].schedule)))
        assert schedules["second"].schedule == SCHEDULES[shown]

    def test_an_interval_of_celerys_is_shown_as_one_with_the_same_runs(self, cli: Cli, schedules: Schedules) -> None:
        coming = schedules.add("a", "add", schedule(50)).next_run_at
        assert re.search(r"^schedule +--every 50s$", cli("show", "a").out, re.MULTILINE)
        cli("edit", "a", "--every", "50s")
        assert (schedules["a"].schedule, schedules["a"].next_run_at) == (every(50), coming)

    def test_what_the_name_of_an_entry_decides_is_shown(self, cli: Cli) -> None:
        cli("add", "nightly", "add", "--cron", "H H(0-5) * * *")
        cli("add", "hourly", "add", "--every", "1h", "--spread")
        hashed, spread = "16 3 * * *", "29m22s582ms after each full 1h"
        for name, resolved in (("nightly", hashed), ("hourly", spread)):
            assert re.search(rf"^resolved +{re.escape(resolved)}$", cli("show", name).out, re.MULTILINE)
            assert cli("show", name, "--json").json["resolved"] == resolved
        assert "cron H H(0-5) * * *" in cli("list").out
        assert "every 1h spread" in cli("list").out
        [run] = cli("next", "nightly", "--limit", "1", "--json").json
        assert "T03:16:00" in run["local"]

    @together(
        ("words", "complaint"),
        [
            ((), "say when it runs"),
            (("--every", "3q"), "every: expected seconds, a timedelta"),
            (
                ("--every", "5s", "--cron", "* * * * *"),
                "Error: --every: expected one schedule, got 'every and cron'",
            ),
            (("--every", "5s", "--manual"), "expected one schedule, got 'every and manual'"),
            (("--cron", "0 0 31 2 *"), "(to run by hand only, write manual())"),
            (("--every", "5s", "--tz", "UTC"), "--tz: expected 'cron' or 'at' or 'rrule' beside it, got 'every'"),
            (("--align",), "--align: expected 'every' beside it, got 'none'"),
            (("--cron", "H * * * *", "--spread"), "--spread: expected 'every' beside it, got 'cron'"),
            (("--schedule", '{"every": "1h", "spread": 600}'), "spread: expected True or False"),
            (
                ("--schedule", '{"cron": "H * * * *", "resolved": "7 * * * *"}'),
                "schedule.resolved: expected one of the fields cron, tz, seconds",
            ),
            (("--cron", "61 * * * *"), "minute"),
            (("--cron", "* * * * *", "--tz", "Berlin"), "did you mean Europe/Berlin?"),
            (("--at", "tomorrow"), "an instant such as"),
            (("--schedule", "{"), "schedule: expected JSON"),
            (("--schedule", '{"moon": 1}'), "schedule: expected one of the fields every, cron, at, rrule"),
            (("--every", "5s", "--max-runs", "many"), "Error: entry 'x': --max-runs: expected a whole number"),
            (("--every", "5s", "--args", "{}"), "expected JSON array"),
            (("--every", "5s", "--misfire", "skipp"), "did you mean 'skip'?"),
            (("--every", "5s", "--misfire", "none"), 'one of "coalesce", "skip", "all", got \'none\''),
            (("--every", "5s", "--jitter", "9s"), "jitter: expected less than the shortest gap"),
        ],
    )
    def test_a_wrong_one_is_refused_with_what_was_expected(
        self, cli: Cli, schedules: Schedules, words: tuple[str, ...], complaint: str
    ) -> None:
        assert complaint in cli("add", "x", "add", *words, code=1).err
        assert len(schedules) == 0

    def test_an_instant_without_an_offset_is_right_in_a_zone_of_pytz(
        self, cli: Cli, app: Celery, schedules: Schedules
    ) -> None:
        app.conf.timezone = LikePytz()
        cli("add", "x", "add", "--at", "2090-01-02T09:00")
        assert schedules["x"].next_run_at == datetime(2090, 1, 2, 8, tzinfo=UTC)

    def test_an_instant_without_an_offset_is_read_in_the_zone_that_is_given_or_the_apps(
        self, cli: Cli, schedules: Schedules
    ) -> None:
        began = datetime.now(UTC)
        cli("add", "soon", "add", "--at", "2h", "--end-at", "1d")
        assert timedelta(hours=2) <= schedules["soon"].next_run_at - began < timedelta(hours=3)
        schedules.remove("soon")
        assert "past" not in cli("add", "later", "add", "--at", "2h").out
        assert cli("add", "late", "add", "--at", "2020-01-01").lines == [
            "added 'late'; next run: 2020-01-01 00:00:00+01:00",
            "That time has passed. By default the entry runs at once; its misfire policy decides.",
        ]
        cli("add", "here", "add", "--at", "2090-12-01 09:00")
        cli("add", "there", "add", "--at", "2090-12-01 09:00", "--tz", "Asia/Tokyo")
        assert schedules["here"].next_run_at == datetime(2090, 12, 1, 8, tzinfo=UTC)
        assert schedules["there"].next_run_at == datetime(2090, 12, 1, 0, tzinfo=UTC)

    def test_lengths_of_time_are_read_as_they_are_written(self) -> None:
        for ms in (1, 50, 999, 1000, 1500, 90_000, 5_400_000, 86_400_000, 90_061_001):
            assert round(seconds_of(duration_text(ms)) * 1000) == ms
        assert [seconds_of(text) for text in ("30", "2 min", "1w", "1.5h")] == [30, 120, 604_800, 5400]


class TestFields:
    def test_every_field_can_be_given(self, cli: Cli, schedules: Schedules) -> None:
        cli(
            *("add", "x", "add", "--every", "1h", "--args", '[{"__type__": "decimal", "__value__": "0.1"}]'),
            *("--kwargs", '{"y": 2}', "--options", '{"queue": "slow"}', "--expires", "10m"),
            *("--once", '{"scope": "run", "lease": 9}', "--misfire", '{"policy": "all", "limit": 3}'),
            *("--jitter", "90s", "--start-at", "2090-01-01", "--end-at", "2091-01-01T00:00Z", "--max-runs", "7"),
            *("--description", "words", "--disabled", "--remove-when-done", "--history", "3"),
            *("--tags", "tenant:42,billing"),
        )
        entry = schedules["x"]
        assert (entry.args, entry.kwargs, entry.options) == ((Decimal("0.1"),), {"y": 2}, {"queue": "slow"})
        assert (entry.expires, entry.once, entry.misfire) == (600, Once(lease=9), Misfire("all", limit=3))
        assert (entry.jitter, entry.max_runs, entry.description) == (90, 7, "words")
        assert entry.start_at == datetime(2089, 12, 31, 23, tzinfo=UTC)
        assert entry.end_at == datetime(2091, 1, 1, tzinfo=UTC)
        assert (entry.enabled, entry.remove_when_done, entry.history) == (False, True, 3)
        assert entry.tags == ("billing", "tenant:42")
        shown = cli("show", "x")
        assert "status            disabled" in shown.out
        assert "jitter            90 s" in shown.out
        assert "expires           600 s" in shown.out
        assert 'misfire           {"policy": "all", "limit": 3}' in shown.out
        cli("edit", "x", "--expires", "none", "--end-at", "none", "--enabled", "--keep-when-done", "--once", "false")
        cli("edit", "x", "--expect", "start_within=30s,failures=3")
        assert schedules["x"].expect == Expect(start_within=30, failures=3)
        cli("edit", "x", "--on-failure", "pause:3")
        assert schedules["x"].on_failure == Pause(after=3)
        assert "on_failure   pause:3" in cli("show", "x").out
        cli("edit", "x", "--history", "none", "--expect", "false", "--tags", "none", "--on-failure", "none")
        entry = schedules["x"]
        assert entry.on_failure is None
        assert (entry.expires, entry.end_at, entry.enabled, entry.remove_when_done) == (None, None, True, False)
        assert (entry.once, entry.max_runs, entry.history, entry.tags) == (None, 7, None, ())
        assert entry.expect is False

    def test_a_policy_may_be_written_by_its_fields(self, cli: Cli, schedules: Schedules) -> None:
        schedules.add("x", "add", every(60))
        cli("edit", "x", "--once", "key={y},hold_on_retry=false,max_waiters=3", "--misfire", "policy=skip, grace=30s")
        assert schedules["x"].once == Once(key="{y}", hold_on_retry=False, max_waiters=3)
        assert schedules["x"].misfire == Misfire("skip", grace=30)
        said = cli("edit", "x", "--once", "leese=30s", code=1).err
        assert "once.leese: expected one of the fields key, scope" in said
        assert "did you mean 'lease'?" in said
        cli("edit", "x", "--once", "none", "--misfire", "policy=skip,grace=none")
        assert schedules["x"].once is None
        assert schedules["x"].misfire == Misfire("skip")

    def test_an_edit_of_nothing_is_refused(self, cli: Cli, schedules: Schedules) -> None:
        schedules.add("x", "add", every(60))
        assert "nothing to change" in cli("edit", "x", code=1).err
        assert schedules["x"].version == 1

    def test_a_schedule_that_is_edited_keeps_its_zone(self, cli: Cli, schedules: Schedules) -> None:
        schedules.add("e", "add", cron("0 3 * * *", tz="Asia/Tokyo"))
        cli("edit", "e", "--cron", "0 4 * * *")
        assert schedules["e"].schedule == cron("0 4 * * *", tz="Asia/Tokyo")
        cli("edit", "e", "--cron", "0 4 * * *", "--tz", "Europe/Paris")
        cli("edit", "e", "--rrule", "FREQ=DAILY", "--rrule-start", "2026-01-01T04:00")
        assert schedules["e"].schedule.tz_name == "Europe/Paris"
        cli("edit", "e", "--every", "5m")
        cli("edit", "e", "--cron", "0 5 * * *")
        assert schedules["e"].schedule == cron("0 5 * * *")

    def test_a_name_that_is_taken_needs_replace(self, cli: Cli, schedules: Schedules) -> None:
        schedules.add("x", "add", every(60))
        assert cli("add", "x", "add", "--every", "5s", code=1).err == (
            "Error: entry 'x' is already stored; --replace overwrites it\n"
        )
        assert cli("add", "x", "add", "--every", "5s", "--replace").out.startswith("stored 'x'")
        assert schedules["x"].schedule == every(5)


class TestList:
    @pytest.fixture(autouse=True)
    def entries(self, schedules: Schedules) -> None:
        for number in range(5):
            schedules.add(f"job-{number}", "add" if number % 2 else "other", every(100 - number))
        schedules.add("漢字", "add", every(999), enabled=False)
        schedules.pause("job-3")

    def names(self, cli: Cli, *words: str) -> list[str]:
        return [each["name"] for each in cli("list", "--json", *words).json]

    def test_it_is_in_due_order(self, cli: Cli) -> None:
        assert self.names(cli) == ["job-4", "job-2", "job-1", "job-0", "job-3", "漢字"]

    def test_it_pages(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.names(cli, "--limit", "2") == ["job-4", "job-2"]
        assert cli("list", "--limit", "2").lines[-1] == "There are more: --limit 4"
        with monkeypatch.context() as patch:
            patch.setattr(Store, "pages", None)
            assert self.names(cli, "--limit", "2") == ["job-4", "job-2"], "and no others are read"
        assert "more" not in cli("list", "--limit", "6").out
        assert cli("list", "job-*", "--limit", "3").lines[-1] == "There are more: --limit 6"

    def test_it_filters(self, cli: Cli) -> None:
        assert self.names(cli, "job-[12]") == ["job-2", "job-1"]
        assert self.names(cli, "--task", "oth*") == ["job-4", "job-2", "job-0"]
        assert self.names(cli, "--status", "paused") == ["job-3"]
        assert self.names(cli, "--status", "disabled") == ["漢字"]
        assert self.names(cli, "--status", "failing") == []

    def test_an_output_that_is_not_unicode_gets_what_it_can_show(self, cli: Cli, schedules: Schedules) -> None:
        name = "größe 日本"
        schedules.add(name, "add", every(60))
        assert "größe ??" in cli("list", "größe*", encoding="latin-1").out
        assert cli("list", "größe*", "--json", encoding="latin-1").json[0]["name"] == name, "nothing is lost in JSON"

    def test_a_long_value_is_broken_between_words(self, cli: Cli, schedules: Schedules) -> None:
        words = "a run-of-the-mill description " * 9 + "ends"
        schedules.add("x", "add", every(60), description=words)
        lines = cli("show", "x").lines
        first = next(number for number, line in enumerate(lines) if line.startswith("description"))
        assert set(" ".join(lines[first + 1 : first + 3]).split()) == {"a", "run-of-the-mill", "description"}
        assert max(map(len, lines)) <= 80


class TestWhatIsNotListed:
    def test_an_empty_list_says_so_and_what_to_do(self, cli: Cli, schedules: Schedules) -> None:
        said = cli("list").out
        assert said.startswith("No entry is stored.")
        assert "redbeat add NAME TASK" in said
        assert cli("list", "--json").json == []
        schedules.add("x", "add", every(60))
        for words in (["y*"], ["--status", "paused"]):
            assert cli("list", *words).out == "Nothing is in this list; 1 entry is stored.\n"

    def test_what_the_beat_refuses_is_shown_with_the_entry(
        self, cli: Cli, schedules: Schedules, client: redis.Redis
    ) -> None:
        schedules.add("known", "add", every(60))
        errors = {"known": "jitter: expected seconds"}
        client.hset(KEYS.meta, "refused", Refused.of("proj", errors).encode())
        assert cli("show", "known").lines[-1].split(maxsplit=1) == ["refused", "jitter: expected seconds"]
        assert cli("show", "known", "--json").json["refused"] == "jitter: expected seconds"
        client.hdel(KEYS.meta, "refused")
        assert "refused" not in cli("show", "known").out


class TestNext:
    def test_a_gap_and_a_fold_are_marked(self, cli: Cli, schedules: Schedules) -> None:
        schedules.add("fixed", "add", cron("0,30 2,3 * * *", tz="Europe/Berlin"))
        gap = cli("next", "fixed", "--from", "2090-03-26", "--until", "2090-03-26T12:00").out
        assert " ".join(gap.split()) == (
            "AT ZONE ENTRY 2090-03-26 03:00:00+02:00 Europe/Berlin fixed "
            "! runs in place of 02:00, 02:30: the clocks skip 02:00 to 03:00 "
            "2090-03-26 03:30:00+02:00 Europe/Berlin fixed"
        )
        fold = cli("next", "fixed", "--from", "2090-10-29", "--until", "2090-10-29T12:00").out
        assert " ".join(fold.split()).count("comes twice; it runs the first time") == 2

    def test_a_running_rule_tells_of_both_passings_and_of_what_is_left_out(
        self, cli: Cli, schedules: Schedules
    ) -> None:
        schedules.add("running", "add", cron("15 */2 * * *", tz="Europe/Berlin"))
        gap = cli("next", "running", "--from", "2090-03-26T01:00", "--limit", "1").out
        assert "no run for 02:15: the clocks skip 02:00 to 03:00" in " ".join(gap.split())
        fold = cli("next", "running", "--from", "2090-10-29T01:00", "--limit", "2", "--json").json
        assert [each["hazard"] for each in fold] == [
            "02:15 comes twice; this is the first time",
            "02:15 comes twice; this is the second time",
        ]

    def test_runs_of_all_entries_are_listed_however_late_they_come(self, cli: Cli, schedules: Schedules) -> None:
        schedules.add("yearly", "add", cron("0 0 1 1 *"))
        schedules.add("weekly", "add", every("7d"))
        assert [run["name"] for run in cli("next", "--limit", "3", "--json").json].count("weekly") >= 2
        assert "yearly" in cli("next", "--limit", "100").out

    def test_all_entries_are_merged_each_in_its_zone(self, cli: Cli, schedules: Schedules) -> None:
        schedules.add("tokyo", "add", cron("0 9 * * *", tz="Asia/Tokyo"))
        schedules.add("app", "add", cron("0 9 * * *"))
        schedules.add("paused", "add", every(1))
        schedules.pause("paused")
        words = ("next", "--from", "2090-01-01T00:00Z", "--until", "2090-01-01T23:00Z", "--json")
        runs = cli(*words).json
        assert [(each["name"], each["local"], each["zone"]) for each in runs] == [
            ("tokyo", "2090-01-01T09:00:00+09:00", "Asia/Tokyo"),
            ("app", "2090-01-01T09:00:00+01:00", "Europe/Berlin"),
        ]
        assert (
            "No run is planned until 2090-01-01"
            in cli("next", "--from", "2090-01-01", "--until", "2090-01-01T00:30").out
        )

    @together("schedule", [5, timedelta(minutes=1), every(5, align=True)])
    def test_a_schedule_without_a_zone_is_shown_in_the_zone_of_the_app(
        self, cli: Cli, schedules: Schedules, schedule: Any
    ) -> None:
        schedules.add("greet", "add", schedule, replace=True)
        [run] = cli("next", "greet", "--limit", "1", "--json").json
        assert run["zone"] == "Europe/Berlin"
        assert datetime.fromisoformat(run["local"]).utcoffset() in (timedelta(hours=1), timedelta(hours=2))
        assert cli("next", "greet", "--limit", "1").lines[1].split()[2:] == ["Europe/Berlin", "greet"]

    def test_a_single_run_is_shown_in_the_zone_of_the_app(self, cli: Cli, schedules: Schedules) -> None:
        schedules.add("greet", "add", at(datetime(2090, 1, 1, 8, tzinfo=UTC)))
        [run] = cli("next", "greet", "--until", "2091-01-01", "--json").json
        assert (run["local"], run["zone"]) == ("2090-01-01T09:00:00+01:00", "Europe/Berlin")

    def test_it_looks_far_ahead_at_once_in_the_entrys_own_phase(self, cli: Cli, schedules: Schedules) -> None:
        entry = schedules.add("fast", "add", every(0.7))
        assert entry.next_run_at is not None
        began = time.thread_time()
        [run] = cli("next", "fast", "--from", "2090-01-01", "--limit", "1", "--json").json
        assert time.thread_time() - began < 10, "three billion runs were not walked"
        assert (datetime.fromisoformat(run["at"]) - entry.next_run_at) % timedelta(seconds=0.7) == timedelta(0)

    def test_there_are_no_ten_years_after_the_last_years(self, cli: Cli, schedules: Schedules) -> None:
        schedules.add("nightly", "add", cron("0 3 * * *"))
        assert "expected an instant still to come, until 9980" in cli("next", "--from", "9995-01-01", code=1).err

    def test_a_span_is_told_by_how_long_from_now_too(self, cli: Cli, schedules: Schedules) -> None:
        schedules.add("quick", "add", every("15m"))
        schedules.add("slow", "add", every("2h"))
        assert [each["name"] for each in cli("next", "--until", "1h", "--json").json] == ["quick"] * 4
        words = ("next", "--from", "1h", "--until", "2h1m", "--json")
        assert sorted(each["name"] for each in cli(*words).json) == ["quick"] * 4 + ["slow"]
        wrong = cli("next", "--until", "1x", code=1).err
        assert (
            'until: expected an instant such as 2026-12-01T09:00+01:00, or how long from now, such as "1h30m"' in wrong
        )

    @together("words", [("--from", "2020-01-01"), ("--until", "2020-01-01"), ("--tz", "Nowhere")], emptied=True)
    def test_a_span_that_makes_no_sense_is_refused(self, cli: Cli, words: tuple[str, ...]) -> None:
        cli("next", *words, code=1)


class TestFailures:
    def test_an_unknown_entry_is_told_with_the_nearest_names(self, cli: Cli, schedules: Schedules) -> None:
        for name in ("Nightly", "nightly-2", "hello"):
            schedules.add(name, "add", every(60))
        for words in (("show",), ("edit", "--every", "5s"), ("remove",), ("pause",), ("resume",), ("run",), ("next",)):
            said = cli(words[0], "nightly", *words[1:], code=1)
            assert said.err == "Error: no entry 'nightly' is stored; did you mean 'nightly-2'?\n", words
        assert cli("show", "zzz", code=1).err == "Error: no entry 'zzz' is stored\n"

    def test_an_entry_in_quarantine_is_told_to_be_there_and_how_to_get_it_back(
        self, cli: Cli, schedules: Schedules, client: redis.Redis
    ) -> None:
        schedules.add("it's", "add", every(60))
        client.hset(KEYS.quarantine, "my job", json.dumps({"error": "definition is not usable", "at": 0}))
        for command in ("show", "pause", "run"):
            assert cli(command, "my job", code=1).err == (
                "Error: no entry 'my job' is stored; it is in quarantine: definition is not usable; "
                "mend that, then: celery -A ... redbeat quarantine release 'my job'\n"
            )

    def test_an_entry_that_the_beat_refuses_is_told_with_its_error(self, cli: Cli, client: redis.Redis) -> None:
        client.hset(KEYS.meta, "refused", Refused.of("proj", {"typo": "expire: expected a known field"}).encode())
        said = cli("show", "typo", code=1).err
        assert said == (
            "Error: no entry 'typo' is stored; the beat refuses the one in beat_schedule: "
            "expire: expected a known field\n"
        )

    def test_wrong_words_are_1_too(self, cli: Cli) -> None:
        assert (
            "Error: No such command 'lst'.\n\nDid you mean one of these?\n    list\n    locks\n"
            in cli("lst", code=1).err
        )
        assert cli("qq", code=1).err.endswith("Error: No such command 'qq'.\n")
        said = cli("show", code=1).err
        assert "Try 'redbeat show --help' for help." in said
        assert said.endswith("Error: Missing argument 'NAME'.\n")
        assert "Did you mean one of: '--status', '--tag'" in cli("list", "--tga", "x", code=1).err
        assert "requires an argument." in cli("list", "--tag", code=1).err
        assert "'slow'" in cli("list", "--status", "slow", code=1).err
        assert "Did you mean one of these?\n    release" in cli("quarantine", "releas", code=1).err
        assert cli("quarantine").out == cli("quarantine", "list").out

    @together("words", ["list", "show x", "next", "pause x", "export", "locks list", "pipelines list"])
    def test_no_server_is_one_line_and_2(
        self, make_app: Callable[..., Celery], run_cli: Callable[..., Said], words: str
    ) -> None:
        app = make_app(redbeat_lite_url=f"redis://:secret@127.0.0.1:{free_port()}/0")
        said = run_cli(app, *words.split(), code=2)
        assert said.err.startswith("Error: cannot use redis://127.0.0.1:")
        assert said.err.count("\n") == 1
        assert said.out == ""

    def test_a_server_that_never_answers_is_given_up_in_time(
        self, make_app: Callable[..., Celery], run_cli: Callable[..., Said]
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            options = {"socket_timeout": 0.3}
            url = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"
            app = make_app(redbeat_lite_url=url, redbeat_lite_redis_options=options)
            with Stopwatch() as watch:
                run_cli(app, "list", code=2)
            watch.at_most(3)

    @together("deaf", [True, False], emptied=True)
    def test_a_broker_that_is_down_or_never_answers_is_2_in_time(
        self, make_app: Callable[..., Celery], run_cli: Callable[..., Said], server: Server, deaf: bool
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1] if deaf else free_port()
            app = make_app(
                broker_url=f"redis://127.0.0.1:{port}/0", redbeat_lite_url=server.url, redbeat_lite_publish_timeout=0.3
            )
            Schedules(app).add("x", "add", every(60))
            with Stopwatch() as watch:
                said = run_cli(app, "run", "x", code=2)
            assert said.err.startswith("Error: cannot reach the broker: ")
            assert said.err.count("\n") == 1
            watch.at_most(4)

    def test_an_entry_whose_once_key_cannot_be_made_is_1(
        self, make_app: Callable[..., Celery], run_cli: Callable[..., Said]
    ) -> None:
        app = make_app()
        Schedules(app).add("x", "of.another.code.base", every(60), once=Once(key="{user}"))
        assert run_cli(app, "run", "x", code=1).err.startswith("Error: once.key: ")

    @together("words", [["run", "x"], ["doctor"]], emptied=True)
    def test_a_broker_url_that_cannot_be_read_is_1_and_is_not_quoted(
        self, make_app: Callable[..., Celery], run_cli: Callable[..., Said], server: Server, words: list[str]
    ) -> None:
        app = make_app(broker_url="redis://:sec;ret@h:1/0", redbeat_lite_url=server.url)
        Schedules(app).add("x", "add", every(60))
        said = run_cli(app, *words, code=1)
        assert said.err.startswith("Error: broker_url: ")
        assert "sec" not in said.err.replace("schedule", "")

    def test_options_of_sentinel_that_nobody_knows_are_1(
        self, make_app: Callable[..., Celery], run_cli: Callable[..., Said]
    ) -> None:
        options = {"master_name": "m", "sentinel_kwargs": {"passwrd": "secret"}}
        app = make_app(redbeat_lite_url="sentinel://127.0.0.1:1", redbeat_lite_redis_options=options)
        said = run_cli(app, "list", code=1)
        assert "redbeat_lite_redis_options" in said.err
        assert "secret" not in said.err

    def test_a_missing_password_is_said_in_plain_words(
        self, own_server: Callable[..., Server], make_app: Callable[..., Celery], run_cli: Callable[..., Said]
    ) -> None:
        locked = own_server(requirepass="secret-of-all")
        said = run_cli(make_app(broker_url=locked.url), "list", code=2).err
        assert said.endswith("it wants a password, and the URL has none\n")

    def test_the_first_of_several_brokers_that_is_down_is_told_to_be_the_only_one(
        self, make_app: Callable[..., Celery], run_cli: Callable[..., Said]
    ) -> None:
        app = make_app(broker_url=["redis://127.0.0.1:1/0", "redis://127.0.0.1:2/0"])
        said = run_cli(app, "doctor", code=2).err
        assert said.endswith("; broker_url names 2 servers, and the schedule lies on the first one alone\n")

    def test_a_setting_that_is_wrong_is_1(self, make_app: Callable[..., Celery], run_cli: Callable[..., Said]) -> None:
        assert "redbeat_lite_lease" in run_cli(make_app(redbeat_lite_lease=0), "list", code=1).err

    def test_config_entries_are_not_edited(self, cli: Cli, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("mine", "add", every(60))
        definition = client.hget("{redbeat-lite}:entries", "mine")
        client.hset("{redbeat-lite}:entries", "mine", definition[:-1] + b',"owner":"proj"}')
        assert "belongs to the configuration of 'proj'" in cli("edit", "mine", "--every", "5s", code=1).err
        said = cli("remove", "mine").out
        assert "config:proj" in said
        assert "when it next renews its lease" in said

    def test_what_cannot_be_read_can_be_removed(self, cli: Cli, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("broken", "add", every(60))
        client.hset("{redbeat-lite}:entries", "broken", "{")
        assert cli("remove", "broken").out == "removed 'broken'\n"
        assert "broken" not in schedules


def test_every_command_has_help_with_an_example(cli: Cli) -> None:
    from redbeat_lite.cli.group import redbeat

    for path, command in _commands(redbeat):
        text = cli(*path, "--help").out
        assert f"celery -A proj redbeat {' '.join(path)}".rstrip() in text, path
        assert max(map(len, text.splitlines())) <= 80, path
        assert command.help


def _commands(group: object, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], object]]:
    found: list[tuple[tuple[str, ...], object]] = []
    for name in group.list_commands(None):  # type: ignore[attr-defined]
        command = group.get_command(None, name)  # type: ignore[attr-defined]
        found.append(((*path, name), command))
        if hasattr(command, "list_commands"):
            found += _commands(command, (*path, name))
    return found


def test_the_package_does_not_pay_for_its_command_line() -> None:
    """Neither ``import redbeat_lite`` nor any other command of Celery, which all load the group."""
    script = (
        "import sys, redbeat_lite; assert 'click' not in sys.modules; from redbeat_lite.cli import redbeat; "
        "print(*{'redis', 'redbeat_lite.api.schedules', 'redbeat_lite.cli.entries'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_spans_are_told_in_two_units() -> None:
    assert [span(seconds) for seconds in (0.04, 1.25, 59.9, 3700, 90_000, 86_400)] == [
        *("0 s", "1.2 s", "59 s", "1 h 1 min", "1 d 1 h", "1 d")
    ]
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert distance(now + timedelta(seconds=90), now) == "in 1 min 30 s"
    assert distance(now - timedelta(seconds=5), now) == "5 s ago"


def test_schedules_are_told_in_a_few_words() -> None:
    assert [schedule_text(each) for each in SCHEDULES.values()][:6] == [
        *("every 1h30m", "every 250ms align", "every 1h spread", "cron H H(0-5) * * * Asia/Tokyo"),
        *("cron */5 * * * * Asia/Tokyo", "cron 30 0 3 * * *"),
    ]
    assert schedule_text(crontab(0, "*/4", "mon,tue")) == "crontab 0 */4 * * mon,tue"
    assert schedule_text(solar("sunset", 52.5, 13.4)) == "sunset at 52.5, 13.4"


def test_what_is_run_by_hand_only_is_told_so(cli: Cli, schedules: Schedules) -> None:
    assert cli("add", "hand", "add", "--manual").out == "added 'hand'; next run: manual\n"
    schedules.add("tick", "add", every(60))
    assert cli("list", "--status", "manual").lines[1].split() == ["hand", "manual", "add", "manual"]
    assert cli("show", "hand", "--json").json["status"] == "manual"
    assert cli("next", "hand").out == "No run is planned: 'hand' is manual.\n"
    assert "hand" not in cli("next").out
    cli("edit", "hand", "--every", "5m")
    cli("edit", "hand", "--manual")
    assert schedules["hand"].next_run_at is None


def test_one_run_has_other_arguments_and_a_note(cli: Cli, schedules: Schedules, client: redis.Redis) -> None:
    schedules.add("hand", "add", manual(), (1,))
    words = ("run", "hand", "--args", "[1, 2]", "--kwargs", "{}", "--note", "after the import")
    task_id = cli(*words, "--json").json["task_id"]
    [message] = queued(client)
    assert (message.id, message.args) == (task_id, [1, 2])
    assert schedules.changes()[0].note == f"task {task_id} with other arguments: after the import"
    assert "expected JSON array" in cli("run", "hand", "--args", "{}", code=1).err
    assert "args: expected JSON array" in cli("run", "nobody", "--args", "oops", code=1).err
    assert "kwargs: expected what add takes" in cli("run", "hand", "--kwargs", '{"z": 1}', code=1).err


def test_an_entry_for_the_end_of_time_hides_no_other_one(cli: Cli, schedules: Schedules, app: Celery) -> None:
    """People write the last instant there is for "never"; east of Greenwich it has no local time."""
    last = datetime.max.replace(tzinfo=UTC)
    schedules.add("never", "add", at(last))
    schedules.add("always", "add", every(60), end_at=last, start_at=datetime.min.replace(tzinfo=UTC))
    for zone in ("Pacific/Kiritimati", "Etc/GMT+12"):
        app.conf.timezone = zone
        listed = cli("list").out
        assert "never" in listed
        assert "always" in listed
        for words in (["show", "never"], ["show", "always"], ["why", "never"], ["next"]):
            cli(*words)
