"""Runs of pipelines on the page: which there are, how one stands, going on with one and ending one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Pipeline, PipelineRun, PipelineTask, Schedules, every
from redbeat_lite.pipeline import State
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.pipeline.pipeline_store import store_of
from tests.cli.conftest import Said
from tests.support.stopwatch import Stopwatch
from tests.web.conftest import Visitor
from tests.web.test_pages import recorded


class Runs:
    """Starts runs, and does the work of a worker for them."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        if "step" in app.tasks:
            return

        @app.task(name="step", base=PipelineTask, shared=False)
        def step(params: dict[str, Any]) -> None: ...

    def start(self, *steps: tuple[str, int], run_id: str = "r1", **options: Any) -> PipelineRun:
        pipeline = Pipeline(self.app, [(name, "step", priority) for name, priority in steps], **options)
        return pipeline.start(run_id)

    def begin(self, run: PipelineRun, number: int, renew_ms: int = 0) -> Ref:
        step = run.status().steps[number]
        ref = Ref(run.id, number, step.round, 0, "token")
        word, _ = store_of(self.app).begin(ref, again=False, worker="celery@w1", renew_ms=renew_ms)
        assert word == "run"
        return ref

    def end(self, run: PipelineRun, number: int, how: str = "SUCCEEDED", result: str = "{}") -> None:
        store_of(self.app).complete(self.begin(run, number), how, result)


@pytest.fixture
def runs(app: Celery, client: redis.Redis) -> Iterator[Runs]:
    yield Runs(app)
    client.delete("{redbeat-lite}:pipelines", "{redbeat-lite}:ended-runs")


def test_runs_are_listed_with_how_far_they_are(
    visitor: Visitor, runs: Runs, client: redis.Redis, run_cli: Callable[..., Said]
) -> None:
    assert "No run is recorded." in visitor.get("pipelines").text
    going, bad = runs.start(("load", 2), ("clean", 1), ("index", 1), run_id="going"), runs.start(("a", 1), run_id="bad")
    runs.end(going, 0)
    runs.end(going, 1)
    runs.end(bad, 0, "FAILED", "KeyError: 7")
    PipelineRun(visitor.site.parts.app, runs.start(("a", 1), run_id="off").id).cancel()
    client.hset("{redbeat-lite:wrong}:run", mapping={"state": "RUNNING", "sizes": "x"})
    client.set("{redbeat-lite:other}:run", "text", px=60_000)
    client.pexpire("{redbeat-lite:wrong}:run", 60_000)
    client.zadd("{redbeat-lite}:pipelines", {"0:wrong": 1, "0:other": 2, "0:gone": 3})
    seen = visitor.get("pipelines")
    assert re.findall(r"pipeline\?id=(\w+)", seen.html) == ["going", "off", "bad"]
    assert "▸ running 2/2 2 of 3" in seen.text
    assert "✗ failed 1/1 0 of 1 KeyError: 7" in seen.text
    for state, left in {
        "running": ["going"],
        "failed": ["bad"],
        "x": ["going", "off", "bad"],
    }.items():
        seen = visitor.get("pipelines", state=state)
        assert re.findall(r"pipeline\?id=(\w+)", seen.html) == left
        [command] = re.findall("redbeat (pipelines list.*)</code>", seen.html)
        assert [each["id"] for each in run_cli(visitor.site.parts.app, *command.split(), "--json").json] == left


def test_a_run_has_its_stages_and_its_steps_on_its_page(visitor: Visitor, runs: Runs) -> None:
    run = runs.start(("load", 2), ("clean", 1), ("index", 1), deadline=3600)
    runs.end(run, 0)
    store_of(runs.app).change(runs.begin(run, 1), percent=45, note="reading x.csv")
    seen = visitor.get("pipeline", id="r1")
    for words in (
        "Stage Done 1 1 of 1 2 0 of 2",
        "deadline",
        "done 48 %",
    ):
        assert words in seen.text
    assert re.search(r"2 clean ▸ running 45 % [-0-9: +]+ celery@w1 reading x.csv", seen.text)
    assert "redbeat pipelines show r1" in seen.text
    runs.end(run, 2, "FAILED", "KeyError: 7")
    seen = visitor.get("pipeline", id="r1")
    assert "✗ failed index: KeyError: 7" in seen.text
    assert "fails, if" not in seen.text


