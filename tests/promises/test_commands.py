"""The first use of every command of ``celery redbeat`` and ``python -m redbeat_lite``."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from celery.bin.celery import celery as command_line
from click.testing import CliRunner

from redbeat_lite import Pipeline, PipelineTask, at, every, lock
from redbeat_lite.__main__ import main
from tests.promises.conftest import Stage
from tests.support.nursery import nursery
from tests.support.processes import ROOT, run_python
from tests.support.waiting import eventually


class Shell:
    """Runs ``celery -A proj redbeat …`` in this process, for the app of the stage."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(command_line.params[0], "default", stage.app)

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command that ends with this exit code, and return what it printed."""
        ended = CliRunner().invoke(command_line, ["redbeat", *words])
        assert ended.exit_code == code, (words, ended.output, ended.exception)
        return ended.output


@pytest.fixture
def run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(stage, monkeypatch)


class TestEntries:
    def test_entries_are_added_edited_listed_and_removed(self, run: Shell, stage: Stage) -> None:
        """What the command line changes takes effect at once, and each change is in the record of changes."""
        assert "added 'entry'" in run("add", "entry", "proj.add", "--every", "60")
        assert "changed 'entry'" in run("edit", "entry", "--every", "90")
        assert "every 1m30s" in run("list")
        assert "proj.add" in run("show", "entry")
        assert "entry" in run("next", "--limit", "3")
        assert "paused 'entry'" in run("pause", "entry", "--note", "for a while")
        assert "resumed 'entry'" in run("resume", "entry")
        assert "for a while" in run("log", "entry")
        assert "sent 'entry'" in run("run", "entry")
        assert len(stage.messages("entry")) == 1
        assert "waiting" in run("runs", "entry")
        assert "entry" in run("why", "entry")
        assert "removed 'entry'" in run("remove", "entry")
        assert "no entry 'entry'" in run("show", "entry", code=1)

    def test_entries_are_selected_by_their_tags(self, run: Shell, stage: Stage, tmp_path: Path) -> None:
        """Tags. Give entries tags, and select them by ``--tag``. The command shows what it selects."""
        for tenant in ("42", "43"):
            for job in ("billing", "mail"):
                tags = f"{job},tenant:{tenant}"
                run("add", f"{job}:{tenant}", "proj.add", "--every", "60", "--tags", tags)
        run("add", "billing:43:again", "proj.add", "--every", "60", "--description", "tenant:42")
        chosen = ("--tag", "tenant:42")
        for listing in (run("list", *chosen), run("next", *chosen), run("list", "billing:*", *chosen)):
            assert "billing:42" in listing
            assert "billing:43" not in listing
        output = run("pause", *chosen, "--note", "moving house")
        assert "2 entries to pause: 'billing:42', 'mail:42'" in output
        paused = [name for name, entry in stage.schedules.items() if entry.status == "paused"]
        assert sorted(paused) == ["billing:42", "mail:42"]
        assert "resumed 2 entries" in run("resume", *chosen)
        run("run", *chosen)
        assert {name for name, _ in stage.occurrences()} == {"billing:42", "mail:42"}
        file = tmp_path / "entries.json"
        run("export", str(file), *chosen)
        assert "billing:42" in file.read_text()
        assert "billing:43" not in file.read_text()
        run("remove", *chosen)
        assert sorted(stage.schedules) == ["billing:43", "billing:43:again", "mail:43"]

    def test_entries_are_frozen_and_thawed(self, run: Shell, stage: Stage) -> None:
        """Stop everything for a deploy: ``freeze --for 2h``, ``status``, ``thaw``."""
        assert "to end it: thaw" in run("freeze", "--for", "2h", "--note", "deploy")
        assert "deploy" in run("status")
        run("thaw")
        assert stage.schedules.frozen() is None

    def test_entries_are_paused_for_a_time(self, run: Shell, stage: Stage) -> None:
        """``pause --for 2h`` ends by itself."""
        stage.schedules.add("entry", "proj.add", every(60))
        assert "until" in run("pause", "entry", "--for", "2h")
        assert stage.schedules["entry"].paused_until is not None

    def test_the_past_is_run_again(self, run: Shell, stage: Stage) -> None:
        """Run the lost window again: ``backfill``. ``backfills pause ID``, ``resume ID`` and ``cancel ID``
        control it.
        """
        stage.schedules.add("entry", "proj.add", every(60))
        output = run("backfill", "entry", "--from", "2h", "--to", "1h", "--max-active", "none")
        backfill = re.search(r"started backfill (\w+)", output)
        assert backfill is not None
        run("backfills", "pause", backfill[1])
        assert "paused" in run("backfills", "list")
        run("backfills", "resume", backfill[1])
        run("backfills", "cancel", backfill[1])
        assert stage.schedules.backfills[backfill[1]].ended == "cancelled"

    def test_calendars_leave_days_out(self, run: Shell, stage: Stage) -> None:
        """Leave dates out: a stored calendar names days, and an entry names the calendar."""
        assert "stored off@1" in run("calendars", "set", "off", "2030-12-25")
        assert "off@1" in run("calendars", "list")
        run("add", "entry", "proj.add", "--cron", "0 3 * * *", "--calendar", "off")
        run("remove", "entry")
        assert "removed calendar 'off'" in run("calendars", "remove", "off")

    def test_entries_go_to_files_and_come_back(self, run: Shell, stage: Stage, tmp_path: Path) -> None:
        """``export`` writes every entry to a file, and ``import`` and ``apply`` put them back.

        ``plan``, and ``import`` without ``--apply``, only say what would be done.
        """
        file = str(tmp_path / "entries.json")
        stage.schedules.add("entry", "proj.add", every(60))
        run("export", file)
        stage.schedules.remove("entry")
        assert "1 to add" in run("plan", file)
        assert "1 to import" in run("import", file)
        assert "entry" not in stage.schedules
        run("import", file, "--apply")
        run("remove", "entry")
        run("apply", file)
        assert "entry" in stage.schedules

    def test_another_scheduler_is_watched(self, run: Shell) -> None:
        """``shadow``: a beat plans beside the old one, and reports where the two differ."""
        assert "0 runs agreed" in run("shadow", "--from", "redbeat", "--for", "1s")


class TestOperating:
    def test_locks_are_listed_and_cleared(self, run: Shell, stage: Stage) -> None:
        """``redbeat locks`` lists the once-locks; ``clear`` frees one."""
        with lock(stage.app, "reindex"):
            assert "reindex" in run("locks", "list")
            run("locks", "clear", "reindex")
            assert "reindex" not in run("locks", "list")

    def test_pipelines_are_looked_at_and_ended(self, run: Shell, stage: Stage) -> None:
        """``pipelines wait`` exits with 3 if the run did not succeed. ``cancel`` ends a run, and ``resume``
        goes on with it.
        """

        @stage.app.task(name="proj.step", base=PipelineTask, shared=False)
        def step(params: dict[str, Any]) -> None: ...

        Pipeline(stage.app, [("proj.step", 1)]).start("import-7")
        assert "import-7" in run("pipelines", "list")
        assert "RUNNING" in run("pipelines", "show", "import-7")
        assert "cancelled import-7" in run("pipelines", "cancel", "import-7")
        assert "ABORTED" in run("pipelines", "wait", "import-7", code=3)
        assert "resumed import-7" in run("pipelines", "resume", "import-7")

    def test_what_is_wrong_is_listed_taken_up_and_mended(self, run: Shell, stage: Stage) -> None:
        """One bad entry is set aside with its error."""
        beat = stage.beat()
        assert "alive" in run("health", "--pid", str(beat.pid))
        for name in ("released", "removed"):
            stage.schedules.add(name, "proj.add", at(datetime.now(UTC)), enabled=False)
            stage.client.hset("{redbeat-lite}:entries", name, "rubbish")
        stage.client.zadd("{redbeat-lite}:due", {"released": 0, "removed": 0})
        eventually(lambda: len(stage.schedules.quarantined()) == 2)
        incident = eventually(stage.schedules.incidents, what="an incident")[0]
        assert incident.id in run("incidents", "--open")
        run("ack", incident.id, "--note", "alice")
        assert "alice" in run("incidents")
        assert str(beat.pid) in run("status")
        assert "quarantine" in run("doctor", code=4)
        assert "rubbish" in run("quarantine", "show", "removed")
        run("quarantine", "remove", "removed")
        run("quarantine", "release", "released", code=1)
        assert "removed" not in run("quarantine", "list")


class TestProcesses:
    """Commands that run until somebody ends them."""

    @pytest.fixture
    def environment(self, stage: Stage) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **stage.environment()}

    def test_watch_shows_the_entries_that_run_next(self, stage: Stage, environment: dict[str, str]) -> None:
        """``watch`` shows the entries that run next; ``q`` ends it."""
        stage.schedules.add("watched", "proj.add", every(60))
        ours, its = pty.openpty()
        command = [sys.executable, "-m", "celery", "-A", "tests.promises.proj", "redbeat", "watch"]
        process = nursery().start(command, env=environment, stdout=its, session=True)
        shown = b""
        try:
            while b"watched" not in shown:
                assert select.select([ours], [], [], 20)[0], shown
                shown += os.read(ours, 65_536)
            os.write(ours, b"q")
            assert process.wait(20) == 0
        finally:
            process.kill()
            os.close(ours)
            os.close(its)

    def test_web_serves_the_page(self, stage: Stage) -> None:
        """You can look instead of type. ``redbeat web`` serves a page."""
        stage.schedules.add("entry", "proj.add", every(60))
        web = stage.start("redbeat", "web", "--port", "0")
        address = re.search(r"http://\S+", web.says("The page is at"))
        assert address is not None
        with urllib.request.urlopen(f"{address[0]}entries", timeout=20) as page:
            assert "entry" in page.read().decode()

    def test_the_demonstration_runs(self, environment: dict[str, str]) -> None:
        """``python -m redbeat_lite demo`` starts a server, a worker and two beats, and ends them."""
        ended = run_python("-m", "redbeat_lite", "demo", "--seconds", "1", env=environment)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "look at who sends" in ended.stdout

    def test_a_heartbeat_file_tells_of_health_without_a_server(
        self, stage: Stage, environment: dict[str, str], tmp_path: Path
    ) -> None:
        """A beat renews its heartbeat file while its loop lives, and ``python -m redbeat_lite health`` reads it."""
        file = tmp_path / "heartbeat"
        stage.beat(redbeat_lite_heartbeat_file=str(file))
        eventually(file.exists)
        ended = run_python("-m", "redbeat_lite", "health", str(file), env=environment)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def leaves(group: click.Group, *words: str) -> Iterator[tuple[str, ...]]:
    """The commands of a group and of the groups in it, each as its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, *words, name)
        else:
            yield (*words, name)


def test_every_command_has_a_test_here() -> None:
    """Each command of ``celery redbeat`` and of ``python -m redbeat_lite`` is run by a test of this file."""
    text = Path(__file__).read_text()
    redbeat = command_line.commands["redbeat"]
    commands = [*leaves(redbeat, "redbeat"), *leaves(main, "redbeat_lite")]
    assert len(commands) > 40
    missing = [words for words in commands if not is_run(words, text)]
    assert not missing


def is_run(words: tuple[str, ...], text: str) -> bool:
    """Whether the text of this file runs a command, by a process or by ``run``."""
    typed = ", ".join(f'"{word}"' for word in words)
    short = typed.removeprefix('"redbeat", ')
    return typed in text or f"run({short}" in text
