"""The recorder: what it does while a server is there, is away, and comes back."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redbeat_lite.entries.run import Attempt, Fate
from redbeat_lite.runs import recorder as module
from redbeat_lite.runs.recorder import Recorder
from redbeat_lite.runs.run_store import RunStore
from redbeat_lite.settings import Settings
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

NOW = int(time.time() * 1000)


def fate(run: int = 0, name: str = "entry") -> Fate:
    return Fate(Attempt(name, NOW + run, f"id{run}", 0, 5_000), "succeeded", time.monotonic())


@pytest.fixture
def recorder(proxy: Proxy) -> Recorder:
    return Recorder(Settings(url=f"redis://127.0.0.1:{proxy.port}/0", key_prefix="runs"))


@pytest.fixture
def recorded(server: Server) -> Iterator[Callable[[], int]]:
    """How many rows there are."""
    with server.client() as client:
        store = RunStore(client, "runs")
        yield lambda: int(client.zcard(store.keys.rows("entry")))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO)
    return lambda: [each.getMessage() for each in caplog.records if "ends of runs" in each.getMessage()]


def test_what_is_told_is_written_soon(recorder: Recorder, recorded: Any, lines: Any) -> None:
    for run in range(300):
        recorder.enqueue(fate(run))
    eventually(lambda: recorded() == 300, what="all rows")
    recorder.close()
    assert not lines()


def test_what_is_told_at_the_end_is_written_before_it(recorder: Recorder, recorded: Any) -> None:
    recorder.enqueue(fate())
    recorder.close()
    assert recorded() == 1


def test_a_server_that_is_away_holds_nobody_up_and_gets_all_of_it_later(
    recorder: Recorder, recorded: Any, proxy: Proxy, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    proxy.refuse()
    with Stopwatch() as watch:
        for run in range(15):
            recorder.enqueue(fate(run))
    watch.at_most(0.2)
    eventually(lines, what="the line")
    recorder.enqueue(fate(15))
    assert len(lines()) == 1
    assert "ends of runs were not recorded, or not in full, and 10 wait: ConnectionError" in lines()[0]
    proxy.heal()
    eventually(lambda: recorded() == 10, what="those that waited")


def test_a_process_does_not_wait_long_for_a_server_that_hangs(recorder: Recorder, proxy: Proxy, lines: Any) -> None:
    proxy.black_hole = True
    recorder.enqueue(fate())
    with Stopwatch() as watch:
        recorder.close()
    watch.at_most(module.END + 0.3)
    assert len(lines()) == 1


def test_what_cannot_be_written_is_told_and_holds_nothing_up(
    recorder: Recorder, recorded: Any, lines: Any, server: Server
) -> None:
    with server.client() as client:
        client.set("{runs}:runs:of:foreign", "x")
    for each in (fate(0, "foreign"), fate(1, "\ud800"), fate(2)):
        recorder.enqueue(each)
        eventually(lambda: not recorder._fates, what="it has been tried")
    eventually(lambda: recorded() == 1, what="the other")
    assert len(lines()) == 1
    assert "WRONGTYPE" in lines()[0]


def test_why_is_told_where_only_too_many_came(
    recorder: Recorder, lines: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 1)
    proxy.black_hole = True
    for run in range(2):
        recorder.enqueue(fate(run))
    recorder.close()
    assert lines()[-1].endswith("1 wait: the server has not answered in time")


def test_a_child_leaves_what_its_parent_was_told_to_the_parent(recorder: Recorder, recorded: Any, proxy: Proxy) -> None:
    proxy.refuse()
    recorder.enqueue(fate())
    child = os.fork()
    if not child:
        began = time.monotonic()
        recorder.close()
        os._exit(time.monotonic() - began > module.END / 2)
    assert os.waitpid(child, 0)[1] == 0
    proxy.heal()
    eventually(lambda: recorded() == 1, what="the row")