def test_a_run_that_nobody_knows_is_404_and_one_whose_record_is_gone_says_so(
    visitor: Visitor, runs: Runs, client: redis.Redis
) -> None:
    assert (visitor.get("pipeline", id="r1").status, visitor.get("pipeline", id="{x}").status) == (404, 400)
    runs.end(runs.start(("a", 1)), 0)
    client.delete("{redbeat-lite:r1}:run")
    assert "Its steps are no longer recorded" in visitor.get("pipeline", id="r1").text


def test_a_run_that_failed_is_resumed(visitor: Visitor, look: Callable[..., Visitor], runs: Runs) -> None:
    run = runs.start(("load", 2), ("clean", 1))
    runs.end(run, 0)
    runs.end(run, 1, "FAILED", "x")
    assert "redbeat pipelines resume r1" in visitor.get("pipeline", id="r1").text
    assert "<form" not in look("pause", "edit").get("pipeline", id="r1").html
    assert visitor.post("pipelines-resume", id="r1").location == "pipeline?id=r1&did=pipelines-resume"
    assert "The run goes on" in visitor.get("pipeline", id="r1", did="pipelines-resume").text
    assert [step.state for step in run.status().steps] == ["SUCCEEDED", "WAITING"]
    assert visitor.post("pipelines-resume", id="r1").location == "pipeline?id=r1"  # it goes on already
    runs.end(run, 1)
    refused = visitor.post("pipelines-resume", id="r1")
    assert (refused.status, "has succeeded" in refused.text) == (400, True)
    assert "<form" not in visitor.get("pipeline", id="r1").html


def test_a_run_is_cancelled(visitor: Visitor, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[Any] = []
    monkeypatch.setattr(runs.app.control, "revoke", lambda ids, **options: killed.append((ids, options)))
    run, other = runs.start(("load", 1)), runs.start(("load", 1), run_id="r2")
    runs.begin(other, 0)
    assert "redbeat pipelines cancel r1" in visitor.get("pipeline", id="r1").text
    assert visitor.post("pipelines-cancel", id="r1", note="Why").location == "pipeline?id=r1&did=pipelines-cancel"
    assert "pipeline cancelled r1 ada (web) Why" in visitor.get("changes").text
    assert (run.status().state, killed) == (State.ABORTED, [])
    assert visitor.post("pipelines-cancel", id="r1").location == "pipeline?id=r1"
    assert visitor.post("pipelines-cancel", id="r2", terminate="on").status == 303
    [(ids, options)] = killed
    assert (ids, options["terminate"]) == ([other.status().steps[0].task_id], True)
    assert visitor.post("pipelines-cancel", id="r9").status == 404


def test_a_run_of_many_steps_is_told_in_brief_and_quickly(visitor: Visitor, runs: Runs) -> None:
    run = runs.start(*((f"s{number}", 2) for number in range(999)), ("last", 1), at_once=501)
    runs.end(run, 500, "FAILED", "KeyError: 7")
    seen = visitor.get("pipeline", id="r1")
    for words in ("100 of 1000: those that failed", "Note 1 s500 ✗ failed", "0 of 999"):
        assert words in seen.text
    with Stopwatch() as watch:
        for _ in range(5):
            visitor.get("pipeline", id="r1")
    watch.at_most(5 * 0.2)


def test_the_stages_around_the_present_one_are_shown(visitor: Visitor, runs: Runs) -> None:
    run = runs.start(*((f"s{number}", 20 - number) for number in range(20)))
    for number in range(8):
        runs.end(run, number)
    seen = visitor.get("pipeline", id="r1").html
    stages = re.findall(r"<tr><td>(\d+)</td><td><progress [^>]*></progress> (\d) of 1</td>", seen)
    assert stages == [(str(number), str(int(number < 9))) for number in range(4, 15)]


def test_the_runs_of_an_entry_lead_to_those_of_its_pipeline(visitor: Visitor, runs: Runs, client: redis.Redis) -> None:
    schedules = Schedules(runs.app)
    schedules.add("nightly", Pipeline(runs.app, [("a", "step", 1)]), every(3600))
    schedules.add("plain", "add", every(3600))
    for name in ("nightly", "plain"):
        recorded(client, schedules, name, "succeeded")
    [run] = schedules.runs("nightly")
    assert f'href="pipeline?id={run.task_id}"' in visitor.get("entry", name="nightly").html
    assert "pipeline?id=" not in visitor.get("entry", name="plain").html + visitor.get("runs").html
