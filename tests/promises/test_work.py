"""What redbeat_lite promises of tasks, pipelines, runs and people who look and act."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redbeat_lite import (
    InvalidEntry,
    OnceSkipped,
    Pipeline,
    PipelineTask,
    acting_as,
    every,
    lock,
    locks,
    manual,
)
from redbeat_lite.web import Access, Request, Site
from tests.promises.conftest import Stage
from tests.support.process_table import descendants
from tests.support.waiting import eventually


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class TestOnce:
    def test_one_message_of_an_entry_is_queued_or_running(self, stage: Stage) -> None:
        """With ``once=True``, exactly one message is queued or running at any moment."""
        stage.beat()
        stage.schedules.add("slow", "proj.add", every(0.2), once=True)
        stage.schedules.add("other", "proj.add", every(0.2))
        stage.waits_for("other", 10)
        assert len(stage.messages("slow")) == 1
        assert stage.schedules["slow"].skipped_count >= 5

    def test_a_worker_that_is_killed_frees_its_key(self, stage: Stage, tmp_path: Path) -> None:
        """A worker killed with SIGKILL frees the key within the lease."""
        journal = tmp_path / "bodies"
        worker = stage.worker()
        send(stage, "proj.sleep", 60, str(journal), once_key="sleeper")
        held = eventually(lambda: locks(stage.app).list(), within=20)
        assert held[0].key == "sleeper"
        for pid in [worker.pid, *descendants(worker.pid)]:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not locks(stage.app).list(), within=20)

    def test_who_waits_runs_in_order(self, stage: Stage, tmp_path: Path) -> None:
        """Waiting keeps the order of the queue."""
        journal = tmp_path / "texts"
        stage.worker()
        wait = {"once_key": "key", "on_conflict": "wait"}
        send(stage, "proj.note", str(journal), "0", 3, **wait)
        eventually(lambda: locks(stage.app).list())
        for number in range(1, 5):
            # The worker has two processes, which may take two messages at once.
            send(stage, "proj.note", str(journal), str(number), 0.1, **wait)
            eventually(lambda: len(locks(stage.app).list()[0].waiters) == number)  # noqa: B023
        eventually(lambda: len(lines(journal)) == 5, within=30)
        assert lines(journal) == ["0", "1", "2", "3", "4"]

    def test_a_skipped_call_hangs_nobody(self, stage: Stage, tmp_path: Path) -> None:
        """Skipping hangs nobody: ``get()`` ends with OnceSkipped."""
        backend = {"result_backend": stage.server.url}
        stage.app.conf.update(backend)
        stage.worker(**backend)
        first = send(stage, "proj.note", str(tmp_path / "a"), "first", 2, once_key="key")
        eventually(lambda: locks(stage.app).list(), within=20)
        with pytest.raises(OnceSkipped):
            send(stage, "proj.note", str(tmp_path / "a"), "second", once_key="key").get(timeout=20)
        first.get(timeout=20)
        assert lines(tmp_path / "a") == ["first"]

    def test_a_task_that_runs_long_is_not_run_twice(self, stage: Stage, tmp_path: Path) -> None:
        """Long tasks are not redelivered."""
        journal = tmp_path / "bodies"
        visible = {"broker_transport_options": {"visibility_timeout": 2}}
        for _ in range(2):
            stage.worker(**visible)
        send(stage, "proj.slow", str(journal), 6)
        eventually(lambda: any("ended" in line for line in lines(journal)), within=30)
        assert len(lines(journal)) == 2

    def test_a_block_holds_a_lock(self, stage: Stage) -> None:
        with lock(stage.app, "key", lease=5) as held:
            assert held
            with lock(stage.app, "key") as second:
                assert not second
        with lock(stage.app, "key") as third:
            assert third


def send(stage: Stage, task: str, *args: Any, **options: Any) -> Any:
    return stage.app.send_task(task, args, **options)


class TestPipelines:
    @pytest.fixture
    def app(self, stage: Stage) -> Any:
        @stage.app.task(name="proj.step", base=PipelineTask, shared=False)
        def step(params: dict[str, Any], name: str) -> None: ...

        @stage.app.task(name="proj.broken", base=PipelineTask, shared=False)
        def broken(params: dict[str, Any]) -> None: ...

        return stage.app

    def test_stages_run_by_priority_and_hand_on_their_params(self, stage: Stage, app: Any) -> None:
        stage.worker()
        step = app.tasks["proj.step"]
        steps = [("last", step.s("c"), 1), ("first", step.s("a"), 3), ("middle", step.s("b"), 2)]
        run = Pipeline(app, steps).start()
        assert run.wait(30).state == "SUCCEEDED"
        assert run.params()["done"] == ["a", "b", "c"]

    def test_a_step_that_fails_ends_the_run_with_its_reason(self, stage: Stage, app: Any) -> None:
        stage.worker()
        run = Pipeline(app, [("bad", "proj.broken", 2), ("next", "proj.broken", 1)]).start()
        status = run.wait(30)
        assert status.state == "FAILED"
        assert "broken as asked" in (status.error or "")


class TestInput:
    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"schedule": 0.01}, "schedule"),
            ({"jitter": -1}, "jitter"),
            ({"misfire": "never"}, "misfire"),
            ({"kwargs": {"x": object()}}, "kwargs"),
            ({"max_runs": 0}, "max_runs"),
        ],
    )
    def test_what_cannot_be_stored_fails_at_add_with_its_field(
        self, stage: Stage, fields: dict[str, Any], field: str
    ) -> None:
        """What cannot be stored fails at ``add()`` with the field's name, never later."""
        with pytest.raises(InvalidEntry, match=field):
            stage.schedules.add("e", "proj.add", **{"schedule": every(60), **fields})
        assert "e" not in stage.schedules


