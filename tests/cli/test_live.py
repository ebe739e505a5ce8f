"""Each command beside a live beat: plain, and as JSON where it prints data."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from celery import Celery

from redbeat_lite import Pipeline, PipelineTask, Schedules, every
from tests.cli.conftest import Said, Shell
from tests.support.messages import of_entry
from tests.support.waiting import eventually

BERLIN = ("--tz", "Europe/Berlin")


def test_entries_are_listed_and_shown(shell: Shell, live: Schedules) -> None:
    live.add("listed", "proj.add", every(3600), description="for the list")
    plain, data = shell.both("list")
    assert plain.lines[0].split() == ["NAME", "LAST", "NEXT", "RUN", "TASK", "SCHEDULE"]
    assert any(line.startswith("listed ") and line.endswith("  proj.add  every 1h") for line in plain.lines)
    assert next(each for each in data if each["name"] == "tick")["source"] == "config:proj"

    shown, data = shell.both("show", "listed")
    assert ["schedule", "--every", "1h"] in [line.split() for line in shown.lines]
    assert data["schedule"] == {"every": "1h"}
    assert data["description"] == "for the list"
    assert datetime.fromisoformat(data["next_run_at"]) == live["listed"].next_run_at


def test_what_is_added_runs_and_what_is_edited_runs_by_its_new_rule(
    shell: Shell, live: Schedules, live_url: str
) -> None:
    with redis.Redis.from_url(live_url) as client:
        said = shell("add", "fresh", "proj.add", "--every", "200ms", "--args", "[1]", "--kwargs", '{"y": 2}')
        assert said.out.startswith("added 'fresh'; next run: ")
        message = eventually(lambda: of_entry(client, "fresh"), what="a run of the entry")[0]
        assert (message.args, message.kwargs) == ([1], {"y": 2})
    data = shell("edit", "fresh", "--cron", "30 2 * * *", *BERLIN, "--max-runs", "5000", "--json").json
    assert data["schedule"] == {"cron": "30 2 * * *", "tz": "Europe/Berlin"}
    assert (data["max_runs"], data["args"]) == (5000, [1])
    assert live["fresh"].next_run_at == datetime.fromisoformat(data["next_run_at"]) > datetime.now(UTC)
    assert shell("edit", "fresh", "--max-runs", "none").out.startswith("changed 'fresh'")
    assert live["fresh"].max_runs is None
    added = shell("add", "other", "proj.add", "--at", "2090-12-01T09:00+01:00", "--json").json
    assert added["next_run_at"] == "2090-12-01T08:00:00+00:00"
    assert shell("remove", "fresh").out == "removed 'fresh'\n"
    assert "fresh" not in live


def test_an_entry_is_paused_resumed_and_run_by_hand(shell: Shell, live: Schedules, live_url: str) -> None:
    live.add("ops", "proj.add", every(3600), args=(7,))
    assert shell("pause", "ops", "--note", "disk").out == "paused 'ops' until it is resumed\n"
    assert live["ops"].paused_note == "disk"
    assert ["status", "paused:", "disk"] in [line.split() for line in shell("show", "ops").lines]
    assert shell("resume", "ops").out.startswith("resumed 'ops'; next run: ")
    assert shell("resume", "ops", "--json").json["next_run_at"]
    assert shell("resume", "ops").out.startswith("not paused: 'ops'; next run: ")
    assert live["ops"].paused_note is None
    plain, data = shell.both("run", "ops")
    with redis.Redis.from_url(live_url) as client:
        sent = {message.id for message in of_entry(client, "ops")}
    assert data["task_id"] in sent
    assert any(plain.out == f"sent 'ops' as task {task_id}\n" for task_id in sent)


def test_quarantined_entries_are_listed_shown_released_and_removed(
    shell: Shell, live: Schedules, live_url: str
) -> None:
    with redis.Redis.from_url(live_url) as client:
        for name in ("good", "better", "bad"):
            live.add(name, "proj.add", every(0.2))
            client.hset("{redbeat-lite}:state", name, "garbage")
        eventually(lambda: {"good", "better", "bad"} <= live.quarantined().keys(), what="all in quarantine")
    plain, data = shell.both("quarantine", "list")
    assert plain.lines[0].split() == ["NAME", "SINCE", "ERROR"]
    assert [each["name"] for each in data] == ["bad", "better", "good"]
    shown, record = shell.both("quarantine", "show", "good")
    assert "error" in shown.out
    assert json.loads(record["definition"])["task"] == "proj.add"
    assert shell("quarantine", "release", "good").out.startswith("released 'good'; next run: ")
    assert shell("quarantine", "release", "better", "--json").json["name"] == "better"
    assert shell("quarantine", "remove", "bad").out == "removed 'bad' from quarantine\n"
    assert live.quarantined() == {}
    assert live["good"].next_run_at


def test_locks_are_listed_and_cleared(shell: Shell, live: Schedules) -> None:
    live.add("locked", "proj.add", every(3600), once=True)
    live.run_now("locked")
    plain, data = shell.both("locks", "list")
    assert plain.lines[0].split() == ["KEY", "STATE", "HOLDER", "SINCE", "LEASE", "WAIT", "TASK"]
    assert " s ago" in plain.lines[1]
    [lock] = data
    assert (lock["state"], lock["holder"]) == ("queued", "entry locked")
    assert lock["task_id"][:8] in plain.lines[1]  # narrow terminals cut it
    assert shell("locks", "clear", lock["key"]).out == f"cleared '{lock['key']}'\n"
    assert shell("locks", "list", "--json").json == []
    assert "no lock 'x' is held" in shell("locks", "clear", "x", code=1).err


@pytest.fixture
def pipeline(live_url: str) -> Pipeline:
    app = Celery("pipes", broker=live_url, set_as_current=False)

    @app.task(name="pipes.step", base=PipelineTask, shared=False)
    def step(params: dict[str, object]) -> None: ...

    return Pipeline(app, [("pipes.step", 1)])


def test_pipelines_are_listed_shown_waited_for_and_cancelled(shell: Shell, pipeline: Pipeline) -> None:
    pipeline.start("nightly-7")
    plain, data = shell.both("pipelines", "list")
    assert plain.lines[0].split() == ["RUN", "STATE", "STAGE", "STEPS", "STARTED", "WHAT"]
    assert plain.lines[1].split()[:4] == ["nightly-7", "RUNNING", "1/1", "0/1"]
    assert [each["id"] for each in data] == ["nightly-7"]
    shown, data = shell.both("pipelines", "show", "nightly-7")
    assert "pipes.step" in shown.out
    assert "progress  0 %, 0 of 1 steps" in shown.lines
    assert data["steps"][0]["task"] == "pipes.step"
    assert "there is no pipeline run 'nightly-8'" in shell("pipelines", "show", "nightly-8", code=1).err
    waiting = shell.start("pipelines", "wait", "nightly-7")
    waiting.says("^nightly-7  RUNNING")
    assert shell("pipelines", "cancel", "nightly-7").out == "cancelled nightly-7\n"
    assert waiting.wait() == 3
    assert waiting.output.splitlines()[-1].split()[:2] == ["nightly-7", "ABORTED"]
    waiting.destroy()
    assert "has ended already: ABORTED" in shell("pipelines", "cancel", "nightly-7", code=1).err
    assert [shell("pipelines", "resume", "nightly-7").out for _ in range(2)] == [
        "resumed nightly-7\n", "nightly-7 goes on already\n",
    ]  # fmt: skip
    assert shell("pipelines", "cancel", "nightly-7").out == "cancelled nightly-7\n"
    assert json.loads(shell("pipelines", "wait", "nightly-7", "--json", code=3).out)["state"] == "ABORTED"
    pipeline.start(long := f"nightly-{uuid4()}")
    assert long in shell("pipelines", "list").out, "an id that is cut could not be copied"


def test_a_run_is_cancelled_with_a_note(app: Celery, run_cli: Callable[..., Said]) -> None:
    @app.task(name="step", base=PipelineTask, shared=False)
    def step(params: dict[str, object]) -> None: ...

    for run_id in ("one", "once"):
        Pipeline(app, [("step", 1)]).start(run_id)
    assert "no pipeline run 'on'" in run_cli(app, "pipelines", "cancel", "on", code=1).err, (
        "the beginning of an id is none"
    )
    assert run_cli(app, "pipelines", "cancel", "one", "--note", "not today").out == "cancelled one\n"
    assert "pipeline cancelled one by" in run_cli(app, "log").out


def test_a_schedule_is_exported_and_imported(shell: Shell, live: Schedules, tmp_path: Path) -> None:
    live.add("kept", "proj.add", every(3600), args=(3,))
    live.pause("kept", "note")
    file = str(tmp_path / "backup.json")
    assert "left out" in shell("export", file).err
    before, runs = live["kept"], live["tick"].total_run_count
    live.remove("kept")
    eventually(lambda: live["tick"].total_run_count > runs, what="a run of a config entry")
    assert "to import" in shell("import", file, code=3).out, "config entries run on, so theirs is not what was written"
    assert "kept" not in live
    data = shell("import", file, "--apply", "--json", code=3).json
    assert next(each for each in data if each["name"] == "kept")["action"] == "add"
    assert live["kept"] == before
    assert (live["kept"].version, live["kept"].paused_note) == (before.version, before.paused_note)


def completion(*typed: str) -> dict[str, str]:
    """The environment by which bash asks for what may follow in this line."""
    return {"_CELERY_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(typed), "COMP_CWORD": str(len(typed) - 1)}


def test_the_help_lists_the_commands_and_the_shell_completes_them(shell: Shell) -> None:
    assert "Manage the schedule" in shell("--help").out
    env, command = {**shell.env, **completion("celery", "redbeat", "qu")}, Path(sys.executable).with_name("celery")
    done = subprocess.run([command], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["plain,quarantine"], done.stderr
