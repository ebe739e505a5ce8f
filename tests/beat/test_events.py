"""What a beat tells its hooks, and that no hook can harm it."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Schedules, cron, every
from redbeat_lite.beat import announcer as module
from redbeat_lite.beat.announcer import BACKLOG, HANGS, Announcer
from redbeat_lite.events import (
    Dispatched,
    Event,
    Failed,
    Hooks,
    LeaderGained,
    LeaderLost,
    Misfired,
    Quarantined,
    Skipped,
    Ticked,
    subscribe,
)
from tests.support.beats import KEYS
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.messages import queued
from tests.support.waiting import eventually


class Listener(Hooks):
    """Writes down every event."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def _note(self, event: Any) -> None:
        self.heard.append(event)

    dispatched = misfired = skipped = failed = quarantined = leader_gained = leader_lost = ticked = _note

    def wait_for(self, kind: type, count: int = 1) -> list[Any]:
        return eventually(lambda: found if len(found := self.of(kind)) >= count else None, what=kind.__name__)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.heard if type(event) is kind]


@pytest.fixture
def listener(app: Celery) -> Listener:
    found = Listener()
    subscribe(app, found)
    return found


@pytest.mark.parametrize("dispatch", ["auto", "plain"])
def test_each_occurrence_is_told_once_with_its_id_and_how_late_it_went_out(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis, dispatch: str
) -> None:
    app, listener = make_app(redbeat_lite_dispatch=dispatch), Listener()
    subscribe(app, listener)
    schedules, beat = Schedules(app), make_beat(app)
    schedules.add("a", "add", every(10), misfire="all")
    schedules.add("b", "add", every(10), jitter=5)
    beat.run_due()
    clock.forward(31)
    beat.run_due()
    told = listener.wait_for(Dispatched, 4)
    sent = {(message.entry, message.id, message.scheduled_at) for message in queued(client)}
    assert {(event.name, event.task_id, event.nominal) for event in told} == sent
    assert sorted(event.lateness for event in told if event.name == "a") == [1, 11, 21]
    [late] = [event.lateness for event in told if event.name == "b"]
    due = (clock.now - schedules["b"].next_run_at).total_seconds()  # type: ignore[operator]
    assert -10 <= due < late <= 31, "the jitter is not lateness"
    assert {event.task for event in told} == {"add"}
    assert (beat._parts.state.sent, beat._parts.state.failed) == (4, 0)


def test_runs_that_are_left_out_are_told_in_their_order(
    schedules: Schedules, listener: Listener, make_beat: MakeBeat, clock: Clock
) -> None:
    schedules.add("held", "add", every(10), once=True, misfire="all")
    beat = make_beat(schedules._app)
    clock.forward(10)
    beat.run_due()
    clock.forward(30)
    beat.run_due()
    nominals = [skipped.nominal for skipped in listener.wait_for(Skipped, 3)]
    assert nominals == sorted(nominals)
    [latest, *_] = schedules.runs("held")
    assert (latest.outcome, latest.count) == ("left out", 3)


