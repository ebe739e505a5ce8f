"""What a turn of the beat leaves behind for the record of runs."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Scheduler, Schedules, every
from redbeat_lite.runs.run import HISTORY_HEADER
from tests.beat.moments import nominals
from tests.beat.ways import Setup
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.messages import of_entry

pytestmark = pytest.mark.usefixtures("clock")


def sent(schedules: Schedules, name: str) -> list[float]:
    """What the state of an entry says was sent, in seconds after the start of the test, oldest first."""
    return [ms / 1000 - NOW.timestamp() for ms in reversed(schedules[name].known_state.sent)]


def turns(beat: Scheduler, clock: Clock, *seconds: float) -> None:
    """Let time pass, and the beat take a turn after each of these."""
    for each in seconds:
        clock.forward(each)
        beat.run_due()


class TestWhatWasSent:
    def test_the_state_tells_the_last_that_were_sent_whatever_the_way(
        self, setup: Setup, clock: Clock, client: redis.Redis
    ) -> None:
        setup.schedules.add("a", "add", every(10), misfire="all", history=5)
        turns(setup.beat, clock, 10, 30, 10)
        assert sent(setup.schedules, "a") == nominals(setup.broker, "a") == [10, 20, 30, 40, 50]
        ids = [message.id for message in of_entry(setup.broker, "a")]
        assert setup.schedules["a"].last_task_id == ids[-1]
        clock.forward(10)
        setup.crash_before_the_commit()
        setup.restart()
        turns(setup.beat, clock, 0, 10)
        assert sent(setup.schedules, "a") == [30, 40, 50, 60, 70]

    @pytest.mark.parametrize(("own", "kept"), [(None, 3), (0, 0), (1, 1), (7, 7)])
    def test_so_many_as_the_entry_says_and_else_the_app(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, own: int | None, kept: int
    ) -> None:
        app = make_app(redbeat_lite_history=3)
        Schedules(app).add("a", "add", every(10), history=own)
        turns(make_beat(app), clock, *(10 for _ in range(9)))
        assert sent(Schedules(app), "a") == [10.0 * run for run in range(10 - kept, 10)]

    def test_another_history_holds_from_the_next_run_on(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock
    ) -> None:
        schedules.add("a", "add", every(10))
        turns(inner_beat, clock, 10, 10, 10)
        schedules.update("a", history=2)
        assert sent(schedules, "a") == [10, 20, 30]
        turns(inner_beat, clock, 10)
        assert sent(schedules, "a") == [30, 40]
        schedules.update("a", history=0)
        turns(inner_beat, clock, 10)
        assert sent(schedules, "a") == []
        schedules.update("a", history=None)
        turns(inner_beat, clock, 10)
        assert sent(schedules, "a") == [60]

    def test_what_was_left_out_was_not_sent(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("locked", "add", every(10), ("x",), once=True, misfire="all")
        schedules.add("late", "add", every(10), misfire="coalesce")
        turns(inner_beat, clock, 10, 10)
        [lock] = client.keys("*once:lock*")
        turns(inner_beat, clock, 35)
        client.delete(lock)
        turns(inner_beat, clock, 10)
        assert sent(schedules, "locked") == nominals(client, "locked") == [10, 60]
        assert sent(schedules, "late") == nominals(client, "late") == [10, 20, 50, 60]


class TestHeader:
    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    def test_only_messages_of_entries_that_say_carry_how_many_are_remembered(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis, dispatch: str
    ) -> None:
        app: Celery = make_app(redbeat_lite_dispatch=dispatch, redbeat_lite_history=9)
        given: dict[str, Any] = {"none": None, "off": 0, "seven": 7}
        schedules = Schedules(app)
        schedules.add_many(Entry(name, "add", every(10), history=history) for name, history in given.items())
        turns(make_beat(app), clock, 10, 10)
        schedules.run_now("none")
        schedules.run_now("seven")
        for name, history in given.items():
            found = [message.headers.get(HISTORY_HEADER, "not there") for message in of_entry(client, name)]
            assert set(found) == {"not there" if history is None else history}, name
            assert len(found) == 2 + (name != "off")
