"""Backfills where operators meet them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import EntryNotFound, Schedules, cron, every, manual
from redbeat_lite._base.times import to_ms
from redbeat_lite.api.backfills import Backfills
from redbeat_lite.entries.backfill import Backfill, after_step, unsent_times
from redbeat_lite.entries.run import Outcome
from tests.cli.conftest import Cli, Said
from tests.cli.test_howto import do
from tests.support.beats import KEYS
from tests.support.changes import forget_changes
from tests.support.in_process import MakeBeat, clock, make_beat
from tests.support.messages import queued
from tests.support.run_rows import RunRows
from tests.support.waiting import eventually

__all__ = ["clock", "make_beat"]

SPAN = ("--from", "2025-01-01", "--to", "2025-01-02T00:00+01:00")


def test_commands(cli: Cli, schedules: Schedules) -> None:
    schedules.add("a", "add", cron("0 * * * *", tz="UTC"))
    said = cli("backfill", "a", *SPAN, code=1)
    assert "expected None (--max-active none), as no worker that records runs has reported within a minute" in said.err
    assert "(it then sends `rate` (--rate) messages a second, whatever becomes of them)" in said.err
    said = cli("backfill", "a", *SPAN, "--max-active", "none", "--dry-run")
    assert said.lines == [
        "25 runs of 'a', from 2025-01-01 00:00:00+01:00 to 2025-01-02 00:00:00+01:00",
        "25 runs in all: about 2.5 s, at 10 a second of each entry",
    ]
    assert cli("backfills", "--json").json == []
    assert "Error: --max-active: expected" in cli("backfill", "a", *SPAN, "--max-active", 5000 * "9", code=1).err
    started = cli("backfill", "a", *SPAN, "--max-active", "none", "--note", "why", "--json").json
    assert (started["name"], started["total"], started["rate"], started["note"]) == ("a", 25, 10, "why")
    assert "no unfinished backfill of the entry has" in cli("backfill", "a", *SPAN, "--max-active", "none", code=1).err
    [row] = cli("backfills").lines[1:]
    assert row.split() == [started["id"], "a", "2025-01-01", "00:00:00+01:00", "0", "of", "25", "running"]
    assert cli("backfills", "pause", started["id"]).lines[1].endswith("paused")
    found = schedules.backfills[started["id"]]
    schedules.backfills._own.put([found.but(paused=False, active=(1, 2)).edit(found, None)])
    assert cli("backfills").lines[1].endswith("running, 2 in flight")
    assert cli("backfills", "resume", started["id"]).lines[1].endswith("running")
    assert cli("backfills", "cancel", started["id"]).lines[1].endswith("cancelled")
    assert "has ended: cancelled" in cli("backfills", "resume", started["id"], code=1).err
    assert "pause, resume and cancel need an ID" in cli("backfills", "resume", code=1).err
    assert "no backfill 'x' is stored" in cli("backfills", "cancel", "x", code=1).err
    assert "whole number" in cli("backfill", "a", *SPAN, "--max-active", "two", code=1).err


def test_several(cli: Cli, schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, tags in {"a": ["x"], "b": ["x"], "c": []}.items():
        schedules.add(name, "add", cron("0 * * * *", tz="UTC"), tags=tags)
    schedules.add("by hand", "add", manual(), tags=["x"])
    paced = (*SPAN, "--max-active", "none", "--everything")
    assert "say which entries" in cli("backfill", *paced, code=1).err
    assert "no entry is selected by tag y" in cli("backfill", "--tag", "y", *paced, code=1).err
    assert "got '0 of manual()'" in cli("backfill", "by *", *paced, code=1).err
    said = cli("backfill", "--tag", "x", *paced, "--dry-run")
    assert [line[:14] for line in said.lines] == ["25 runs of 'a'", "25 runs of 'b'", "50 runs in all"]
    assert said.err == "left out, with nothing to send, or too much: 'by hand'\n"
    with monkeypatch.context() as patch:
        patch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)
        assert "Send them?" in cli("backfill", "--tag", "x", *paced, typed="n\n", code=1).err
    assert [*schedules.backfills] == []
    assert [each["name"] for each in cli("backfill", "[bc]", *paced, "--json").json] == ["b", "c"]
    assert cli("backfill", "[bc]", *paced, code=1).err.splitlines() == [
        "left out, with a backfill that goes on: 'b', 'c'",
        "Error: none of these entries has a run to send",
    ]
    said = cli("backfill", "*", *paced)
    assert said.err.splitlines() == [
        "left out, with a backfill that goes on: 'b', 'c'",
        "left out, with nothing to send, or too much: 'by hand'",
    ]
    assert [each.name for each in schedules.backfills] == ["b", "c", "a"]


def test_of_several_what_does_not_run_and_what_was_added_later_is_left_out_unless_it_is_asked_for(
    cli: Cli, schedules: Schedules, client: redis.Redis
) -> None:
    for name in ("old", "over", "stopped"):
        schedules.add(name, "add", every(60))
    RunRows(client, schedules).sent("over", datetime.now(UTC), finished=True)
    schedules.add("off", "add", every(60), enabled=False)
    schedules.pause("stopped", "harmful")
    forget_changes(client, KEYS)  # they were added before the record begins
    for name in ("edited", "new"):
        schedules.add(name, "add", every(60))
    schedules.update("edited", args=(1,))
    span = ("--from", "125m", "--to", "5m", "--max-active", "none", "--rate", "2", "--dry-run")
    said = cli("backfill", "*", *span)
    assert sorted(said.err.splitlines()) == [
        "left out, added later (--everything includes them): 'edited', 'new'",
        "left out, disabled (--everything includes them): 'off'",
        "left out, finished (--everything includes them): 'over'",
        "left out, paused (--everything includes them): 'stopped'",
    ]
    assert [line.partition(",")[0] for line in said.lines] == ["120 runs of 'old'", "120 runs in all: about 1 min"]
    assert cli("backfill", "*", *span, "--everything").lines[-1].startswith("720 runs in all: about 1 min")
    assert cli("backfill", "stopped", *span).lines[0].startswith("120 runs of 'stopped'"), "it is named"


def test_of_several_no_run_is_sent_of_a_time_before_its_entry_was_added(cli: Cli, schedules: Schedules) -> None:
    before = datetime.now(UTC)
    schedules.add("fresh", "add", every(0.05))

    def offered() -> list[dict[str, Any]]:
        span = ("--from", "1h", "--to", datetime.now(UTC).isoformat(), "--max-active", "none")
        return cli("backfill", "f*", *span, "--dry-run", "--json").json if is_late() else []

    def is_late() -> bool:
        return datetime.now(UTC) > before + timedelta(seconds=0.5)

    [backfill] = eventually(offered, what="runs since it was added")
    assert datetime.fromisoformat(backfill["start"]) >= before


def test_of_several_each_is_told_that_was_started_before_one_failed(
    cli: Cli, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        schedules.add(name, "add", cron("0 * * * *", tz="UTC"))
    start = Backfills.start

    def once(backfills: Backfills, name: str, *span: Any, **how: Any) -> Backfill:
        if name == "b" and not how.get("dry_run"):
            raise EntryNotFound("no entry 'b' is stored any more")
        return start(backfills, name, *span, **how)

    monkeypatch.setattr(Backfills, "start", once)
    said = cli("backfill", "*", *SPAN, "--max-active", "none", "--everything", code=1)
    [started] = schedules.backfills
    assert said.lines[-1] == f"started backfill {started.id}"
    assert "no entry 'b' is stored any more" in said.err


def test_what_is_missing_of_a_span_is_what_the_record_does_not_have(
    cli: Cli, schedules: Schedules, client: redis.Redis
) -> None:
    schedules.add("a", "add", cron("0 * * * *", tz="UTC"))
    words = ("backfill", "a", *SPAN, "--max-active", "none", "--missing")
    refused = cli(*words, code=1).err
    assert (
        "entry 'a': --missing: expected a record of runs that goes back to 2025-01-01 00:00:00+01:00, got 'none'"
        in refused
    )
    rows, midnight = RunRows(client, schedules), datetime(2025, 1, 1, tzinfo=UTC)
    fates: dict[int, Outcome] = {-1: "succeeded", 1: "failed", 2: "succeeded", 3: "succeeded", 4: "lost", 7: "retrying"}
    for hour, outcome in fates.items():
        rows.row("a", midnight + timedelta(hours=hour), outcome, f"id {hour}")
    rows.row("a", midnight + timedelta(hours=5), "skipped", duration=3_600_000, attempt=2)
    assert cli(*words[:-1], "--dry-run").out.startswith("25 runs")
    assert cli(*words, "--json").json["total"] == 22
    [backfill] = schedules.backfills
    entry = schedules["a"]
    sent = {(at - to_ms(midnight)) // 3_600_000 for at in unsent_times(backfill, entry, entry.state)}
    # The retry of 07:00 is long overdue, so nothing shows that the run succeeded.
    assert sent == {*range(24)} - {2, 3}
    schedules.backfills.cancel(backfill.id)
    early = ("--from", "2024-12-31T20:00Z", *words[4:])
    assert "got 'one that begins 2025-01-01 00:00:00+01:00'" in cli("backfill", "a", *early, code=1).err
    schedules.add("b", "add", cron("0 * * * *", tz="UTC"))
    said = cli("backfill", "?", *words[2:], "--dry-run", "--everything")
    assert said.lines[0] == "22 runs of 'a', from 2025-01-01 01:00:00+01:00 to 2025-01-02 00:00:00+01:00"
    assert said.err == "left out, whose record of runs does not go back so far: 'b'\n"


def test_what_was_not_missing_counts_as_sent_around_what_was_backfilled_before(
    cli: Cli, schedules: Schedules, client: redis.Redis
) -> None:
    schedules.add("a", "add", cron("0 * * * *", tz="UTC"))
    rows, midnight = RunRows(client, schedules), datetime(2025, 1, 1, tzinfo=UTC)
    for hour in range(4):
        rows.row("a", midnight + timedelta(hours=hour), "succeeded", f"id {hour}")
    second = midnight + timedelta(hours=2)
    one = schedules.backfills.start("a", second, second, max_active=None)
    schedules.backfills._own.put([after_step(one, [to_ms(second)]).but(ended="done").edit(one, None)])
    paced = ("--max-active", "none", "--json")
    missing = cli("backfill", "a", "--from", "2025-01-01T01:00Z", "--to", "2025-01-01T04:00Z", "--missing", *paced).json
    schedules.backfills.cancel(missing["id"])
    later = cli("backfill", "a", "--from", "2025-01-01T03:00Z", "--to", "2025-01-01T05:00Z", *paced).json
    assert (missing["total"], later["total"]) == (1, 2), "not the third hour, which was not missing"


def test_a_second_time_it_says_how_to_send_the_runs_once_more(cli: Cli, schedules: Schedules) -> None:
    schedules.add("a", "add", cron("0 * * * *", tz="UTC"))
    words = ("backfill", "a", *SPAN, "--max-active", "none")
    cli(*words)
    [one] = schedules.backfills
    said = cli(*words, code=1).err
    assert f"{one.id} has 25 left: wait for its end, cancel it, or send its runs once more" in said
    assert "by again=1 (--again 1)" in said
    entry = schedules["a"]
    every_time = [*unsent_times(one, entry, entry.state)]
    schedules.backfills._own.put([after_step(one, every_time).but(ended="done").edit(one, None)])
    said = cli(*words, code=1).err
    assert "(if all of these were sent already, again=1 (--again 1) sends them once more)" in said
    assert cli(*words, "--again", "1", "--dry-run").out.startswith("25 runs")


def test_an_instant_that_is_wrong_is_shown_as_it_is_read(cli: Cli, schedules: Schedules) -> None:
    bounds = ("--start-at", "2090-01-02", "--end-at", "2090-01-01")
    said = cli("add", "x", "add", "--every", "60s", *bounds, code=1).err
    assert said.endswith(", got 2090-01-01 00:00:00+01:00\n")


@pytest.mark.usefixtures("clock")
def test_a_run_of_one_nominal_time(cli: Cli, schedules: Schedules) -> None:
    schedules.add("a", "add", manual())
    instant = "2025-01-01T00:00:01"
    said = cli("backfill", "a", "--from", instant, "--to", instant, "--max-active", "none")
    [backfill] = schedules.backfills
    assert said.lines[0] == "1 run of 'a', from 2025-01-01 00:00:01+01:00 to 2025-01-01 00:00:01+01:00"
    assert said.lines[1] == f"started backfill {backfill.id}"
    assert cli("status").out.count("backfills") == 0
    schedules.backfills.cancel(backfill.id)


def test_the_howto(
    make_app: Callable[..., Celery], run_cli: Callable[..., Said], make_beat: MakeBeat, client: redis.Redis
) -> None:
    names = do("many.md", "Run the past again", make_app(result_expires=None), run_cli)
    beat = make_beat(names["app"])
    beat.run_due()
    sent = [message.scheduled_at for message in queued(client) if message.entry == "nightly"]
    assert len(sent) == 1
