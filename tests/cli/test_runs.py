"""What became of runs, as commands tell it: ``runs``, a column of ``list``, the end of ``show``."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import redis
from celery import Celery

from redbeat_lite import Pipeline, PipelineTask, Schedules, every
from redbeat_lite.entries.run import Outcome
from redbeat_lite.once.lock_store import OnceKeys
from redbeat_lite.once.worker_reports import WorkerReport
from tests.cli.conftest import Cli, Said
from tests.support.cases import together
from tests.support.commands import commands
from tests.support.frozen import NOW, Clock
from tests.support.in_process import clock
from tests.support.run_rows import RunRows
from tests.support.server import Server

__all__ = ["clock"]

pytestmark = pytest.mark.usefixtures("clock")

MINUTE = timedelta(minutes=1)


@pytest.fixture
def rows(client: redis.Redis, schedules: Schedules) -> RunRows:
    schedules.add("poll", "add", every(60))
    return RunRows(client, schedules)


@pytest.fixture
def told(rows: RunRows) -> RunRows:
    """An entry with a run of each kind, the newest first: waits, runs, failed, succeeded, skipped."""
    ids = rows.sent("poll", *(NOW - minutes * MINUTE for minutes in (4, 3, 2, 1)))
    rows.row("poll", NOW - 65 * MINUTE, "skipped", "", None, 3_540_000, 60)
    line = rows.line("poll", NOW - 4 * MINUTE, "succeeded", ids[0], begin=50, duration=12_340, worker="celery@a")
    rows.row("poll", NOW - 4 * MINUTE, "succeeded", ids[0], 50, 12_340, 0, line)
    error = "ValueError: no\nsuch\x1b[2J thing"
    line = rows.line("poll", NOW - 3 * MINUTE, "failed", ids[1], begin=9, duration=70, attempt=2, error=error)
    rows.row("poll", NOW - 3 * MINUTE, "failed", ids[1], 9, 70, 2, line)
    rows.row("poll", NOW - 2 * MINUTE, "running", ids[2], 9)
    rows.guard(ids[2], "running", 60)
    return rows


class TestRuns:
    def test_of_an_entry_are_told_with_what_became_of_them(self, cli: Cli, told: RunRows) -> None:
        out = " ".join(cli("runs", "poll").out.split())
        assert "failed 70 ms 3 - ValueError: no such [2J thing" in out
        assert out.endswith("60 occurrences over 59 min")
        shown = [line[:69].rstrip() for line in cli("runs", "poll").lines[1:] if line[0] != " "]
        assert [line[34:] for line in shown] == [
            "waiting    -      -      -",
            "running    -      1      -",
            "failed     70 ms  3      -",
            "succeeded  12 s   1      celery@a",
            "skipped    -      -      -",
        ]
        assert cli("runs", "poll", "--limit", "2").lines[3:] == ["There are more: --limit 4"]

    def test_of_all_are_told_with_their_entry(self, cli: Cli, told: RunRows) -> None:
        header, failed, _, succeeded = cli("runs").lines
        assert header.split()[:3] == ["SCHEDULED", "ENTRY", "OUTCOME"]
        assert (failed.split()[2:4], succeeded.split()[2:4]) == (["poll", "failed"], ["poll", "succeeded"])

    def test_are_data_for_scripts(self, cli: Cli, told: RunRows) -> None:
        _, running, failed, _, skipped = cli("runs", "poll", "--json").json
        assert (running["outcome"], running["began_at"]) == ("running", "2026-03-02T12:05:19.009000+00:00")
        assert (failed["error"], failed["seconds"], failed["attempts"]) == (
            "ValueError: no\nsuch\x1b[2J thing",
            0.07,
            3,
        )
        assert (skipped["until"], skipped["count"], skipped["task_id"]) == ("2026-03-02T12:01:19+00:00", 60, None)

    @together(
        ("words", "found"),
        [
            ((), ["waiting", "running", "failed", "succeeded", "skipped"]),
            (("--failed",), ["failed"]),
            (("--outcome", "succeeded", "--outcome", "waiting"), ["waiting", "succeeded"]),
            (("--outcome", "skipped", "--failed"), ["failed", "skipped"]),
            (("--outcome", "lost"), []),
            (("--since", "150s"), ["waiting", "running"]),
            (("--since", "2m30s", "--failed"), []),
            (("--since", "13:04", "--until", "12:05:30Z"), ["running", "failed"]),
            (("--since", "13:03:30", "--until", "13:03"), ["waiting", "running", "failed"]),
            (("--since", "22:00", "--until", "18:00"), ["waiting", "running", "failed", "succeeded", "skipped"]),
            (("--since", "1000000000h"), ["waiting", "running", "failed", "succeeded", "skipped"]),
        ],
    )
    def test_are_filtered(self, cli: Cli, told: RunRows, words: tuple[str, ...], found: list[str]) -> None:
        assert [run["outcome"] for run in cli("runs", "poll", *words, "--json").json] == found
        if not found:
            said = "No run matches. Workers record runs if their app has called install(app).\n"
            assert cli("runs", "poll", *words).out == said

    def test_name_what_is_wrong_with_the_request(self, cli: Cli, told: RunRows) -> None:
        assert "no entry 'pol' is stored; did you mean 'poll'?" in cli("runs", "pol", code=1).err
        assert "or how long ago, such as" in cli("runs", "--since", "noon", code=1).err
        backwards = cli("runs", "--since", "2h", "--until", "3h", code=1).err
        assert "until: expected an instant after --since, 2026-03-02 11:07:19" in backwards
        assert "limit" in cli("runs", "--limit", "0", code=1).err


class TestNoRuns:
    def test_say_why_there_are_none(
        self,
        cli: Cli,
        make_app: Callable[..., Celery],
        run_cli: Callable[..., Said],
        rows: RunRows,
        server: Server,
        client: redis.Redis,
    ) -> None:
        assert cli("runs").out == cli("runs", "poll").out
        assert cli("runs").out.startswith("No run is recorded. Workers record runs if their app has called install(")
        seconds, _ = client.time()
        client.hset(OnceKeys("redbeat-lite").workers, "celery@a", msgspec.json.encode(WorkerReport([], seconds)))
        client.expire(OnceKeys("redbeat-lite").workers, 60)
        assert ["workers", "1 with install()"] in [line.split(maxsplit=1) for line in cli("status").lines]


class TestList:
    @pytest.mark.parametrize(
        ("outcome", "mark"),
        [
            ("succeeded", "✓"),
            ("failed", "✗"),
            ("expired", "✗"),
            ("revoked", "✗"),
            ("rejected", "✗"),
            ("lost", "✗"),
            ("running", "▸"),
            ("retrying", "↻"),
            ("skipped", "-"),
            ("left out", "-"),
            ("unknown", "·"),
        ],
    )
    def test_has_a_mark_for_each_outcome(self, cli: Cli, rows: RunRows, outcome: Outcome, mark: str) -> None:
        rows.sent("poll", NOW - MINUTE)
        rows.row("poll", NOW - 2 * MINUTE, outcome, "id", 0)
        assert cli("list").lines[1].split()[1] == f"{mark}·"

    def test_shows_the_last_five_the_newest_right_for_a_page_in_one_command(
        self, cli: Cli, told: RunRows, schedules: Schedules, server: Server
    ) -> None:
        schedules.add("new", "add", every(90))
        told.row("poll", NOW - 70 * MINUTE, "lost", "old", 0)
        with commands(server) as seen:
            lines = cli("list").lines
        assert [line.split()[1] for line in lines] == ["LAST", "-✓✗▸·", "2026-03-02"]
        assert len([command for command in seen if "runs:of" in command]) == 1

    def test_finds_the_entries_whose_last_run_failed(self, cli: Cli, told: RunRows, schedules: Schedules) -> None:
        for name, first, second in (("well", "failed", "succeeded"), ("ill", "succeeded", "expired")):
            schedules.add(name, "add", every(90))
            told.row(name, NOW - 2 * MINUTE, first, "1", 0)  # type: ignore[arg-type]
            told.row(name, NOW - MINUTE, second, "2", 0)  # type: ignore[arg-type]
        schedules.add("new", "add", every(60))
        found = sorted(cli("list", "--status", "failed", "--json").json, key=lambda each: str(each["name"]))
        assert [each["name"] for each in found] == ["ill", "poll"]
        assert [each["failures_in_a_row"] for each in found] == [1, 1]
        assert found[0]["last_outcomes"] == ["expired", "succeeded"]
        assert (found[0]["last_run"]["outcome"], found[0]["last_success_at"]) == (
            "expired",
            "2026-03-02T12:05:19+00:00",
        )
        assert [each["name"] for each in cli("list", "i*", "--status", "failed", "--json").json] == ["ill"]


class TestShow:
    def test_ends_with_the_last_runs(self, cli: Cli, told: RunRows) -> None:
        lines = cli("show", "poll").lines
        first = next(number for number, line in enumerate(lines) if line.startswith("last runs"))
        assert [line.removeprefix("last runs").strip() for line in lines[first : first + 6]] == [
            "2026-03-02 13:06:19+01:00  waiting",
            "2026-03-02 13:05:19+01:00  running",
            "2026-03-02 13:04:19+01:00  failed in 70 ms: ValueError: no such [2J",
            "thing",
            "2026-03-02 13:03:19+01:00  succeeded in 12 s",
            "2026-03-02 12:02:19+01:00  skipped: 60 occurrences over 59 min",
        ]
        shown = cli("show", "poll", "--json").json
        assert [run["outcome"] for run in shown["runs"]] == ["waiting", "running", "failed", "succeeded", "skipped"]
        assert shown["last_run"]["outcome"] == "running"

    def test_tells_of_the_entry_where_its_runs_cannot_be_read(
        self, cli: Cli, told: RunRows, client: redis.Redis
    ) -> None:
        client.delete("{redbeat-lite}:runs:of:poll")
        client.set("{redbeat-lite}:runs:of:poll", "of another program")
        lines = cli("show", "poll").lines
        assert lines[0].split() == ["name", "poll"]
        [line] = [line for line in lines if line.startswith("last runs")]
        assert "cannot be read: ForeignKey: {redbeat-lite}:runs:of:poll is a string" in line

    def test_tells_what_a_pipeline_does(self, cli: Cli, app: Celery, schedules: Schedules) -> None:
        @app.task(name="step", base=PipelineTask, shared=False)
        def step(params: dict[str, Any]) -> None: ...

        steps = [("load", "step", 2), ("clean", "step", 1), ("index", "step", 1)]
        pipeline = Pipeline(app, steps, {"day": 1}, overlap="wait", deadline="2h", at_once=1)
        schedules.add("nightly", pipeline, every(60))
        lines = [" ".join(line.split()) for line in cli("show", "nightly").lines]
        first = lines.index("stages 1. load")
        assert lines[first : first + 6] == [
            "stages 1. load",
            "2. clean, index",
            'params {"day": 1}',
            "overlap wait",
            "deadline 7200 s",
            "at_once 1",
        ]
        assert not any(line.startswith("kwargs") for line in lines)
        assert cli("show", "nightly", "--json").json["kwargs"], "programs have all of it"
        schedules.add("typed", Pipeline(app, steps, {"since": NOW}), every(60))
        assert "2026-03-02T12:07:19" in cli("show", "typed").out
        numbers = '{"v":1,"stages":[[[5,5,1,[],{},{},{}]]],"params":{},"process":0}'
        for garbage in ("none", 5, None, {}, numbers):
            schedules.update("nightly", kwargs={"definition": garbage})
            assert any(line.startswith("kwargs ") for line in cli("show", "nightly").lines)

    def test_says_nothing_of_runs_where_there_are_none(self, cli: Cli, rows: RunRows, clock: Clock) -> None:
        assert "last runs" not in cli("show", "poll").out
        assert json.loads(cli("show", "poll", "--json").out)["runs"] == []
