"""Backfills as a leader sends them: each occurrence once, whatever happens."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import redis

from redbeat_lite import Backfill, cron
from redbeat_lite.storage.backfills import BackfillStore
from tests.beat.ways import Setup, exactly_once
from tests.support.frozen import NOW
from tests.support.messages import of_entry, queued
from tests.support.run_records import Worker

HOURLY = cron("0 * * * *", tz="UTC")
NOON = NOW.replace(minute=0, second=0)


def hours(first: int, last: int) -> tuple[datetime, datetime]:
    """From so many hours before noon to so many."""
    return NOON - timedelta(hours=first), NOON - timedelta(hours=last)


def sent(setup: Setup, name: str = "a") -> list[float]:
    """The nominal times of what is in the queue, in hours before noon."""
    times = [message.scheduled_at for message in of_entry(setup.broker, name)]
    return [(NOON - at).total_seconds() / 3600 for at in times if at is not None]


def turns(setup: Setup, number: int = 1) -> None:
    for _ in range(number):
        setup.beat._backfills._next = dict.fromkeys(setup.beat._backfills._next, 0.0)  # nobody waits for the clock
        setup.beat.run_due()


def fast(setup: Setup, first: int, last: int, **more: Any) -> Backfill:
    """A backfill that goes by a rate alone."""
    return setup.schedules.backfills.start("a", *hours(first, last), max_active=None, rate=1000, **more)


def test_each_occurrence_is_sent_once_oldest_first(setup: Setup) -> None:
    setup.schedules.add("a", "add", HOURLY, options={"headers": {"own": 1}})
    backfill = fast(setup, 100, 1, note="the disk was full")
    assert (backfill.total, backfill.left, backfill.sent, backfill.ended) == (100, 100, 0, "")
    assert (backfill.start, backfill.end, backfill.note) == (*hours(100, 1), "the disk was full")
    turns(setup, 3)
    assert sent(setup) == [*range(100, 0, -1)]
    found = setup.schedules.backfills[backfill.id]
    assert (found.left, found.sent, found.ended) == (0, 100, "done")
    message = queued(setup.broker)[0]
    told = (message.headers["redbeat_backfill"], message.headers["own"], message.headers["expires"])
    assert told == (backfill.id, 1, None)
    assert len({message.id for message in queued(setup.broker)}) == 100
    setup.beat.run_due()
    assert not setup.beat._backfills._next, "what has ended costs nothing any more"


def test_asked_again_or_overlapping_it_sends_nothing_twice(setup: Setup) -> None:
    setup.schedules.add("a", "add", HOURLY)
    fast(setup, 20, 11)
    turns(setup, 2)
    with pytest.raises(Exception, match=r"start: expected a range with 1 to 100,000 occurrences that no backfill has"):
        fast(setup, 20, 11)
    assert fast(setup, 30, 5, dry_run=True).total == 16
    fast(setup, 30, 5)
    assert fast(setup, 25, 8).total == 8, "those that the other one has not sent yet"
    turns(setup, 5)
    assert sorted(sent(setup)) == [*range(5, 31)]
    assert {each.ended for each in setup.schedules.backfills} == {"done"}
    again = fast(setup, 12, 9, again=1)
    turns(setup, 2)
    assert sent(setup)[-4:] == [12, 11, 10, 9]
    assert setup.schedules.backfills[again.id].sent == 4
    ids = [message.id for message in queued(setup.broker)]
    assert len({*ids}) == len(ids) == 30


@exactly_once
def test_a_reply_that_was_lost_doubles_nothing(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.schedules.add("a", "add", HOURLY)
    fast(setup, 250, 1)
    change = BackfillStore.change

    def torn(self: BackfillStore, *args: Any) -> Any:
        change(self, *args)
        assert change(self, *args) is True, "the same call once more does no harm"
        raise redis.ConnectionError("cut")

    monkeypatch.setattr(BackfillStore, "change", torn)
    for _ in range(5):
        with pytest.raises(redis.ConnectionError):
            turns(setup)
        setup.restart()
    monkeypatch.undo()
    turns(setup)
    assert sent(setup) == [*range(250, 0, -1)]


def test_a_leader_that_dies_before_it_notes_what_is_out_sends_it_again_by_the_same_ids(apart: Setup) -> None:
    apart.schedules.add("a", "add", HOURLY)
    fast(apart, 60, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BackfillStore, "change", lambda *_: pytest.fail("killed"))
        with pytest.raises(BaseException, match="killed"):
            turns(apart)
    apart.restart()
    turns(apart, 3)
    ids = [message.id for message in queued(apart.broker)]
    assert (len(ids), len({*ids})) == (110, 60)
    assert [*dict.fromkeys(sent(apart))] == [*range(60, 0, -1)]


def test_cancelled_or_paused_nothing_more_is_sent_whenever_it_comes(setup: Setup) -> None:
    setup.schedules.add("a", "add", HOURLY)
    found, backfill = setup.schedules.backfills, fast(setup, 300, 1)
    found.pause(backfill.id)
    turns(setup, 2)
    assert sent(setup) == []
    found.resume(backfill.id)
    turns(setup)
    assert sent(setup) == [*range(300, 250, -1)]
    take = BackfillStore.read

    def meanwhile(self: BackfillStore, known: Backfill) -> Any:
        seen = take(self, known)
        if not found[known.id].ended:
            found.cancel(known.id)
        return seen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BackfillStore, "read", meanwhile)
        turns(setup)
    turns(setup, 3)
    is_one_step = setup.beat._publisher.one_step
    assert len(sent(setup)) == (50 if is_one_step else 100), "one batch where broker and schedule are two"
    assert (found[backfill.id].ended, found[backfill.id].sent) == ("cancelled", len(sent(setup)))
    with pytest.raises(KeyError, match=f"backfill '{backfill.id}' has ended: cancelled"):
        found.resume(backfill.id)
    fast(setup, 300, 1)
    turns(setup, 10)
    assert sent(setup) == [*range(300, 0, -1)], "another one goes on where it stopped"


@pytest.fixture
def worker(client: redis.Redis) -> Worker:
    found = Worker(client)
    found.reports()
    return found


def ends(setup: Setup, client: redis.Redis, number: int, outcome: str = "s") -> None:
    """Tell the end of a message, as a worker does."""
    client.xadd("{redbeat-lite}:runs:feed", {"id": queued(setup.broker)[number].id, "outcome": outcome})


@exactly_once
def test_so_many_are_out_at_once(setup: Setup, worker: Worker, client: redis.Redis) -> None:
    setup.schedules.add("a", "add", HOURLY)
    backfill = setup.schedules.backfills.start("a", *hours(9, 1), max_active=2)
    turns(setup, 3)
    assert sent(setup) == [9, 8]
    ends(setup, client, 1, "y")
    turns(setup, 3)
    assert sent(setup) == [9, 8], "one that is tried again has not ended"
    ends(setup, client, 1, "f")
    setup.restart()
    turns(setup, 3)
    assert sent(setup) == [9, 8, 7]
    setup.schedules.backfills.pause(backfill.id)
    assert len(setup.schedules.backfills.resume(backfill.id).active) == 0
    turns(setup, 3)
    assert sent(setup) == [9, 8, 7, 6, 5], "the end of those may have been lost"
    assert queued(setup.broker)[0].headers["redbeat_history"] == 1000, "or the end of an old run is not recorded"


def test_it_needs_workers_that_record(setup: Setup, client: redis.Redis) -> None:
    setup.schedules.add("a", "add", HOURLY)
    with pytest.raises(ValueError, match="max_active: expected None, as no worker that records runs was heard of"):
        setup.schedules.backfills.start("a", *hours(9, 1))
