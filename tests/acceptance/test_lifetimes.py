"""How long messages live: with a real beat and a real worker, none expires that came in time.

The worker takes the messages from the queue, so no audit of the queue fits. The worker's log says which have expired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from redbeat_lite.beat.status import status
from tests.harness.workers import Worker
from tests.support.beats import conf
from tests.support.in_process import MakeApp
from tests.support.processes import Process
from tests.support.server import Server
from tests.support.waiting import eventually

ENTRIES = {
    "often": {"task": "proj.add", "schedule": 0.5},
    "later": {"task": "proj.add", "schedule": 0.5, "options": {"countdown": 6}},
}


@pytest.fixture
def worker(server: Server) -> Iterator[Process]:
    """On a machine whose clock is three seconds ahead."""
    with Worker("tests.acceptance.aheadproj", pool="solo", PROJ_URL=server.url, PROJ_AHEAD=3) as process:
        yield process


def test_a_worker_whose_clock_is_ahead_runs_what_is_sent_and_is_named(
    beat: Callable[..., Process], worker: Process, server: Server, make_app: MakeApp
) -> None:
    beat(PROJ_CONF=conf(schedule=ENTRIES)).says("beat: leading")
    eventually(lambda: len(worker.lines("succeeded in")) >= 20, what="runs, some of which came with an eta")
    assert not worker.lines("Discarding revoked task")
    [ahead] = eventually(status(make_app(broker_url=server.url)).clocks.values, what="the worker's report")
    assert 2.5 < ahead < 3.5
