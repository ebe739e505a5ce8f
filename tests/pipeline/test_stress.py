"""Pipelines under double deliveries, double completions and sudden deaths: in order, right, and all of them end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from redbeat_lite import PipelineRun
from redbeat_lite.pipeline import sweep
from tests.harness.workers import Worker
from tests.pipeline.lab import Lab
from tests.pipeline.steps import added_by, make_app
from tests.support.server import Server
from tests.support.waiting import eventually

#: Steps by stage: thirteen.
STAGES = (1, 4, 3, 2, 3)


def serial(params: dict[str, Any]) -> dict[str, Any]:
    """The params of a run whose steps are done one after the other."""
    params = dict(params)
    for stage, size in enumerate(STAGES):
        begun = dict(params)
        for step in range(size):
            params.update(added_by(f"s{stage}.{step}", begun))
    return params


def run_all(
    lab: Lab, count: int, workers: list[Worker], hire: Callable[[], Worker], *, within: float
) -> list[PipelineRun]:
    """Start so many pipelines and keep the workers up until all of them have ended."""
    runs = []
    for number in range(count):
        steps = [
            (f"s{stage}.{step}", lab.app.tasks["proj.add"].s(f"s{stage}.{step}"), -stage)
            for stage, size in enumerate(STAGES)
            for step in range(size)
        ]
        runs.append(lab.start(*steps, params={"number": number, "big": 2**60 + number, "none": []}))
    open_runs, deadline = list(runs), time.monotonic() + within
    while open_runs:
        assert time.monotonic() < deadline, f"{len(open_runs)} runs have not ended: {open_runs[0].status()}"
        sweep(lab.app)
        for index, worker in enumerate(workers):
            if not worker.alive:
                workers[index] = hire()
        open_runs = [run for run in open_runs if not run.status().ended]
        time.sleep(0.1)  # between two looks; nothing depends on it
    return runs


def check(lab: Lab, runs: list[PipelineRun]) -> Counter[int]:
    """Check every run, beside the audit of the history; returns how many steps started how often."""
    counts: Counter[int] = Counter()
    for number, run in enumerate(runs):
        status = run.status()
        assert status.state == "SUCCEEDED", status
        assert run.params() == serial({"number": number, "big": 2**60 + number, "none": []})
        counts.update(Counter(lab.names(run)).values())
    return counts


@pytest.mark.parametrize("count", [3, pytest.param(15, marks=pytest.mark.soak)])
def test_what_comes_twice_counts_once(
    own_server: Callable[..., Server], hire: Callable[..., Worker], make_lab: Callable[..., Lab], count: int
) -> None:
    server = own_server()
    lab = make_lab(server, make_app(server.url))
    doubling = {"PIPE_DOUBLE": "1", "concurrency": 2}
    workers = [hire(server.url, pool=pool, ready=False, **doubling) for pool in ("prefork", "threads")]
    for worker in workers:
        worker.ready()  # both take part
    runs = run_all(lab, count, workers, lambda: hire(server.url, **doubling), within=50)
    assert check(lab, runs) == {1: count * sum(STAGES)}, "no step may start twice where nothing dies"
    assert len({step.worker for run in runs for step in run.status().steps}) == 2
    # A worker takes a run off this list just after it has recorded the end of the run.
    eventually(lambda: not lab.client.exists("{redbeat-lite}:pipelines"), what="nothing left for the sweeper")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_who_dies_is_replaced(
    own_server: Callable[..., Server], hire: Callable[..., Worker], make_lab: Callable[..., Lab]
) -> None:
    server = own_server()
    lab = make_lab(server, make_app(server.url))
    deadly = {"PIPE_DOUBLE": "1", "PIPE_KILL": "0.02", "PIPE_KILL_DISPATCH": "0.03", "concurrency": 2}
    workers = [hire(server.url, **deadly, ready=False) for _ in range(2)]
    runs = run_all(lab, 150, workers, lambda: hire(server.url, **deadly, ready=False), within=500)
    counts = check(lab, runs)
    print(f"starts of a step: {dict(counts)}")
    assert max(counts) > 1, "nothing died, so nothing was tested"
