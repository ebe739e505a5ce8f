"""Schedules of one's own that do not know when they will be due, and say when to ask them again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import BaseSchedule, schedstate

from redbeat_lite import Entry, Scheduler, Schedules, register_schedule
from redbeat_lite._base.errors import CorruptEntry
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries import lifecycle
from redbeat_lite.entries.state import EntryState
from redbeat_lite.interchange.document import state_fields, state_from
from redbeat_lite.rules import Question
from redbeat_lite.testing import schedule_clock
from tests.beat.moments import nominals
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeBeat
from tests.support.messages import of_entry, queued


class Polled(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """Due ``every`` so many seconds, if it is open then; whatever it is, it is to be asked again in five."""

    opens = True

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every

    def is_due(self, last_run_at: datetime) -> Any:
        return schedstate(self.opens and self.now() - last_run_at >= timedelta(seconds=self.every), 5)


class OwnClock(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """Every 10 s, by a clock that nobody can set for it."""

    def is_due(self, last_run_at: datetime) -> Any:
        rest = 10 - (datetime.now(UTC) - last_run_at).total_seconds()
        return schedstate(rest <= 0, rest if rest > 0 else 10)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Polled, "opens", True)
    register_schedule(Polled, lambda found: found.every, Polled, name="tests.Polled")
    register_schedule(OwnClock, lambda found: None, lambda stored: OwnClock(), name="tests.OwnClock")


def turns(beat: Scheduler, clock: Clock, until: datetime) -> int:
    """Let a beat run to an instant, as if in real time; returns how often it turned."""
    number = 0
    while True:
        seconds = beat.run_due()
        if clock.now + timedelta(seconds=seconds) > until:
            clock.set(until)
            return number
        clock.forward(seconds)
        number += 1


def test_is_asked_again_at_the_time_it_said_and_runs_when_it_says_so(
    app: Celery, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    app.conf.beat_schedule = {"configured": {"task": "add", "schedule": Polled(60)}}
    Schedules(app).add("added", "add", Polled(60))
    beat = make_beat(app)
    asked = turns(beat, clock, NOW + timedelta(seconds=130))
    assert nominals(client, "added") == nominals(client, "configured") == [60, 120]
    assert asked == 130 // 5
    entry = Schedules(app)["added"]
    assert (entry.total_run_count, entry.skipped_count, entry.finished) == (2, 0, False)
    Schedules(app).run_now("added")
    assert all(message.headers["expires"] is None for message in queued(client)), "nobody knows the next run"
    assert Schedules(app).upcoming(NOW + timedelta(days=9)) == [], "which runs are to come is not known in advance"


def test_a_closed_one_waits_until_it_opens(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.add("a", "add", Polled(60))
    turns(inner_beat, clock, NOW + timedelta(seconds=62))
    monkeypatch.setattr(Polled, "opens", False)
    turns(inner_beat, clock, NOW + timedelta(seconds=242))
    assert nominals(client, "a") == [60]
    monkeypatch.setattr(Polled, "opens", True)
    turns(inner_beat, clock, NOW + timedelta(seconds=262))
    assert nominals(client, "a") == [60, 245]


def test_one_with_a_clock_of_its_own_runs_by_it(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
) -> None:
    schedules.add("a", "add", OwnClock())
    turns(inner_beat, clock, NOW + timedelta(seconds=35))
    assert nominals(client, "a") == [10, 20, 30]


@pytest.mark.parametrize("policy", ["coalesce", "skip", "all"])
def test_after_an_outage_it_is_asked_once_for_now(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, policy: str
) -> None:
    schedules.add("a", "add", Polled(100), misfire=policy)
    turns(inner_beat, clock, NOW + timedelta(seconds=62))
    clock.forward(2 * 86_400)
    turns(inner_beat, clock, clock.now + timedelta(seconds=99))
    assert nominals(client, "a") == [65], "the instant at which it wanted to be asked"
    turns(inner_beat, clock, clock.now + timedelta(seconds=1))
    inner_beat.run_due()
    assert nominals(client, "a") == [65, 62 + 2 * 86_400 + 100], "counted from the run, as Celery's own beat does"


def test_a_pause_that_is_not_caught_up_with_begins_anew(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
) -> None:
    schedules.add("a", "add", Polled(60))
    turns(inner_beat, clock, NOW + timedelta(seconds=12))
    schedules.pause("a")
    clock.forward(600)
    schedules.resume("a")
    turns(inner_beat, clock, NOW + timedelta(seconds=612 + 66))
    assert nominals(client, "a") == [672]


def test_it_ends_with_its_window_and_its_runs(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
) -> None:
    schedules.add("window", "add", Polled(60), end_at=NOW + timedelta(seconds=130))
    schedules.add("runs", "add", Polled(60), max_runs=2)
    jittered = schedules.add("jitter", "add", Polled(60), jitter=30, max_runs=2)
    assert jittered.next_run_at == NOW + timedelta(seconds=5)
    turns(inner_beat, clock, NOW + timedelta(seconds=300))
    assert nominals(client, "window") == nominals(client, "runs") == nominals(client, "jitter") == [60, 120]
    assert all(schedules[name].finished for name in ("window", "runs", "jitter"))


def test_what_it_said_is_due_stays_due_until_it_is_sent(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.add("a", "add", Polled(60), options={"queue": "a"})
    turns(inner_beat, clock, NOW + timedelta(seconds=58))
    client.set("a", "no list, so that the message is refused")
    turns(inner_beat, clock, NOW + timedelta(seconds=62))
    monkeypatch.setattr(Polled, "opens", False)
    client.delete("a")
    turns(inner_beat, clock, NOW + timedelta(seconds=300))
    [message] = of_entry(client, "a", "a")
    assert message.scheduled_at == NOW + timedelta(seconds=60)
    assert message.id == schedules["a"].last_task_id


def test_what_is_sent_late_is_not_followed_by_what_was_missed(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
) -> None:
    schedules.add("a", "add", Polled(60), options={"queue": "a"})
    turns(inner_beat, clock, NOW + timedelta(seconds=58))
    client.set("a", "no list, so that the message is refused")
    turns(inner_beat, clock, NOW + timedelta(seconds=62))
    client.delete("a")
    clock.forward(3600)
    turns(inner_beat, clock, clock.now + timedelta(seconds=58))
    [message] = of_entry(client, "a", "a")
    assert message.scheduled_at == NOW + timedelta(seconds=60)


def test_planned_again_it_is_the_same_occurrence(app: Celery) -> None:
    entry, now = Entry("a", "add", Polled(60), app=app), to_ms(NOW)
    state = lifecycle.created(entry, now)
    while not (first := lifecycle.plan(entry, state, state.nominal or 0)).emit:
        state = lifecycle.dispatched(state, first, 0)
    again = lifecycle.plan(entry, state, (state.nominal or 0) + 700)
    assert again.emit == first.emit == (now + 60_000,)
    assert (first.next, again.next) == (now + 65_000, now + 65_700)


def test_what_was_asked_about_is_remembered_with_the_entry() -> None:
    state = EntryState(3, "g", Question(2000, 1000), note="because")
    for twin in (EntryState.decode(state.encode().encode()), state_from(state_fields(state))):
        assert twin == state
        assert isinstance(twin.nominal, Question)
        assert twin.nominal.after == 1000
    assert "asked" not in EntryState(3, "g", 2000, note="because").encode()
    for asked in ('"x"', "true", "1e3", str(10**20)):
        with pytest.raises(CorruptEntry, match="state is not readable"):
            EntryState.decode(f'3|g|2000|{{"asked":{asked}}}'.encode())


def test_a_planned_day_ends_where_it_would_have_to_be_asked(app: Celery) -> None:
    clock = schedule_clock("2026-03-29 00:00", entries={"a": {"task": "add", "schedule": Polled(60)}}, app=app)
    assert clock.run() == []
