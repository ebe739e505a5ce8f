"""Workers, beats and those who resume are killed at random while runs fail, are cancelled and meet their deadlines."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from redbeat_lite import Pipeline, PipelineRun
from redbeat_lite.pipeline import sweep
from redbeat_lite.pipeline.pipeline_store import store_of
from tests.harness.workers import Worker
from tests.pipeline.lab import Lab
from tests.pipeline.steps import make_app
from tests.pipeline.test_deaths import ends, left_behind, occurrence, times_resumed
from tests.support.processes import Process
from tests.support.server import Server

KILLS = 300

#: How many runs of those that may not overlap are under way, at one moment.
ONE_AT_A_TIME = """
local running = 0
for _, key in ipairs(KEYS) do
  running = running + (redis.call('HGET', key, 'state') == 'RUNNING' and 1 or 0)
end
return running
"""


@pytest.fixture
def resumer(owned: ExitStack) -> Callable[[str], Process]:
    command = [sys.executable, "-m", "tests.pipeline.resumer"]
    return lambda url: owned.enter_context(Process([*command, url], {}))


def steps(lab: Lab, chance: random.Random) -> list[Any]:
    """Nine steps in three stages, of which some fail the first times."""
    hows = [chance.choice(["", "", "fail until 1", "fail until 3", "die once"]) for _ in range(9)]
    return [
        (f"s{n}", lab.sig("proj.requeue", how=how, seconds=0.02, give={f"s{n}": n}), -(n // 3))
        for n, how in enumerate(hows)
    ]


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_300_kills_while_runs_are_resumed(
    own_server: Callable[..., Server],
    hire: Callable[..., Worker],
    beat: Callable[..., Process],
    resumer: Callable[[str], Process],
    make_lab: Callable[..., Lab],
) -> None:
    server, seed = own_server(), time.time_ns()
    print(f"seed {seed}")
    chance, lab = random.Random(seed), make_lab(server, make_app(server.url))
    conf = '{"redbeat_lite_lease": 1}'

    def new_beat() -> Process:
        return beat("tests.pipeline.steps", url=server.url, PIPE_URL=server.url, PIPE_CONF=conf)

    def new_worker() -> Worker:
        return hire(server.url, concurrency=3, ready=False)

    workers, others = [new_worker() for _ in range(2)], [new_beat(), new_beat(), *map(resumer, [server.url] * 2)]
    makers: list[Callable[[], Process]] = [new_beat, new_beat, *[lambda: resumer(server.url)] * 2]
    runs: list[PipelineRun] = []
    pipelines: list[Pipeline] = []
    lines: list[str] = []
    killed: Counter[str] = Counter()

    def start() -> None:
        limits = {"at_once": chance.choice([None, 1, 2]), "deadline": chance.choice([None, None, 4])}
        revoke = chance.random() < 0.3
        overlap = chance.choice(["wait", "allow"])
        parts = steps(lab, chance)
        pipelines.append(Pipeline(lab.app, parts, overlap=overlap, revoke_siblings=revoke, **limits))  # type: ignore[arg-type]
        runs.append(occurrence(lab, pipelines[-1], len(runs)))
        lab.note_run(runs[-1], parts, at_once=limits["at_once"])
        lab.client.sadd("runs", runs[-1].id)
        if overlap == "wait":
            lines.append(store_of(lab.app).keys(runs[-1].id).run)

    def kill() -> None:
        worker = chance.choice(workers)
        children, what = worker.children(), chance.random()
        if what < 0.2:
            which = chance.randrange(len(others))
            others[which].kill()
            others[which] = makers[which]()
            killed["beat" if which < 2 else "resumer"] += 1
        elif what < 0.26 or not children:
            worker.kill()
            workers[workers.index(worker)] = new_worker()
            killed["worker"] += 1
        else:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(children), signal.SIGKILL)
            killed["child"] += 1

    def look() -> None:
        assert all(process.alive for process in others), [process.output[-2000:] for process in others]
        assert not lines or lab.client.eval(ONE_AT_A_TIME, len(lines), *lines) <= 1, "runs of one entry overlap"

    for number in range(KILLS):
        if number % 4 == 0:
            start()
        for _ in range(chance.randrange(20)):
            time.sleep(chance.uniform(0, 0.1))  # at a random instant, which is what this is about
            look()
        kill()
    lab.client.set("calm", 1)
    deadline = time.monotonic() + 600
    while waiting := [run for run in runs if store_of(lab.app).read(run.id)[0].get("state") != "SUCCEEDED"]:
        assert time.monotonic() < deadline, [
            (run.id, lab.client.hgetall(f"{{redbeat-lite:{run.id}}}:run")) for run in waiting
        ]
        for run in waiting:
            if not lab.client.exists(store_of(lab.app).keys(run.id).run):
                # The broker would deliver it again after its visibility timeout, an hour.
                occurrence(lab, pipelines[runs.index(run)], runs.index(run))
        for _ in range(20):
            time.sleep(0.1)  # between two looks
            look()
    for process in others:
        process.kill()
    while lab.client.zcard("{redbeat-lite}:pipelines"):
        assert time.monotonic() < deadline
        sweep(lab.app)
        time.sleep(0.1)  # between two looks
    print(f"killed: {dict(killed)}")
    check(lab, runs)


def check(lab: Lab, runs: list[PipelineRun]) -> None:
    """Check what the history does not show; it is audited, too."""
    resumed = times_resumed(lab, runs)
    starts: Counter[int] = Counter()
    for run in runs:
        assert run.params() == {f"s{n}": n for n in range(9)}
        starts.update(Counter(lab.names(run)).values())
    asked, did, cancels = (lab.client.get(name) for name in ("resumes asked for", "resumes", "cancels"))
    feed = ends(lab.client)
    print(
        f"{len(runs)} runs, resumed {sum(resumed.values())} times ({did} told, of {asked}), "
        f"cancelled {cancels} times; starts of a step: {dict(sorted(starts.items()))}"
    )
    assert feed == Counter({run: 1 + times for run, times in resumed.items()}), "one end each time"
    assert left_behind(lab.client, list(resumed)) == []
