"""Traces through a real beat and a real worker.

The worker takes the messages from the queue, so no audit of the queue fits. The worker's log has the ids of all runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.harness.workers import Worker
from tests.support.beats import conf
from tests.support.kombus import needs_batches
from tests.support.processes import Process
from tests.support.server import Server
from tests.support.waiting import eventually

ENTRIES = {"often": {"task": "proj.traced", "schedule": 0.2}}
RUN = re.compile(r"proj\.traced\[(\S+)\] succeeded in \S+: '00-([0-9a-f]{32})-[0-9a-f]{16}-01'")


@pytest.fixture
def worker(server: Server) -> Iterator[Process]:
    with Worker("tests.acceptance.proj", pool="solo", PROJ_URL=server.url) as process:
        yield process


@needs_batches
def test_a_worker_finds_a_trace_for_each_run_in_the_request_and_messages_stay_prepared(
    beat: Callable[..., Process], worker: Process
) -> None:
    process = beat(PROJ_CONF=conf(schedule=ENTRIES, traceparent=True))
    eventually(lambda: len(worker.lines("succeeded in")) >= 5, what="runs")
    process.says(r"messages go out in one step with the schedule \(exactly once\), prepared$")
    runs = [RUN.search(line) for line in worker.lines("succeeded in")]
    traces = {run[1]: run[2] for run in runs if run}
    assert len(traces) == len(runs)
    assert traces == {task_id: task_id.replace("-", "") for task_id in traces}
