"""How many commands a turn of the beat costs the server."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Scheduler, Schedules, every
from tests.support.commands import commands, round_trips
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("clock")


def asked_for(count: int, app: Celery, make_beat: MakeBeat, clock: Clock, server: Server) -> list[str]:
    """The commands of a turn in which so many entries are due, all of which have run once before."""
    schedules, beat = Schedules(app), make_beat(app)
    schedules.add_many(Entry(f"e{number}", "add", every(60)) for number in range(count))
    clock.forward(60)
    beat.run_due()
    clock.forward(60)
    with commands(server) as seen:
        beat.run_due()
    return seen


class TestCost:
    @pytest.mark.parametrize("stored", [1, 2000])
    def test_a_tick_with_nothing_due_is_one_command_whatever_is_stored(
        self, schedules: Schedules, inner_beat: Scheduler, server: Server, stored: int
    ) -> None:
        schedules.add_many(Entry(f"e{number}", "add", every(60 + number)) for number in range(stored))
        inner_beat.run_due()
        with commands(server) as seen:
            for _ in range(10):
                inner_beat.run_due()
        assert len(seen) == 10
        assert all(command.startswith("EVALSHA") for command in seen)

    @needs_batches
    @pytest.mark.parametrize("dispatch", ["auto", pytest.param("batch", marks=pytest.mark.soak)])
    def test_a_thousand_due_entries_cost_next_to_nothing_each(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
        server: Server,
        dispatch: str,
    ) -> None:
        seen = asked_for(1000, make_app(redbeat_lite_dispatch=dispatch), make_beat, clock, server)
        assert client.llen("celery") == 2000
        # Two batches of a peek and a commit, and the peek that finds nothing more.
        assert len(seen) == 5

    def test_a_paused_entry_costs_nothing(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, server: Server
    ) -> None:
        schedules.add_many(Entry(f"e{number}", "add", every(1)) for number in range(50))
        for number in range(50):
            schedules.pause(f"e{number}")
        inner_beat.run_due()
        clock.forward(1000)
        with commands(server) as seen:
            inner_beat.run_due()
        assert len(seen) == 1

    @pytest.mark.parametrize(
        ("dispatch", "most"),
        [
            pytest.param("auto", 3, marks=needs_batches),
            pytest.param("batch", 3, marks=needs_batches),
            ("plain", 300),
        ],
    )
    def test_a_result_backend_is_asked_nothing(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        clock: Clock,
        server: Server,
        dispatch: str,
        most: int,
    ) -> None:
        app = make_app(result_backend=server.url, redbeat_lite_dispatch=dispatch)

        @app.task(name="add", shared=False)
        def add() -> None: ...

        seen = asked_for(100, app, make_beat, clock, server)
        assert len(seen) <= most
        assert not any("SUBSCRIBE" in command for command in seen)

    def test_a_name_that_somebody_else_has_is_not_looked_for_in_every_turn(
        self, make_app: MakeApp, make_beat: MakeBeat
    ) -> None:
        app = make_app(beat_schedule={"a": {"task": "config", "schedule": 3600}})
        Schedules(app).add("a", "runtime", 3600)
        beat = make_beat(app)
        beat.run_due()
        beat.run_due()
        with round_trips() as trips:
            beat.run_due()
        assert len(trips) == 1
