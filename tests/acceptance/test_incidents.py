"""A real beat and a real worker: what becomes of runs leads to an incident, and to its end.

The audit has no law about incidents, and the worker takes the messages from the queue that it could judge.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Pipeline, PipelineTask, Schedules, every
from tests.support.processes import Process, celery, celery_beat
from tests.support.server import Server
from tests.support.waiting import eventually


@pytest.fixture
def processes(server: Server) -> Iterator[list[Process]]:
    """A worker and a beat."""
    started = [
        celery("tests.acceptance.watchedproj", *words, "-l", "INFO", PROJ_URL=server.url)
        for words in (("worker", "-P", "threads", "-c", "2"), ("beat", "-S", "redbeat_lite.Scheduler"))
    ]
    yield started
    for process in started:
        process.terminate()
    for process in started:
        process.wait()
        process.destroy()


def test_a_task_that_fails_three_times_and_then_succeeds(
    processes: list[Process],
    client: redis.Redis,
    app: Celery,
) -> None:
    worker, beat = processes
    worker.says("ready")
    beat.says("beat: leading")

    def told() -> list[str]:
        found: Any = client.lrange("told", 0, -1)
        return [line.decode() for line in found]

    schedules = Schedules(app)
    client.set("broken", 1)
    schedules.add("e", "proj.fragile", every(0.2), expect={"start_within": 5, "finish_within": 9, "failures": 3})
    eventually(lambda: len(told()) == 1, what="the incident")
    [incident] = schedules.incidents()
    assert told() == [f"failed e {incident.id}"]
    assert "times in a row: ValueError: as asked" in incident.text
    assert schedules.acknowledge(incident.id, "on it").acknowledged == "on it"
    client.delete("broken")
    eventually(lambda: len(told()) == 2, what="its end")
    assert told()[1] == f"-failed e {incident.id}"
    eventually(lambda: not schedules.incidents(), what="no open incident")
    eventually(lambda: client.zcount("{redbeat-lite}:runs:deadlines", "-inf", "+inf") > 0, what="deadlines")
    [past] = schedules.incidents(closed=True)
    assert (past.id, past.acknowledged) == (incident.id, "on it")
    schedules.remove("e")
    _is_paused_until_it_is_resumed(schedules, client)
    _is_one_of_a_pipeline(app, schedules, client)
    assert not beat.lines("Traceback|ERROR"), beat.output


@pytest.mark.soak
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["frozen", "gone"])
def test_a_worker_says_once_that_nobody_leads_until_somebody_does(
    processes: list[Process], client: redis.Redis, app: Celery, server: Server, how: int
) -> None:
    worker, beat = processes
    worker.says("ready")
    beat.says("beat: leading")
    schedules = Schedules(app)
    schedules.add("e", "proj.fragile", every(60))
    beat.signal(how)
    [incident] = eventually(schedules.incidents, what="the incident")
    assert (incident.kind, incident.entry) == ("no_leader", None)

    def reported() -> bytes:
        [said] = client.hvals("{redbeat-lite}:once:workers")
        return bytes(said)

    for _ in range(2):
        before = reported()
        eventually(lambda before=before: reported() != before, what="a look of the worker")  # type: ignore[misc]
    assert len(worker.lines("Incident .* is open, no_leader: no beat has led for")) == 1
    if how == signal.SIGSTOP:
        beat.signal(signal.SIGCONT)
    else:
        beat.wait()
        beat.destroy()
        processes[1] = celery_beat("tests.acceptance.watchedproj", PROJ_URL=server.url)
    wanted = [f"no_leader None {incident.id}", f"-no_leader None {incident.id}"]
    eventually(lambda: client.llen("told") >= len(wanted), what="its end")
    eventually(lambda: not schedules.incidents(), what="no open incident")
    assert [line.decode() for line in client.lrange("told", 0, -1)] == wanted
    [past] = schedules.incidents(closed=True)
    assert past.id == incident.id


def _is_paused_until_it_is_resumed(schedules: Schedules, client: redis.Redis) -> None:
    client.set("broken", 1)
    schedules.add("p", "proj.fragile", every(0.2), on_failure="pause:3")
    eventually(lambda: schedules["p"].paused_note, what="the pause")
    [incident] = schedules.incidents()
    assert (incident.kind, incident.entry, schedules["p"].last_change.actor) == ("paused", "p", "beat")
    client.delete("broken")
    schedules.resume("p")
    eventually(lambda: schedules["p"].last_success_at, what="a success")
    eventually(lambda: not schedules.incidents(), what="its end")


def _is_one_of_a_pipeline(app: Celery, schedules: Schedules, client: redis.Redis) -> None:
    @app.task(name="proj.stage", base=PipelineTask, shared=False)
    def stage(params: dict[str, Any]) -> None: ...

    def kinds() -> set[str]:
        return {each.kind for each in schedules.incidents() if each.entry == "nightly"}

    schedules.remove("p")
    client.mset({"held": 1, "broken": 1})
    pipeline = Pipeline(app, [("proj.stage", 1)], overlap="skip")
    schedules.add("nightly", pipeline, every(3), expect={"finish_within": 2})
    eventually(lambda: kinds() == {"too_long"}, what="a run that hangs")
    client.delete("held")
    eventually(lambda: "failed" in kinds(), what="its failure")
    client.delete("broken")
    eventually(lambda: not kinds(), what="the end of both")
