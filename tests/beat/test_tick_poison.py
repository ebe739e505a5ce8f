"""A bad entry harms nobody else: it is set aside, mended or put off, and the others fire on time."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Scheduler, Schedules, every, register_schedule
from tests.beat.moments import after, nominals, seconds
from tests.beat.poison import CannotTell, poison
from tests.support.frozen import Clock
from tests.support.in_process import KEY, MakeBeat, tell_set_back
from tests.support.messages import by_entry, queued

pytestmark = pytest.mark.usefixtures("clock")


class TestPoison:
    @pytest.mark.parametrize(
        "kind",
        [
            "no JSON",
            "not UTF-8",
            "JSON of another kind",
            "rule that takes minutes to search",
            "field of a wrong type",
            "format to come",
            "task gone",
            "state garbage",
            "state that reads like another",
            "name not UTF-8",
            "raising schedule",
            "schedule that raises beyond its next run",
            "once key without its argument",
        ],
    )
    def test_an_entry_that_cannot_be_used_is_set_aside_and_the_others_fire_on_time(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        caplog: pytest.LogCaptureFixture,
        kind: str,
    ) -> None:
        register_schedule(CannotTell, lambda found: found.fails_from, CannotTell, name="tests.CannotTell")
        schedules.add_many(Entry(f"good{number}", "add", every(10)) for number in range(19))
        poison(schedules, client, kind)
        inner_beat.leader.acquire()  # without the repair that begins a term: what is spoilt now, a tick meets
        clock.forward(10)
        inner_beat.run_due()
        clock.forward(10)
        inner_beat.run_due()
        sent = {name: seconds(messages) for name, messages in by_entry(client).items()}
        assert sent == {f"good{number}": [10, 20] for number in range(19)}
        [name] = schedules.quarantined()
        assert name == ("\\xff\\xfe" if kind == "name not UTF-8" else "bad")
        assert "bad" not in schedules
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1
        assert f"entry {name!r} cannot be used and is quarantined: " in errors[0]

    @pytest.mark.parametrize(
        "kind", ["no JSON", "raising schedule", "format to come", "unknown schedule class", "state gone"]
    )
    def test_neither_a_new_leader_nor_a_clock_set_back_trips_over_it(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
        kind: str,
    ) -> None:
        register_schedule(CannotTell, lambda found: found.fails_from, CannotTell, name="tests.CannotTell")
        schedules.add("good", "add", every(10))
        poison(schedules, client, kind)
        app.conf.beat_schedule = {"configured": {"task": "add", "schedule": 10}}
        beat = make_beat(app)
        beat.run_due()
        clock.forward(-7200)
        tell_set_back(beat)
        beat.run_due()
        clock.forward(10)
        beat.run_due()
        assert nominals(client, "good") == nominals(client, "configured") == [-7190]

    @pytest.mark.parametrize(("kind", "runs"), [("state gone", [10, 20]), ("definition gone", [])])
    def test_an_entry_that_is_half_gone_is_mended_or_removed_and_the_others_fire_on_time(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        kind: str,
        runs: list[float],
    ) -> None:
        schedules.add("good", "add", every(10))
        poison(schedules, client, kind)
        for _ in range(2):
            inner_beat.run_due()
            clock.forward(10)
        inner_beat.run_due()
        assert nominals(client, "good") == [10, 20]
        assert nominals(client, "bad") == runs
        assert ("bad" in schedules) == bool(runs)

    def test_what_is_gone_while_the_beat_leads_is_mended_before_a_renewal_tells(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10))
        inner_beat.run_due()
        client.delete(inner_beat.store.keys.state)
        clock.forward(10)
        assert inner_beat.run_due() == 0, "there is more to do"
        inner_beat.run_due()
        clock.forward(10)
        inner_beat.run_due()
        assert not schedules.quarantined()
        assert nominals(client, "a") == [20]

    def test_a_list_does_not_trip_over_any(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("good", "add", every(10))
        for kind in ("no JSON", "format to come", "state gone"):
            poison(schedules, client, kind)
            assert "good" in [entry.name for entry in schedules.list()]
            schedules.add("good2", "add", every(10), replace=True)
            assert {each.name for each in schedules.upcoming(after(10))} == {"good", "good2"}
            client.zrem(KEY + "due", "bad")
            client.hdel(KEY + "entries", "bad")
            client.hdel(KEY + "state", "bad")

    def test_a_task_that_cannot_be_sent_is_put_off_and_the_others_fire_on_time(
        self,
        app: Celery,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        @app.task(name="refuses", shared=False)
        def refuses() -> None: ...

        def refusing(*args: object, **kwargs: object) -> None:
            raise TypeError("cannot be sent")

        monkeypatch.setattr(app.tasks["refuses"], "apply_async", refusing)
        schedules.add_many(Entry(f"good{number}", "add", every(10)) for number in range(9))
        schedules.add("bad", "refuses", every(10))
        clock.forward(10)
        inner_beat.run_due()
        assert len(queued(client)) == 9
        bad = schedules["bad"]
        assert (bad.last_error, bad.total_run_count) == ("TypeError: cannot be sent", 0)
        assert bad.next_run_at == after(11)
        assert schedules.quarantined() == {}


@pytest.mark.parametrize(("within", "countdown"), [(0.0001, 0), (5, -5), (5, -6)])
def test_a_run_that_has_no_time_to_start_in_harms_nobody(
    schedules: Schedules,
    inner_beat: Scheduler,
    clock: Clock,
    client: redis.Redis,
    within: float,
    countdown: int,
) -> None:
    schedules.add("good", "add", every(10))
    schedules.add("bad", "add", every(10), expect={"start_within": within}, options={"countdown": countdown})
    inner_beat.run_due()
    for _ in range(2):
        clock.forward(10)
        inner_beat.run_due()
    sent = {name: seconds(messages) for name, messages in by_entry(client).items()}
    assert sent == {"good": [10, 20], "bad": [10, 20]}
