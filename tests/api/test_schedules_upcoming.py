"""The runs to come are told as the beat then does them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from random import Random
from typing import Any

import pytest
import redis

from redbeat_lite import Entry, InvalidEntry, Misfire, Scheduler, Schedules, Upcoming, at, cron, every, rrule
from redbeat_lite._base.clock import wall_ms
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries import lifecycle
from redbeat_lite.entries.changes import Stored
from redbeat_lite.entries.preview import upcoming_runs
from redbeat_lite.operate.coming_runs import runs_between
from redbeat_lite.store.store import Store
from tests.support.cases import together
from tests.support.commands import round_trips
from tests.support.frozen import NOW, Clock
from tests.support.messages import queued

pytestmark = pytest.mark.usefixtures("clock")


def all_that_fires(beat: Scheduler, until: datetime, clock: Clock, client: redis.Redis) -> list[Upcoming]:
    """What a beat sends until then, in the order that it does."""
    fired = []
    while clock.now <= until:
        wait = beat.run_due()
        for message in queued(client):
            fired.append(Upcoming(clock.now, message.entry or "", message.scheduled_at or NOW))
        client.delete("celery")
        clock.forward(wait)
    return fired


def assert_the_firsts_are_of(expected: list[Upcoming], schedules: Schedules, until: datetime) -> None:
    """``soonest()`` tells the first occurrence of each entry among these, with the entry."""
    found = schedules.soonest(until)
    assert sorted(each for each, _ in found) == sorted({each.name: each for each in expected[::-1]}.values())
    assert [each.at for each, _ in found] == sorted(each.at for each, _ in found)
    assert all(each.name == entry.name and entry.version == 1 for each, entry in found)


class TestUpcoming:
    def test_misses_none_that_slips_to_a_page_already_read(
        self, schedules: Schedules, monkeypatch: pytest.MonkeyPatch, client: redis.Redis
    ) -> None:
        """As beside a beat that moves on hundreds in a second, and some of them to where is read next."""
        schedules.add_many(Entry(f"e{n:03}", "add", at(NOW + timedelta(seconds=n + 1))) for n in range(200))
        moves = [{f"e{n:03}": (NOW.timestamp() + at_) * 1000 for n in range(8)} for at_ in (17.5, 9999)]
        page = Store.page

        def moved(store: Store, offset: int, limit: int) -> list[Stored]:
            found = page(store, offset, limit)
            if moves:
                client.zadd("{redbeat-lite}:due", moves.pop(0))
            return found

        monkeypatch.setattr(Store, "page", moved)
        assert [each.name for each in schedules.upcoming(NOW + timedelta(hours=1))] == [f"e{n:03}" for n in range(200)]

    def test_an_entry_that_is_read_again_after_it_has_fired_comes_once(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its new due time has moved it from the first page to the second one."""
        schedules.add("a", "add", every(10))
        clock.forward(10)

        def ranked(store: Store) -> Iterator[Stored]:
            yield from store.read(["a"])
            inner_beat.run_due()
            yield from store.read(["a"])

        monkeypatch.setattr(Store, "ranked", ranked)
        found = schedules.upcoming(NOW + timedelta(seconds=60))
        assert [run.at for run in found] == [NOW + timedelta(seconds=10 * number) for number in range(1, 7)]

    def test_is_what_the_beat_then_does(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add_many(
            [
                Entry("jittered", "add", every(60), jitter=25.5),
                Entry("cron", "add", cron("*/7 * * * *"), jitter=90),
                Entry("berlin", "add", cron("30 13 * * *", tz="Europe/Berlin")),
                Entry("late", "add", every(45), start_at=NOW + timedelta(minutes=5)),
                Entry("short", "add", every(30), end_at=NOW + timedelta(seconds=100)),
                Entry("thrice", "add", every(40), max_runs=3),
                Entry("once", "add", at(NOW + timedelta(seconds=77))),
                Entry("paused", "add", every(10)),
                Entry("off", "add", every(10), enabled=False),
            ]
        )
        schedules.pause("paused")
        until = NOW + timedelta(minutes=30)
        expected = schedules.upcoming(until)
        assert expected == sorted(expected)
        assert_the_firsts_are_of(expected, schedules, until)
        fired = all_that_fires(inner_beat, until, clock, client)
        assert fired[: len(expected)] == expected
        assert {each.name for each in expected} == {"jittered", "cron", "berlin", "late", "short", "thrice", "once"}
        assert sum(each.at != each.nominal for each in expected) > 20

    @pytest.mark.parametrize("misfire", ["coalesce", "skip", "all", Misfire("all", limit=2), Misfire("all", grace=25)])
    def test_after_an_outage_is_what_the_beat_then_does(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, misfire: Misfire
    ) -> None:
        schedules.add("a", "add", every(10), misfire=misfire)
        schedules.add("b", "add", every(60), jitter=30, misfire=misfire)
        clock.forward(129)
        end = clock.now + timedelta(seconds=60)
        expected = schedules.upcoming(end)
        assert_the_firsts_are_of(expected, schedules, end)
        fired = all_that_fires(inner_beat, end, clock, client)
        assert expected == sorted(fired)

    @pytest.mark.parametrize(
        ("schedule", "misfire", "later", "first"),
        [
            pytest.param(every(3600), "skip", 7323, 2, id="skip"),
            pytest.param(every(3600), Misfire("all", grace=300), 7323, 2, id="a grace"),
            pytest.param(rrule("FREQ=HOURLY"), "coalesce", 11_400, 2, id="walked"),
        ],
    )
    def test_what_its_jitter_still_holds_back_is_not_left_out(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        schedule: Any,
        misfire: Any,
        later: int,
        first: int,
    ) -> None:
        start = datetime(2026, 3, 2, 12, tzinfo=UTC)
        minutes = {1: 28, 2: 2, 3: 25}  # by which the first hours come later

        def offset_ms(name: str, nominal: int, *_: object) -> int:
            return 60_000 * minutes.get((nominal - to_ms(start)) // 3_600_000, 0)

        monkeypatch.setattr(lifecycle, "offset_ms", offset_ms)
        clock.set(start)
        schedules.add("e", "add", schedule, jitter=1800, misfire=misfire)
        clock.forward(later)
        end = clock.now + timedelta(hours=3)
        expected = schedules.upcoming(end)
        fired = all_that_fires(inner_beat, end, clock, client)
        assert expected[0].nominal == start + timedelta(hours=first)
        assert expected == [run for run in fired if run.nominal >= expected[0].nominal]

    def test_is_bounded_by_its_limit_and_its_end(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(1))
        assert len(schedules.upcoming(NOW + timedelta(days=365), limit=7)) == 7
        assert [each.at for each in schedules.upcoming(NOW + timedelta(seconds=2))] == [
            NOW + timedelta(seconds=1),
            NOW + timedelta(seconds=2),
        ]
        assert schedules.upcoming(NOW) == []

    @pytest.mark.usefixtures("small_pages")
    @pytest.mark.parametrize("is_frozen", [False, True])
    def test_the_first_of_many_are_the_first_of_each(self, schedules: Schedules, clock: Clock, is_frozen: bool) -> None:
        """However far it reads, it misses none: what each entry does is told by itself."""
        chosen = Random(7)
        schedules.add_many(
            Entry(
                f"e{number:03}",
                "add",
                every(chosen.randint(20, 3000)),
                jitter=chosen.choice([0, 0, 15]),
                misfire=chosen.choice(["coalesce", "skip", "all"]),
                enabled=chosen.random() > 0.1,
            )
            for number in range(250)
        )
        clock.forward(600)
        schedules.select("e1?5").pause()
        schedules.select("e0[0-4]*").pause(seconds=300)
        schedules.select("e2*").pause(seconds=200)
        if is_frozen:
            schedules.freeze(250)
        until = clock.now + timedelta(seconds=600)
        expected = sorted(run for entry in schedules.values() for run in self.alone(schedules, entry, until))
        assert {run.name[:2] for run in expected} == {"e0", "e1", "e2"}
        at_once = clock.now + timedelta(seconds=250) if is_frozen else clock.now
        assert sum(run.at == at_once for run in expected) > 20, "what is overdue comes at once"
        found = schedules.upcoming(until, limit=10_000)
        assert sorted(found) == expected
        assert [run.at for run in found] == [run.at for run in expected]
        for limit in (1, 3, 10, 100, 1000):
            assert schedules.upcoming(until, limit=limit) == found[:limit]

    def alone(self, schedules: Schedules, entry: Entry, until: datetime) -> list[Upcoming]:
        freeze = schedules.frozen()
        runs = (run for run, _ in upcoming_runs([entry], now=wall_ms() if freeze is None else to_ms(freeze.until)))
        return [*takewhile(lambda run: run.at <= until, runs)]

    @pytest.mark.usefixtures("small_pages")
    def test_the_first_of_many_cost_no_more_than_those_of_a_few(self, schedules: Schedules) -> None:
        schedules.add_many(Entry(f"e{number:03}", "add", every(60 + number)) for number in range(600))
        with round_trips() as trips:
            found = schedules.upcoming(NOW + timedelta(days=1), limit=3)
        assert [run.name for run in found] == ["e000", "e001", "e002"]
        assert len(trips) <= 2
        later = islice(runs_between(schedules.values(), NOW, NOW + timedelta(days=1), None), 3)
        assert [run.name for run in later] == ["e000", "e001", "e002"]

    @together("limit", [-1, "5", None], emptied=True)
    def test_is_bounded_by_a_whole_number(self, schedules: Schedules, limit: Any) -> None:
        with pytest.raises(ValueError, match=f"limit: expected a whole number from 0, got {limit!r}"):
            schedules.upcoming(NOW + timedelta(days=1), limit=limit)

    def test_wants_an_aware_end(self, schedules: Schedules) -> None:
        with pytest.raises(InvalidEntry, match="until: expected an aware datetime, got"):
            schedules.upcoming(datetime(2026, 3, 3))
