"""What became of runs, told by a real beat and a real worker, and read by somebody else.

The audit judges the queue that no worker takes from. What was taken is judged by the record of runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import redis

from redbeat_lite import Schedules, every
from tests.harness.queues import check_messages, queued
from tests.harness.workers import Worker
from tests.support.processes import Process
from tests.support.server import Server
from tests.support.waiting import eventually

CONF = json.dumps({"redbeat_lite_lease": 1})


@pytest.fixture
def worker(server: Server) -> Iterator[Worker]:
    """A worker that records, as its configuration says."""
    conf = json.dumps({"redbeat_lite_lease": 1, "include": ["redbeat_lite.worker"]})
    with Worker("tests.acceptance.proj", pool="solo", PROJ_URL=server.url, PROJ_CONF=conf) as process:
        yield process


def test_what_a_worker_has_ended_is_told_and_what_nobody_takes_waits(
    beat: Callable[..., Process], worker: Worker, schedules: Schedules, client: redis.Redis
) -> None:
    schedules.add("well", "proj.add", every(0.5), args=(1, 2))
    schedules.add("ill", "proj.add", every(0.5), args=("x", 1))
    schedules.add("alone", "proj.add", every(0.5), options={"queue": "elsewhere"})
    beat(PROJ_CONF=CONF)
    eventually(lambda: schedules["well"].last_success_at, what="a success")
    eventually(lambda: schedules["ill"].failures_in_a_row >= 2, what="two failures")
    eventually(lambda: len(schedules.runs("alone")) >= 2, what="what was sent")

    well = schedules.runs("well", outcome="succeeded")[-1]
    assert (well.source, well.attempts, well.error) == ("record", 1, None)
    assert well.worker == worker.name
    assert well.began_at is not None
    # Its message lives for little more than five seconds.
    assert well.began_at - well.scheduled_at < timedelta(seconds=10)
    assert any(run.began_at != run.scheduled_at for run in schedules.runs("well", outcome="succeeded"))
    ill = schedules.runs(outcome="failed")[-1]
    assert (ill.name, ill.worker) == ("ill", well.worker)
    assert str(ill.error).startswith("TypeError: ")
    # A starved beat may be late, and then it leaves runs out.
    sent = [run for run in schedules.runs("alone") if run.outcome != "skipped"]
    assert {(run.outcome, run.source) for run in sent} == {("waiting", "schedule")}
    assert schedules["alone"].last_run is None
    check_messages(queued(client, "elsewhere"))
