"""The end of a freeze or a pause, and a thaw, as a beat that sleeps between its turns keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import redis

from redbeat_lite import Scheduler, Schedules, at
from tests.support.beats import KEYS
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually


@pytest.fixture
def ticking(inner_beat: Scheduler, client: redis.Redis) -> Iterator[None]:
    """A beat that sleeps between its turns, as it does by itself."""
    over: list[bool] = []

    def loop() -> None:
        while not over:
            inner_beat.tick()

    thread = threading.Thread(target=loop)
    thread.start()
    yield
    over.append(True)
    client.publish(KEYS.wake, "head")
    thread.join()


@pytest.mark.usefixtures("ticking")
def test_the_end_of_a_freeze_and_a_thaw_are_kept_within_a_second(schedules: Schedules, client: redis.Redis) -> None:
    made = schedules.freeze(0.4)
    schedules.add("a", "t", at(datetime.now(UTC) + timedelta(seconds=0.1)))
    with Stopwatch() as watch:
        eventually(lambda: client.llen("celery") == 1, what="it is sent")
    assert datetime.now(UTC) >= made.until
    watch.at_most(0.4 + 1)
    schedules.freeze(1000)
    due = schedules.add("b", "t", at(datetime.now(UTC) + timedelta(seconds=0.05))).next_run_at
    assert due is not None
    eventually(lambda: datetime.now(UTC) > due + timedelta(seconds=0.05), what="it waits")
    assert client.llen("celery") == 1
    with Stopwatch() as watch:
        schedules.thaw()
        eventually(lambda: client.llen("celery") == 2, what="it is sent")
    watch.at_most(1)


@pytest.mark.usefixtures("ticking")
def test_the_end_of_a_pause_is_kept_within_a_second(schedules: Schedules, client: redis.Redis) -> None:
    schedules.add("a", "t", at(datetime.now(UTC) + timedelta(seconds=0.3)))
    until = schedules.pause("a", seconds=0.6).paused_until
    assert until is not None
    with Stopwatch() as watch:
        eventually(lambda: client.llen("celery") == 1, what="it is sent")
    assert datetime.now(UTC) >= until
    watch.at_most(0.6 + 1)