class TestPeople:
    def test_each_change_says_who_made_it(self, stage: Stage) -> None:
        with acting_as("alice"):
            stage.schedules.add("entry", "proj.add", every(60))
        stage.schedules.pause("entry", "the disk is full")
        changes = stage.schedules.changes("entry")
        assert [change.action for change in changes] == ["paused", "added"]
        assert changes[1].actor == "alice"
        assert changes[0].note == "the disk is full"

    def test_an_incident_opens_when_a_run_does_not_begin(self, stage: Stage) -> None:
        """Where an entry says what must become of its runs, an incident opens when it does not."""
        stage.beat()
        late = datetime.now(UTC) - timedelta(seconds=1)
        expect = {"start_within": 0.5}
        worker = stage.worker()
        worker.terminate()
        worker.wait()
        stage.schedules.add("entry", "proj.add", every(1), expect=expect, start_at=late)

        def about_the_entry() -> bool:
            return any(incident.entry == "entry" for incident in stage.schedules.incidents())

        eventually(about_the_entry, within=40, what="an incident")

    def test_a_run_by_hand_is_sent_at_once(self, stage: Stage) -> None:
        stage.schedules.add("entry", "proj.add", manual())
        stage.schedules.run_now("entry", kwargs={"x": 7})
        [message] = stage.messages("entry")
        assert message.kwargs == {"x": 7}

    def test_the_commands_answer(self, stage: Stage) -> None:
        stage.beat()
        stage.run("add", "entry", "proj.add", "--every", "60")
        for words in (["list"], ["show", "entry"], ["next"], ["status"], ["runs"], ["why", "entry"]):
            assert stage.run(*words)
        stage.run("health")
        stage.run("pause", "entry", "--note", "for a while")
        assert "paused" in stage.run("list")
        stage.run("resume", "entry")
        stage.run("remove", "entry")
        assert "entry" not in stage.schedules

    def test_the_page_is_read_only_unless_granted(self, stage: Stage) -> None:
        stage.schedules.add("entry", "proj.add", every(60))
        same_site = {"sec-fetch-site": "same-origin"}
        post = Request("POST", "/pause", "", same_site, b"name=entry")
        for rights, status in ((frozenset({"view"}), 403), (frozenset({"view", "pause"}), 303)):
            site = Site(stage.app, access=lambda _, rights=rights: Access("ada", rights))
            assert site.handle(Request("GET", "/entries", "", {})).status == 200
            assert site.handle(post).status == status
        assert stage.schedules["entry"].status == "paused"
