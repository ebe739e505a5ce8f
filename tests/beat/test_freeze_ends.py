"""The end of a freeze, and a thaw, as a beat that sleeps between its turns keeps them."""

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
@pytest.mark.parametrize("name", ["a", "*"])
def test_the_end_and_a_thaw_are_kept_within_a_second(schedules: Schedules, client: redis.Redis, name: str) -> None:
    made = schedules.freezes.add(name, seconds=0.4)
    schedules.add("a", "t", at(datetime.now(UTC) + timedelta(seconds=0.1)))
    with Stopwatch() as watch:
        eventually(lambda: client.llen("celery") == 1, what="it is sent")
    assert datetime.now(UTC) >= made.until
    watch.at_most(0.4 + 1)
    made = schedules.freezes.add(name.replace("a", "b"), seconds=1000)
    schedules.add("b", "t", at(datetime.now(UTC) + timedelta(seconds=0.05)))
    due = (made.until if name == "a" else schedules["b"].next_run_at, datetime.now(UTC) + timedelta(seconds=0.05))
    eventually(lambda: schedules["b"].next_run_at == due[0] and datetime.now(UTC) > due[1], what="it waits")
    with Stopwatch() as watch:
        schedules.freezes.thaw(made.id)
        eventually(lambda: client.llen("celery") == 2, what="it is sent")
    watch.at_most(1)
