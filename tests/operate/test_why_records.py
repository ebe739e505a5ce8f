"""``why`` of what a real beat and real edits have left in the records."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Scheduler, Schedules, at, cron, every
from redbeat_lite._base.times import from_ms, in_zone, to_ms
from redbeat_lite.operate.why import explain
from redbeat_lite.operate.why_case import Explanation, gather
from redbeat_lite.store.redis_values import server_ms
from tests.support.frozen import Clock, frozen_clock
from tests.support.in_process import KEY, MakeBeat


@pytest.fixture
def clock(client: redis.Redis) -> Iterator[Clock]:
    """The wall clock, frozen at the full second of the server, which dates the record of changes."""
    with frozen_clock(from_ms(server_ms(client) // 1000 * 1000)) as clock:
        yield clock


def why(app: Celery, name: str, instant: datetime | None = None) -> Explanation:
    return explain(gather(app, name, datetime.now(UTC), UTC), instant)


def sentences(found: Explanation) -> list[str]:
    return [found.verdict, *found.causes, *(event.text for event in found.timeline), found.next_run]


def test_what_was_sent_long_ago_is_not_told_to_have_been_left_out(
    app: Celery, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
) -> None:
    schedules.add("often", "add", every(1, align=True), misfire="skip", history=3)
    sent = []
    for late in (1, 1, 60, 1, 1, 60, 1, 1, 1):
        sent.append(clock.forward(late))
        inner_beat.run_due()
    assert client.llen("celery") >= 7
    assert [run.outcome for run in schedules.runs("often")].count("skipped") == 2
    assert why(app, "often", sent[4]).verdict == (
        f"'often' may have run at {in_zone(sent[4], UTC)}; that is not recorded any more."
    )
    # A whole minute would ask about all occurrences within it.
    between = sent[5] - timedelta(seconds=31 if sent[5].second == 30 else 30)
    assert why(app, "often", between).verdict == (
        f"'often' did not run for {in_zone(between, UTC)}: its misfire policy left it out."
    )


def test_one_that_is_done_may_have_removed_itself(app: Celery, inner_beat: Scheduler, clock: Clock) -> None:
    Schedules(app, actor="alice").add("once", "add", at(clock.now + timedelta(seconds=5)), remove_when_done=True)
    due = clock.forward(5)
    inner_beat.run_due()
    assert sentences(why(app, "once")) == [
        "'once' does not run: it is not stored.",
        "It has no next run, because it is not stored.",
    ]
    clock.forward(60)
    assert why(app, "once", due).verdict.startswith("'once' may have run at ")


def test_a_time_without_a_leader_is_told_by_the_term_after_it(
    app: Celery, schedules: Schedules, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    now = clock.now
    clock.set(now - timedelta(hours=1))
    schedules.add("often", "add", every(60, align=True), misfire="skip")
    died = to_ms(now - timedelta(minutes=40))
    client.hset(KEY + "meta", mapping={"ticked": died})
    clock.set(now)
    make_beat(app).run_due()
    missed = (now - timedelta(minutes=20)).replace(second=0)
    verdict, policy, *events, _ = sentences(why(app, "often", missed))
    assert verdict == f"'often' did not run for {in_zone(missed, UTC)}: its misfire policy left it out."
    assert policy.startswith("It was missed, and with 'skip'")
    [nobody] = [text for text in events if text.startswith("nobody led until ")]
    assert nobody.endswith(f", when beat of {socket.gethostname()} began to lead")


def test_a_pause_is_known_although_the_clock_of_the_server_is_ahead(
    app: Celery, schedules: Schedules, clock: Clock
) -> None:
    schedules.add("often", "add", every(60))
    schedules.pause("often")
    found = explain(gather(app, "often", clock.now - timedelta(seconds=5), UTC), None)
    assert found.next_run == "It has no next run, because it is paused."
    assert "paused often by " in found.timeline[-1].text


def test_one_of_many_that_were_edited_differently_is_told(app: Celery, schedules: Schedules, clock: Clock) -> None:
    entries = [Entry(f"e{n}", "add", cron("0 3 * * *")) for n in range(15)]
    schedules.add_many(entries)
    edited = [each.replace(schedule=cron(f"{n} 4 * * *")) for n, each in enumerate(entries)]
    Schedules(app, actor="alice").add_many(edited, replace=True)
    case = gather(app, "e14", clock.now, UTC)
    edited = case.timeline(clock.now - timedelta(hours=1))[-1]
    assert edited.text.startswith("edited e0, e1, ")
    assert edited.text.endswith(" by alice (api): schedule")
