"""A beat that runs for long, or waits for its server for long, does neither grow nor give up."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from celery import Celery

from redbeat_lite import Scheduler, Schedules, every
from redbeat_lite.beat.outage import Outage
from tests.support.processes import ROOT, run_python
from tests.support.server import Server
from tests.support.waiting import eventually

#: Kilobytes that the allocator may make of the same work.
SLACK = 2048


def growth(server: Server, ticks: int, cuts: int) -> int:
    """Kilobytes by which the process grew after the first tenth of its way."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ("-m", "tests.faults.ticks", server.url, str(ticks), str(cuts))
    ended = run_python(*words, env=env, within=500)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    rows = [[int(word) for word in line.split()] for line in lines]
    print(*lines, sep="\n")
    assert rows[-1][0] == ticks
    assert rows[-1][1] > rows[0][1] > 0, "nothing was sent on the way"
    return rows[-1][2] - rows[0][2]


def test_memory_is_flat_over_many_ticks_and_lost_connections(server: Server) -> None:
    assert growth(server, 2_500, cuts=50) < SLACK // 2


def test_a_server_may_be_away_for_any_time(
    own_server: Callable[..., Server], app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    server = own_server()
    app.conf.update(broker_url=server.url)
    Schedules(app).add("e", "add", every(0.05), expires=None)
    beat = Scheduler(app)
    beat._parts.wakeup.wait = lambda *args, **kwargs: None  # type: ignore[method-assign]  # turn after turn
    eventually(lambda: beat.tick() is not None and beat.leader.holds_lease, what="a leader")
    server.stop(kill=True)
    pauses: list[float] = []

    def at_once(exc: Exception) -> float:
        pauses.append(Outage.handle(beat._parts.outage, exc))
        return 0.0

    beat._parts.outage.handle = at_once  # type: ignore[method-assign]  # turn after turn
    for _ in range(700):  # at a try every three seconds, more than half an hour
        beat.tick()
    assert len(pauses) > 600
    assert max(pauses) == pauses[-1] == 3
    server.start()
    eventually(lambda: beat.tick() is not None and beat.leader.holds_lease, what="a leader again")
    beat.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_memory_is_flat_over_100_000_ticks_and_1_000_lost_connections(server: Server) -> None:
    assert growth(server, 100_000, cuts=1000) < SLACK
