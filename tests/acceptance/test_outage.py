"""The server is stopped for a while under a leader and a stand-by."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from tests.support.beats import EACH, FAST, INTERVAL, conf, doubled, gaps, leads, stream
from tests.support.messages import queued
from tests.support.processes import Process
from tests.support.server import DURABLE, Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

#: Seconds that the server is away.
OUTAGE = 6.0


def test_beats_outlive_a_restart_of_their_server(
    beat: Callable[..., Process], own_server: Callable[..., Server]
) -> None:
    server = own_server(**DURABLE)
    settings = conf(schedule={"each": EACH, "fast": FAST})
    leader = beat(url=server.url, PROJ_CONF=settings)
    with server.client() as client:
        leads(leader, client)
        other = beat(url=server.url, PROJ_CONF=settings)
        other.says("standing by")
        eventually(lambda: len(stream(client, "each")) >= 5, what="the stream")
    gone = time.monotonic()
    server.stop(kill=True)
    eventually(lambda: time.monotonic() - gone >= OUTAGE, within=OUTAGE + 1, what="the end of the outage")
    server.start()
    with server.client() as client:
        before = client.llen("celery")
        with Stopwatch(leader, other) as watch:
            eventually(lambda: client.llen("celery") > before, within=30, what="the first message after the outage")
        watch.at_most(5)
        eventually(lambda: len(stream(client, "each")) >= (OUTAGE + 2) / INTERVAL, what="the stream")
        # Nothing is lost for the entry that wants each run, one run makes up for all with the other, and nothing is
        # sent twice.
        assert gaps(stream(client, "each")) == {1000 * INTERVAL}
        assert 1000 * (OUTAGE - INTERVAL) < max(gaps(stream(client, "fast"))) < 1000 * (OUTAGE + 5 + watch.withheld)
        assert not doubled(queued(client))
    for process in (leader, other):
        assert process.alive
        process.says("WARNING.*working again after")
        errors = process.lines("ERROR")
        assert 2 <= len(errors) <= 5, errors
        assert all(re.search("trying again in [123] s$", line) for line in errors), "tries grow too rare"
        assert all("cannot use redis://127.0.0.1" in line or "cannot reach the broker" in line for line in errors)
        assert not process.lines("CRITICAL|Traceback")