def test_what_was_left_out_failed_or_set_aside_is_told(
    app: Celery, schedules: Schedules, listener: Listener, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    beat = make_beat(app)
    beat.run_due()
    schedules.add("late", "add", every(10))
    schedules.add("held", "add", every(10), once=True)
    schedules.add("broken", "add", every(10), options={"queue": "not-a-list"})
    schedules.add("corrupt", "add", every(10))
    client.hset(KEYS.entries, "corrupt", "{")
    client.set("not-a-list", "text")
    clock.forward(10)
    beat.run_due()
    clock.forward(35)
    beat.run_due()
    client.delete("not-a-list")
    [quarantined] = listener.wait_for(Quarantined)
    assert quarantined.name == "corrupt"
    assert "JSON" in quarantined.error
    [skipped] = listener.wait_for(Skipped)
    assert (skipped.name, skipped.task) == ("held", "add")
    missed = {event.name: event.missed for event in listener.wait_for(Misfired, 2)}
    assert missed == {"late": 2, "held": 2}
    failures = listener.wait_for(Failed, 2)
    assert {(event.name, event.task) for event in failures} == {("broken", "add")}
    assert [event.attempts for event in failures] == [1, 2]
    assert "WRONGTYPE" in failures[0].error
    state = beat._parts.state
    assert (state.failed, state.sent) == (2, len(listener.of(Dispatched)))
    assert state.skipped == sum(missed.values()) + 1


def test_failed_publishes_of_a_backfill_are_counted(
    app: Celery, schedules: Schedules, listener: Listener, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    beat = make_beat(app)
    beat.run_due()
    schedules.add("hourly", "add", cron("0 * * * *", tz="UTC"), options={"queue": "not-a-list"})
    client.set("not-a-list", "text")
    hour = clock.now.replace(minute=0, second=0)
    schedules.backfills.start("hourly", hour - timedelta(hours=1), hour, max_active=None)
    for _ in range(3):
        clock.forward(5)
        beat.run_due()
    client.delete("not-a-list")
    assert [event.attempts for event in listener.wait_for(Failed, 3)] == [1, 2, 3]


def test_what_is_mended_before_it_is_set_aside_is_not_told(
    app: Celery,
    schedules: Schedules,
    listener: Listener,
    make_beat: MakeBeat,
    clock: Clock,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    beat = make_beat(app)
    beat.run_due()
    for name in ("mended", "corrupt"):
        schedules.add(name, "add", every(10))
        client.hset(KEYS.entries, name, "{")
    set_aside = beat.store.quarantine

    def late(*args: Any) -> Any:
        schedules.add("mended", "add", every(10), replace=True)
        return set_aside(*args)

    monkeypatch.setattr(beat.store, "quarantine", late)
    clock.forward(10)
    beat.run_due()
    assert list(schedules.quarantined()) == ["corrupt"]
    assert "mended" in schedules
    listener.wait_for(Quarantined)
    beat.close()
    assert [event.name for event in listener.of(Quarantined)] == ["corrupt"]
    [error] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert error.startswith("beat: entry 'corrupt' cannot be used and is quarantined: ")


def test_gaining_and_losing_the_lead_is_told(
    app: Celery, listener: Listener, make_beat: MakeBeat, client: redis.Redis
) -> None:
    beat = make_beat(app)
    beat.run_due()
    client.delete(KEYS.leader)
    beat.run_due()
    beat.run_due()
    beat.close()
    kinds = [(type(event).__name__, event) for event in listener.heard if type(event) is not Ticked]
    assert [kind for kind, _ in kinds] == ["LeaderGained", "LeaderLost", "LeaderGained", "LeaderLost"]
    assert [event.term for kind, event in kinds if kind == "LeaderGained"] == [1, 2]
    assert "gone from Redis" in kinds[1][1].reason
    assert kinds[3][1].reason == "the beat was stopped"


def test_a_leader_that_meets_a_key_of_another_program_says_why_it_leads_no_more(
    app: Celery, listener: Listener, make_beat: MakeBeat, client: redis.Redis
) -> None:
    beat = make_beat(app)
    beat.run_due()
    client.set("{redbeat-lite}:pipelines", "another program's")
    beat._parts.leadership._next_check = 0.0  # some leases later
    beat._parts.wakeup.wait = lambda *args, **kwargs: None  # type: ignore[method-assign]
    beat.tick()
    client.delete("{redbeat-lite}:pipelines")
    [lost] = listener.wait_for(LeaderLost)
    assert "{redbeat-lite}:pipelines is a string" in lost.reason


class Harmful(Hooks):
    """Raises, and hangs."""

    def __init__(self, release: threading.Event) -> None:
        self.release, self.calls = release, 0

    def dispatched(self, event: Dispatched) -> None:
        self.calls += 1
        raise RuntimeError("a hook that somebody wrote")

    def leader_gained(self, event: LeaderGained) -> None:
        self.release.wait(30)


def test_a_hook_that_hangs_and_raises_neither_delays_nor_breaks_the_beat_nor_other_hooks(
    app: Celery,
    schedules: Schedules,
    listener: Listener,
    make_beat: MakeBeat,
    clock: Clock,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    harmful = Harmful(threading.Event())
    subscribe(app, harmful)
    beat = make_beat(app)
    schedules.add("a", "add", every(1), misfire="all")
    beat.run_due()
    for _ in range(3):
        clock.forward(1)
        beat.run_due()
    listener.wait_for(Dispatched, 3)
    assert len(queued(client)) == 3
    assert harmful.calls == 0, "it hangs in the first event"
    with caplog.at_level(logging.ERROR):
        harmful.release.set()
        eventually(lambda: harmful.calls == 3, what="the events that waited")
        clock.forward(1)
        beat.run_due()
        eventually(lambda: harmful.calls == 4, what="the next event")
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line.startswith("beat: hook Harmful.dispatched failed (logged once): RuntimeError('a hook that")


def test_a_hook_that_is_slower_for_long_loses_events_and_not_memory(caplog: pytest.LogCaptureFixture) -> None:
    harmful = Harmful(threading.Event())
    announcer = Announcer([harmful])
    announcer.announce([LeaderGained(1)])
    event = Ticked(0.1), LeaderGained(2)
    for _ in range(BACKLOG + 10):
        announcer.announce(event)
    [subscriber] = announcer._subscribers
    assert subscriber.queued == BACKLOG + 1, "events that nobody wants to hear are not kept, and the rest is bounded"
    assert [record.getMessage() for record in caplog.records] == [
        "beat: hooks Harmful are too slow, and events are dropped"
    ]
    harmful.release.set()
    announcer.close()


def test_two_threads_that_announce_the_first_events_start_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The incident watch announces an incident while the main loop starts the thread for an event of its own."""
    made: list[threading.Thread] = []
    second_is_here = threading.Barrier(2)

    def make_slowly(**arguments: Any) -> threading.Thread:
        with suppress(threading.BrokenBarrierError):
            second_is_here.wait(0.5)
        made.append(threading.Thread(**arguments))
        return made[-1]

    monkeypatch.setattr(module, "threading", SimpleNamespace(Thread=make_slowly, Lock=threading.Lock))
    listener = Listener()
    announcer = Announcer([listener])
    both = [threading.Thread(target=announcer.announce, args=([LeaderGained(number)],)) for number in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    announcer.close()
    assert len(made) == 1
    assert len(listener.heard) == 2


def test_a_hook_that_is_slow_hangs_only_once_it_gets_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    now, goes_on = [1000.0], threading.Semaphore(0)

    class Slow(Hooks):
        def leader_gained(self, event: LeaderGained) -> None:
            assert goes_on.acquire(timeout=20)

    monkeypatch.setattr(module, "elapsed", lambda: now[0])
    announcer = Announcer([Slow()])
    announcer.announce([LeaderGained(1), LeaderGained(2)])
    delivery = announcer.delivery()
    now[0] += HANGS
    goes_on.release()
    eventually(lambda: announcer._subscribers[0].handled_at == now[0], what="the first event")
    now[0] += HANGS
    assert not delivery.is_complete, "it has got further since"
    now[0] += 1
    assert delivery.is_complete, "it hangs"
    goes_on.release()


def test_something_that_is_no_hooks_is_refused(app: Celery) -> None:
    with pytest.raises(TypeError, match=r"hooks: expected an instance of redbeat_lite\.events\.Hooks, got 7"):
        subscribe(app, 7)  # type: ignore[arg-type]


def test_a_beat_without_hooks_starts_no_thread_for_them(
    app: Celery, schedules: Schedules, make_beat: MakeBeat, clock: Clock
) -> None:
    before = {*threading.enumerate()}
    beat = make_beat(app)
    schedules.add("a", "add", every(1))
    beat.run_due()
    clock.forward(1)
    beat.run_due()
    assert beat._parts.state.sent == 1
    assert {thread.name for thread in {*threading.enumerate()} - before} <= {"redbeat-lite-lease"}
