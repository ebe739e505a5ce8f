"""Pipelines as entries of the schedule: one run for each occurrence, however often that is emitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from celery.app.task import Task
from celery.exceptions import Reject
from kombu.exceptions import OperationalError

from redbeat_lite import Entry, InvalidEntry, Pipeline, PipelineRun, Schedules, at, cron, every
from tests.harness.workers import Worker
from tests.pipeline.lab import Lab
from tests.support.messages import parse
from tests.support.processes import Process
from tests.support.waiting import eventually, never

END = 20.0


@pytest.fixture
def schedules(lab: Lab) -> Iterator[Schedules]:
    schedules = Schedules(lab.app)
    yield schedules
    schedules.clear()


def test_an_entry_keeps_the_definition(lab: Lab, schedules: Schedules) -> None:
    params = {"n": 2**60, "e": [], "o": {}, "typed": {"__type__": "datetime", "__value__": "no date"}}
    pipeline = Pipeline(lab.app, [("a", lab.sig(give=1), 2), ("b", lab.sig(), 1)], params)
    schedules.add("daily", pipeline, cron("0 2 * * *"))
    stored = schedules["daily"]
    assert stored == Entry("daily", pipeline, cron("0 2 * * *"))
    assert stored.task == "redbeat_lite.start_pipeline"
    assert lab.app.tasks[stored.task].reject_on_worker_lost, "or a run is lost with the child that starts it"
    assert Entry.from_mapping("daily", {"task": pipeline, "schedule": cron("0 2 * * *")}) == stored


def test_a_pipeline_in_an_entry_has_no_other_arguments(lab: Lab) -> None:
    with pytest.raises(InvalidEntry, match=r"entry 'x': kwargs: expected none beside a pipeline"):
        Entry("x", Pipeline(lab.app, [("step", 1)]), every(60), kwargs={"a": 1})


def test_an_occurrence_emitted_twice_is_one_run(lab: Lab, schedules: Schedules, crew: Worker, queue: str) -> None:
    typed = {"__type__": "datetime", "__value__": "no date"}
    pipeline = Pipeline(lab.app, [("a", lab.sig(how="show"), 1)], {"typed": typed, "big": 2**60})
    schedules.add("daily", pipeline, cron("0 2 * * *"), options={"queue": queue})
    run = PipelineRun(lab.app, schedules.run_now("daily"))
    with lab.server.client() as client:
        [message] = client.lrange(queue, 0, -1)
        assert parse(message).id == run.id
        copies = [message.replace(b'"delivery_tag": "', b'"delivery_tag": "%d' % n) for n in range(3)]
        client.lpush("celery", copies[0])
        eventually(lambda: client.exists(f"{{redbeat-lite:{run.id}}}:run"), what="the run")
        # Also long after the guard has forgotten that the first one ran.
        client.delete(f"{{redbeat-lite}}:guard:{run.id}")
        client.lpush("celery", *copies[1:])
    assert run.wait(END).state == "SUCCEEDED"
    assert lab.bodies(run)[0]["params"] == {"typed": typed, "big": 2**60}
    never(lambda: len(lab.names(run)) > 1, during=0.5, what="a second run")


def test_a_real_beat_starts_a_run(lab: Lab, schedules: Schedules, crew: Worker, beat: Callable[..., Process]) -> None:
    pipeline = Pipeline(lab.app, [("a", lab.sig(give={"x": 1}), 2), ("b", lab.sig(), 1)])
    beat("tests.pipeline.steps", url=lab.server.url, PIPE_URL=lab.server.url)
    schedules.add("once", pipeline, at(datetime.now(UTC) + timedelta(seconds=1)))
    name = eventually(lambda: schedules["once"].last_task_id, within=END, what="the occurrence")
    run = PipelineRun(lab.app, name)
    eventually(lambda: lab.client.exists(f"{{redbeat-lite:{name}}}:run"), what="the run")
    assert run.wait(END).state == "SUCCEEDED"
    assert run.params() == {"x": 1}


@pytest.mark.parametrize("name", ["redbeat_lite.start_pipeline", "redbeat_lite.canvas"])
def test_a_start_whose_retry_the_broker_does_not_take_goes_back_to_its_queue(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Found by seed 41100072 of the simulation: Celery dropped the message, and the occurrence started no run."""

    def refuse(*_args: object, **_options: object) -> None:
        raise OperationalError("the broker is away")

    monkeypatch.setattr(Task, "apply_async", refuse)
    task = lab.app.tasks[name]
    task.push_request(id="start", called_directly=False, args=[], kwargs={})
    try:
        began = time.monotonic()
        with pytest.raises(Reject) as caught:
            task.retry(exc=ConnectionError("the server is away"))
    finally:
        task.pop_request()
    assert caught.value.requeue
    assert time.monotonic() - began >= 1.0, "the broker delivers it again at once, so the worker would be busy with it"
