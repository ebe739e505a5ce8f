"""What becomes of a pipeline's run is what becomes of the run of its entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from redbeat_lite import Expect, Pipeline, PipelineRun, Run, Schedules, every
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries.run import Fate
from redbeat_lite.operate.why import explain
from redbeat_lite.operate.why_case import Explanation, gather
from redbeat_lite.pipeline.pipeline_store import store_of
from redbeat_lite.pipeline.sweeper import reconcile
from redbeat_lite.runs.run_store import RunKeys, RunStore
from tests.pipeline.lab import Lab
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("crew")

END = 20.0


@pytest.fixture
def schedules(lab: Lab) -> Iterator[Schedules]:
    schedules = Schedules(lab.app)
    yield schedules
    schedules.clear()


def add(lab: Lab, schedules: Schedules, *steps: Any, **options: Any) -> str:
    """An entry whose name is its own; of others something is still recorded."""
    overlap = options.pop("overlap", "allow")
    name = f"entry-{lab.client.incr('entries')}"
    schedules.add(name, Pipeline(lab.app, steps, overlap=overlap), every(3600), **options)
    return name


def started(lab: Lab, schedules: Schedules, name: str) -> PipelineRun:
    run = PipelineRun(lab.app, schedules.run_now(name))
    eventually(lambda: lab.client.exists(store_of(lab.app).keys(run.id).run), within=END, what="the run")
    return run


def why(lab: Lab, run: Run) -> Explanation:
    case = gather(lab.app, run.name, datetime.now(UTC), UTC)
    return explain(replace(case, runs=(run,)), run.scheduled_at)


def recorded(schedules: Schedules, name: str, outcome: str) -> Run:
    """The last run of an entry, once it has come to this."""
    found = eventually(lambda: [run for run in schedules.runs(name) if run.outcome == outcome], what=outcome)
    assert found
    return found[0]


def test_it_runs_until_the_pipeline_has_ended(lab: Lab, schedules: Schedules) -> None:
    name = add(lab, schedules, ("a", lab.sig(how="until"), 1), expect=Expect(finish_within=600))
    run = started(lab, schedules, name)
    lab.started(run, "a")
    runs_since = datetime.now(UTC)
    guard = f"{{redbeat-lite}}:guard:{run.id}"
    eventually(lambda: lab.client.hget(guard, "state") == "done", what="the end of the task that starts it")
    [found] = schedules.runs(name)
    assert (found.outcome, found.task_id) == ("running", run.id)
    deadline = f"finish|{to_ms(found.scheduled_at)}|{name}"
    lab.client.zadd(RunKeys("redbeat-lite").deadlines, {deadline: 2**52})
    lab.go(run)
    assert run.wait(END).state == "SUCCEEDED"
    found = recorded(schedules, name, "succeeded")
    status = run.status()
    assert status.created_at is not None
    assert status.ended_at is not None
    # It counts from its turn, which comes after it was created and before its first step runs.
    assert found.seconds is not None
    shortest, longest = (status.ended_at - began for began in (runs_since, status.created_at))
    assert shortest.total_seconds() <= found.seconds <= longest.total_seconds() + 0.001
    assert found.attempts == 1
    assert schedules[name].last_run == found
    assert lab.client.zscore(RunKeys("redbeat-lite").deadlines, deadline) is None, "that it has ended in time is known"
    reconcile(store_of(lab.app), run.id)
    assert len(schedules.runs()) == len({each.task_id for each in schedules.runs()}), "told twice, it counts once"


def test_a_failure_is_one_of_the_entry_until_the_run_is_resumed(lab: Lab, schedules: Schedules) -> None:
    name = add(lab, schedules, ("bad", lab.sig(how="fail once"), 1))
    run = started(lab, schedules, name)
    run.wait(END)
    found = recorded(schedules, name, "failed")
    assert found.error == "bad: ValueError: as asked"
    assert schedules[name].failures_in_a_row == 1
    assert why(lab, found).verdict.startswith(f"{name!r} ran for ")
    key = store_of(lab.app).keys(run.id).run
    lab.client.hset(key, "created", int(lab.client.hget(key, "created")) - 86_400_000)  # as if it had failed long ago
    assert run.resume()
    assert run.wait(END).state == "SUCCEEDED"
    again = recorded(schedules, name, "succeeded")
    assert again.task_id == run.id
    assert again.seconds is not None
    assert again.seconds < 3600, "since it was resumed"
    assert schedules[name].failures_in_a_row == 0


def test_a_run_that_is_cancelled_was_revoked(lab: Lab, schedules: Schedules) -> None:
    name = add(lab, schedules, ("a", lab.sig(how="until"), 1))
    run = started(lab, schedules, name)
    run.cancel()
    recorded(schedules, name, "revoked")
    lab.go(run)


def test_a_run_whose_turn_did_not_come_was_left_out(lab: Lab, schedules: Schedules) -> None:
    name = add(lab, schedules, ("a", lab.sig(how="until"), 1), overlap="skip")
    first = started(lab, schedules, name)
    lab.started(first, "a")  # and stands in front of the line
    started(lab, schedules, name)
    found = recorded(schedules, name, "left out")
    told = why(lab, found)
    assert told.verdict.startswith(f"{name!r} did not run for ")
    assert told.verdict.endswith(f"run {first.id} of its entry has not ended.")
    lab.go(first)
    first.wait(END)


def test_a_server_that_is_away_leaves_the_end_to_the_sweeper(
    lab: Lab, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis import ConnectionError

    name = add(lab, schedules, ("a", lab.sig(how="until"), 1))
    run = started(lab, schedules, name)
    lab.started(run, "a")  # Whoever starts the run puts it into the index once more before it publishes a step.

    def away(self: RunStore, fates: list[Fate]) -> Any:
        raise ConnectionError("away")

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "record", away)
        assert run.cancel()
    assert run.status().state == "ABORTED"
    lab.client.zadd("{redbeat-lite}:pipelines", {f"0:{run.id}": 0})
    lab.swept(run)
    recorded(schedules, name, "revoked")
    lab.go(run)
