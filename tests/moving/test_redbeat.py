"""Moving in from the keys that the real celery-redbeat writes, held to its own answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule
from dateutil.rrule import MO, SU
from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import rrule

from redbeat_lite.importers.moving import Move, MoveIn
from redbeat_lite.importers.redbeat import RedBeatSource
from tests.support.commands import round_trips
from tests.support.frozen import Clock
from tests.support.real import real_entries
from tests.support.server import Server


@pytest.fixture
def peer_app(make_app: Callable[..., Celery], server: Server) -> Celery:
    """An app whose beat is celery-redbeat."""
    return make_app(redbeat_redis_url=server.url)


def save(app: Celery, name: str, found: Any, *, last: datetime | None = None, runs: int = 0, **fields: Any) -> None:
    """An entry as celery-redbeat stores it; one that ran has been through a turn of its beat."""
    entry = RedBeatSchedulerEntry(name, "shop.sync", found, app=app, last_run_at=last, **fields).save()
    if runs:
        entry.total_run_count = runs - 1
        entry._next_instance(last_run_at=last)


def plan(app: Celery, *, apply: bool = False, replace: bool = False, **where: str) -> dict[str, Move]:
    mover, source = MoveIn(app, replace=replace), RedBeatSource(app, **where)
    try:
        moves = mover.plan(source)
        if apply:
            mover.apply(moves)
        return {move.name: move for move in moves}
    finally:
        mover.close()
        source.close()


def own_answer(app: Celery, name: str, now: datetime) -> datetime | None:
    """When celery-redbeat itself would run an entry."""
    due, wait = RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app).is_due()
    if due:
        return now
    return None if wait is None else now + timedelta(seconds=wait)


def thousand(now: datetime) -> Iterator[tuple[str, BaseSchedule]]:
    """The schedules of public projects, as far as celery-redbeat can store them, and recurrences."""
    real = [each for each in real_entries() if type(each.schedule) in (crontab, schedule)]
    yield from ((each.name, each.schedule) for each in real)
    for index in range(1000 - len(real)):
        yield f"rrule:{index}", _recurrence(random.Random(index), now)


def _recurrence(drawn: random.Random, now: datetime) -> rrule:
    freq = drawn.choice(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"])
    # dateutil walks to the present from the very start, each time it is asked.
    minutely = freq in ("HOURLY", "MINUTELY")
    parts: dict[str, Any] = {"dtstart": now - timedelta(minutes=drawn.randrange(3_000 if minutely else 1_000_000))}
    parts["interval"] = 1 if minutely else drawn.choice([1, 1, 2, 5])
    if drawn.random() < 0.4:
        parts["byhour"] = drawn.sample(range(24), 2)
        parts["byminute"] = drawn.randrange(60)
    if drawn.random() < 0.3:
        parts["byweekday"] = drawn.choice([MO, [0, 2, 4], [SU, MO], 6])
    if drawn.random() < 0.3 and freq in ("YEARLY", "MONTHLY", "DAILY"):
        parts["bymonthday"] = drawn.choice([1, [1, 15], -1])
    if drawn.random() < 0.2:
        parts["until"] = now + timedelta(days=4000)
    elif drawn.random() < 0.2 and freq in ("DAILY", "WEEKLY"):
        parts["count"] = 720
    if drawn.random() < 0.2 and freq == "WEEKLY":
        parts["wkst"] = drawn.choice([0, 6])
    return rrule(freq, **parts)


def test_a_thousand_entries_run_next_when_celery_redbeat_would_run_them(peer_app: Celery, clock: Clock) -> None:
    drawn = random.Random(7)
    for name, found in thousand(clock.now):
        last = clock.now - timedelta(days=drawn.choice([0.001, 1, 30]) * drawn.random())
        save(peer_app, name, found, last=last)
    with round_trips() as trips:
        moves = plan(peer_app)
    assert len(moves) == 1000
    assert len(trips) < 20
    differing = []
    for name, move in moves.items():
        theirs = own_answer(peer_app, name, clock.now)
        if move.entry is None:
            assert theirs is None, move
            continue
        ours = max(move.entry.next_run_at, clock.now)
        if theirs is None or abs(ours - theirs) > timedelta(milliseconds=1):
            differing.append((name, move.entry.schedule, theirs, ours))
    assert not differing
    assert sum(move.entry is not None for move in moves.values()) > 990
