"""Whoever dies, and whenever: each run ends once, in order, one after the other, and nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from redbeat_lite import Pipeline, PipelineNotFound, PipelineRun
from redbeat_lite.entries.run import HISTORY_HEADER, NESTING
from redbeat_lite.once.lock_store import OnceKeys
from redbeat_lite.pipeline import sweep, sweeper
from redbeat_lite.pipeline.pipeline_keys import START
from redbeat_lite.pipeline.pipeline_store import PipelineStore, store_of
from redbeat_lite.runs.run_store import RunKeys
from redbeat_lite.store.scripts import Scripts
from tests.harness.workers import Worker
from tests.pipeline.lab import Lab, handle, note_successes, record
from tests.pipeline.steps import make_app
from tests.support.beats import KEYS
from tests.support.server import Server


class Died(SystemExit):
    """In place of SIGKILL. As with the exit of a process, no body has failed."""


@pytest.fixture
def lab(server: Server, make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    app = make_app(server.url)
    yield make_lab(server, app)
    app.close()


def occurrence(lab: Lab, pipeline: Pipeline, number: int) -> PipelineRun:
    """Send a run as the beat does."""
    at = f"2026-03-01T02:{number // 60:02}:{number % 60:02}+00:00"
    headers: dict[str, Any] = {"periodic_task_name": "nightly", "scheduled_at": at}
    run_id = f"run{number}"
    # That a row which is too old to be kept is told once, nobody says.
    headers[HISTORY_HEADER] = 1000
    lab.app.tasks[START].apply_async(kwargs=pipeline.as_entry()["kwargs"], task_id=run_id, headers=headers)
    return PipelineRun(lab.app, run_id)


def ends(client: Any) -> Counter[str]:
    """How many ends are recorded of each run, without those of the tasks that started them."""
    lines = [fields for _, fields in client.xrange(RunKeys("redbeat-lite").feed)]
    return Counter(each["id"] for each in lines if int(each["attempt"]) >= NESTING)


def left_behind(client: Any, runs: list[str]) -> list[str]:
    """The keys of the package that should not be there, or would be for ever."""
    kept = {f"{{redbeat-lite:{run}}}:{part}" for run in runs for part in ("run", "steps", "results", "gone")}
    found = {*client.scan_iter("{redbeat-lite:*"), *client.scan_iter("{redbeat-lite}:turns:*")}
    lasting = {key for key in client.scan_iter("{redbeat-lite*") if client.pttl(key) == -1}
    # These are as long, however many run: the latest runs, ends that no leader has read, what beats and workers write.
    lasting -= {"{redbeat-lite}:ended-runs", RunKeys("redbeat-lite").feed, KEYS.meta, KEYS.changes}
    lasting -= {OnceKeys("redbeat-lite").workers}
    running = {key for key in client.scan_iter("{redbeat-lite}:guard:*") if _runs(client, key)}
    return sorted((found - kept) | lasting | running)


def _runs(client: Any, guard: str) -> bool:
    """Whether the guard believes that a task runs."""
    if client.type(guard) != "hash":
        return False
    state, until = client.hmget(guard, "state", "until")
    return state == "running" and int(until) > 1000 * client.time()[0]


def times_resumed(lab: Lab, runs: list[PipelineRun]) -> dict[str, int]:
    """How often each run was resumed, by its id."""
    return {run.id: int(store_of(lab.app).read(run.id)[0].get("resumed") or 0) for run in runs}


class Deaths:
    """Dies before or after the n-th call of a script or a write of an index, once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls, self.at = 0, -1
        for owner, name in ((Scripts, "run"), (sweeper, "_set_params"), (PipelineStore, "move_to_ended")):
            patch.setattr(owner, name, self._deadly(getattr(owner, name)))

    def _deadly(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def deadly(*args: Any, **values: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return call(*args, **values)  # The thread that records runs has no say in when this process dies.
            self._die_at(2 * self.calls)
            answer = call(*args, **values)
            self._die_at(2 * self.calls + 1)
            self.calls += 1
            return answer

        return deadly

    def _die_at(self, instant: int) -> None:
        if instant == self.at:
            self.at = -1
            raise Died


def work(lab: Lab) -> None:
    """Handle every message, as a worker with ``acks_late`` does."""
    while text := lab.client.rpop("celery"):
        try:
            handle(lab, json.loads(text))
        except Died:
            lab.client.rpush("celery", text)
            for guard in lab.client.scan_iter("{redbeat-lite}:guard:*"):
                if lab.client.type(guard) == "hash" and lab.client.hget(guard, "state") == "running":
                    lab.client.hset(guard, "until", 1)  # its lease has run out


def later(lab: Lab, runs: list[PipelineRun]) -> None:
    """As if all that takes its time had taken it."""
    mine = store_of(lab.app)
    for run in runs:
        if not lab.client.exists(mine.keys(run.id).run):
            continue
        for step in lab.client.hkeys(mine.keys(run.id).steps):
            record(mine, run.id, int(step), beat=0, due=0)
    for run_id in lab.client.zrange("{redbeat-lite}:pipelines", 0, -1):
        lab.client.zadd("{redbeat-lite}:pipelines", {run_id: 0})


def scenario(lab: Lab, deaths: Deaths, at: int, how: str = "") -> int:
    """Three runs of an entry, of which whoever works, or resumes one, dies at this instant; how many there were."""
    lab.client.flushall()
    lab.log.clear()
    lab.runs.clear()
    late = lab.sig("proj.late")
    steps = [("a", late, 2), ("b", lab.sig("proj.late", how=how), 2), ("c", late, 1)]
    pipeline = Pipeline(lab.app, steps, overlap="wait", at_once=1)
    runs = [occurrence(lab, pipeline, n) for n in range(3)]
    for run in runs:
        # A run that fails gives its turn to the next one, while a step beside the failed one may go on.
        lab.note_run(run, steps, at_once=1, line="nightly", fails=bool(how))
    deaths.calls, deaths.at = 0, at
    for _ in range(30):
        work(lab)
        later(lab, runs)
        with suppress(Died):
            sweep(lab.app)
        for run in runs:
            with suppress(Died, PipelineNotFound):
                if run.status().state == "FAILED":
                    note_successes(lab.log, run)
                    run.resume()
        if not lab.client.llen("celery") and not lab.client.zcard("{redbeat-lite}:pipelines"):
            break
    calls, deaths.at = deaths.calls, -1
    print(f"at {at}")
    lab.note_successes()
    lab.log.audit()
    states = [run.status().state for run in runs]
    assert states == ["SUCCEEDED"] * 3, f"at {at}: {states}"
    resumed = times_resumed(lab, runs)
    assert ends(lab.client) == Counter({run: 1 + times for run, times in resumed.items()}), f"at {at}"
    assert all(resumed.values()) == bool(how)
    assert left_behind(lab.client, [run.id for run in runs]) == [], f"at {at}"
    return 2 * calls


@pytest.mark.parametrize("how", ["", "fail until 2"])
@pytest.mark.parametrize("share", [40, pytest.param(1, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_whoever_dies_at_any_call_leaves_nothing_behind(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, share: int, how: str
) -> None:
    monkeypatch.setattr(sweeper, "SUSPICION_MS", 0)
    deaths = Deaths(monkeypatch)
    instants = range(scenario(lab, deaths, -1, how))
    for at in instants[random.randrange(share) :: share]:
        scenario(lab, deaths, at, how)
    print(f"{len(instants)} instants")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_300_kills_at_random_instants(
    own_server: Callable[..., Server], hire: Callable[..., Worker], make_lab: Callable[..., Lab]
) -> None:
    server, kills, seed = own_server(), 300, time.time_ns()
    print(f"seed {seed}")
    chance, lab = random.Random(seed), make_lab(server, make_app(server.url))
    workers = [hire(server.url, concurrency=3) for _ in range(2)]
    steps = [(f"s{n}", lab.sig("proj.requeue", seconds=0.02, give={f"s{n}": n}), -(n // 3)) for n in range(9)]
    runs: list[PipelineRun] = []
    pipelines: dict[int, Pipeline] = {}
    for number in range(kills):
        overlap, at_once = chance.choice(["wait", "allow"]), chance.choice([None, 1, 2])
        pipeline = Pipeline(lab.app, steps, overlap=overlap, at_once=at_once)
        if number % 3 == 0:
            runs.append(occurrence(lab, pipeline, number))
            # A run may fail where a worker dies, and then it is resumed, so runs of the entry may overlap.
            lab.note_run(runs[-1], steps, at_once=at_once, line="nightly", fails=True)
            pipelines[number] = pipeline
        time.sleep(chance.uniform(0, 0.3))  # at a random instant, which is what this is about
        worker = chance.choice([each for each in workers if each.alive])
        children = worker.children()
        if chance.random() < 0.1 or not children:
            worker.kill()
            workers[workers.index(worker)] = hire(server.url, concurrency=3)
        else:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(children), signal.SIGKILL)
        sweep(lab.app)
    deadline = time.monotonic() + 300
    while open_runs := [run for run in runs if not _has_succeeded(run)]:
        assert time.monotonic() < deadline, open_runs
        for run in open_runs:
            if not lab.client.exists(store_of(lab.app).keys(run.id).run):
                # The broker would deliver it again after its visibility timeout, an hour.
                occurrence(lab, pipelines[3 * runs.index(run)], 3 * runs.index(run))
            elif run.status().state == "FAILED":
                note_successes(lab.log, run)
                run.resume()
        for _ in range(10):
            sweep(lab.app)
            time.sleep(0.3)  # between two looks
    while lab.client.zcard("{redbeat-lite}:pipelines"):
        assert time.monotonic() < deadline
        sweep(lab.app)
    starts: Counter[int] = Counter()
    for run in runs:
        assert run.params() == {f"s{n}": n for n in range(9)}
        starts.update(Counter(lab.names(run)).values())
    feed, resumed = ends(lab.client), times_resumed(lab, runs)
    print(f"{len(runs)} runs, resumed {sum(resumed.values())} times; starts of a step: {dict(starts)}")
    assert feed == Counter({run: 1 + times for run, times in resumed.items()}), "one end each time"
    assert left_behind(lab.client, [run.id for run in runs]) == []


def _has_succeeded(run: PipelineRun) -> bool:
    with suppress(PipelineNotFound):  # its start may not have been handled
        return run.status().state == "SUCCEEDED"
    return False
