"""What a turn of the beat sends of the occurrences that were missed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import redis

from redbeat_lite import Entry, Misfire, Scheduler, Schedules, every
from redbeat_lite.store.leader_store import LeaderStore
from redbeat_lite.store.records import Advance, Term
from tests.beat.moments import after, nominals
from tests.support.frozen import NOW, Clock
from tests.support.kombus import needs_batches
from tests.support.messages import queued

pytestmark = pytest.mark.usefixtures("clock")


class TestMisfires:
    #: Policy -> what is sent of ten missed runs, in seconds after the start of the test.
    SENT: ClassVar[dict[Any, list[float]]] = {
        "coalesce": [100],
        "skip": [],
        "all": [10, 20, 30, 40, 50, 60, 70, 80, 90, 100],
        Misfire("all", limit=4): [10, 20, 30, 40],
        Misfire("all", limit=20): [10, 20, 30, 40, 50, 60, 70, 80, 90, 100],
        Misfire("all", grace=25): [90, 100],
        Misfire("coalesce", grace=5): [],
        Misfire("coalesce", grace=9): [100],
    }

    def test_ten_missed_are_sent_by_policy(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        for misfire in self.SENT:
            schedules.add(str(misfire), "add", every(10), misfire=misfire)
        clock.forward(108)
        inner_beat.run_due()
        assert {misfire: nominals(client, str(misfire)) for misfire in self.SENT} == self.SENT
        clock.forward(2)
        inner_beat.run_due()
        for misfire, expected in self.SENT.items():
            assert nominals(client, str(misfire)) == [*expected, 110]

    @pytest.mark.parametrize("misfire", ["skip", Misfire("coalesce", grace=1), Misfire("all", grace=1)], ids=str)
    def test_jitter_is_no_lateness(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, misfire: Any
    ) -> None:
        schedules.add("a", "add", every(100), jitter=60, misfire=misfire)
        offsets = []
        while len(offsets) < 10:
            clock.forward(inner_beat.run_due())
            inner_beat.run_due()
            if len(queued(client)) > len(offsets):
                offsets.append((clock.now - (queued(client)[-1].scheduled_at or NOW)).total_seconds())
            assert clock.now < after(1200)
        assert nominals(client, "a") == [100 * run for run in range(1, 11)]
        assert max(offsets) > 5

    def test_thousands_missed_under_all_are_sent_in_rounds_and_none_twice(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(1), misfire="all")
        clock.forward(1234)
        inner_beat.run_due()
        assert nominals(client, "a") == list(range(1, 1235))

    @needs_batches
    def test_many_entries_with_much_to_send_do_not_do_it_in_one_step(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        schedules.add_many(Entry(f"e{number}", "add", every(1), misfire="all") for number in range(30))
        inner_beat.run_due()
        clock.forward(600)
        steps, commit = [], LeaderStore.commit

        def noted(store: LeaderStore, term: Term, advances: Sequence[Advance], *args: Any) -> Any:
            steps.append(sum(len(advance.commands) for advance in advances))
            return commit(store, term, advances, *args)

        monkeypatch.setattr(LeaderStore, "commit", noted)
        inner_beat.run_due()
        assert sum(steps) == client.llen("celery") == 30 * 600
        assert max(steps) <= 5500, "one script sends as many messages as entries are due times what each has missed"
