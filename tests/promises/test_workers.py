"""What the docs promise of workers: tasks that wait, children that are killed, schedules that nobody leads."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from redbeat_lite import every, lock, locks
from tests.promises.conftest import TICK, Stage
from tests.support.process_table import descendants
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually


def texts(journal: Path) -> list[str]:
    """The texts that the task ``proj.note`` has written."""
    return journal.read_text().split() if journal.exists() else []


def test_a_task_that_waits_holds_no_worker_slot(stage: Stage, tmp_path: Path) -> None:
    """A task that has to wait is parked in Redis with its whole message, and holds no worker slot."""
    journal = tmp_path / "texts"
    worker = stage.start("worker", "-c", "1", "-l", "INFO")
    worker.says(r" ready\.$")
    with lock(stage.app, "key"):
        wait = {"once_key": "key", "on_conflict": "wait"}
        waiting = stage.app.send_task("proj.note", (str(journal), "waiting"), **wait)
        eventually(lambda: [info.waiters for info in locks(stage.app).list()] == [(waiting.id,)])
        # The worker has one process.
        stage.app.send_task("proj.note", (str(journal), "other"))
        eventually(lambda: texts(journal) == ["other"])
    eventually(lambda: texts(journal) == ["other", "waiting"])


def test_a_child_that_is_killed_frees_its_key_within_a_second(stage: Stage, tmp_path: Path) -> None:
    """A child is killed: the key is free within 1 s."""
    worker = stage.worker()
    stage.app.send_task("proj.note", (str(tmp_path / "texts"), "never", 600), once_key="key")
    eventually(lambda: [info.state for info in locks(stage.app).list()] == ["running"])
    [held] = locks(stage.app).list()
    # Without the worker's main process, the key would be free when this lease has expired.
    assert held.expires_in is not None
    assert held.expires_in > 30
    with Stopwatch(worker, stage.server) as watch:
        for pid in descendants(worker.pid):
            with suppress(ProcessLookupError):  # A process may end with another one.
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not locks(stage.app).list())
    watch.at_most(1)
    assert worker.alive
    with lock(stage.app, "key") as next_one:
        assert next_one


def test_a_worker_says_that_nobody_leads(stage: Stage) -> None:
    """Workers with ``install(app)`` check every ten seconds whether a beat leads, and open ``no_leader``
    if none does.
    """
    settings = {"redbeat_lite_lease": 1}
    stage.schedules.add("stream", "proj.add", every(TICK))
    beat = stage.beat(**settings)
    stage.waits_for("stream")
    beat.kill()
    worker = stage.worker(**settings)
    [incident] = eventually(stage.schedules.incidents, what="the incident")
    assert (incident.kind, incident.entry) == ("no_leader", None)
    worker.says(rf"Incident {incident.id} is open, no_leader: no beat has led for")
    stage.beat(**settings)
    eventually(lambda: not stage.schedules.incidents(), what="no open incident")
