"""One contract over every way to a server: the whole API, the beat, once-locks and pipelines, by URL alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import redis
from celery import Celery

import redbeat_lite
from redbeat_lite import Entry, EntryExists, Pipeline, PipelineTask, Scheduler, Schedules, cron, every
from redbeat_lite._base.clock import wall_ms
from redbeat_lite.beat.status import status
from redbeat_lite.entries.run import Attempt, Fate
from redbeat_lite.once.claims import Hold
from redbeat_lite.once.lock_client import LockClient
from redbeat_lite.operate.doctor import examine
from redbeat_lite.operate.health import health
from redbeat_lite.pipeline import sweep
from redbeat_lite.runs.run_store import RunStore
from redbeat_lite.settings import Settings
from redbeat_lite.store.connections import Backend
from tests.support.cases import for_the_soak
from tests.support.kombus import BATCHES
from tests.support.messages import of_entry
from tests.support.run_records import Worker
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually
from tests.topologies.conftest import KINDS, Place

#: What goes by what the server does, and not by how it lets one in.
_DIFFERENT = ("default", "sentinel", "cluster")
whoever_is_let_in = pytest.mark.parametrize(
    "started", [*_DIFFERENT, *for_the_soak(kind for kind in KINDS if kind not in _DIFFERENT)], indirect=True
)


@pytest.fixture
def scheduler(placed_app: Celery) -> Iterator[Scheduler]:
    scheduler = Scheduler(placed_app)
    yield scheduler
    scheduler.close()


@pytest.mark.parametrize("many", [150, pytest.param(1500, marks=pytest.mark.soak)])
def test_the_whole_api(placed_app: Celery, many: int) -> None:
    schedules = Schedules(placed_app)
    entry = schedules.add("one", "add", every(3600), args=(1,), description="first")
    with pytest.raises(EntryExists):
        schedules.add("one", "add", every(3600))
    schedules.add_many([Entry(f"e{n:04}", "add", every(60 + n)) for n in range(many)])
    assert len(schedules) == many + 1
    assert "one" in schedules
    assert schedules["one"].description == "first"
    assert len(set(schedules)) == many + 1
    assert schedules.list(limit=2)[0].name == "e0000"
    assert schedules.list(offset=0, limit=1)[0].next_run_at < entry.next_run_at
    assert schedules.update("one", schedule=every(10), if_version=entry.version).version > entry.version
    schedules.pause("one", note="stop")
    assert schedules["one"].paused_note == "stop"
    schedules.resume("one")
    assert [each.name for each in schedules.upcoming(datetime.now(UTC) + timedelta(seconds=15), limit=5)] == ["one"]
    assert schedules.run_now("one")
    schedules.remove("one")
    del schedules["e0000"]
    assert "one" not in schedules
    assert schedules.quarantined() == {}
    schedules.clear()
    assert len(schedules) == 0


@pytest.mark.parametrize("started", ["sentinel"], indirect=True)
def test_a_reply_that_comes_late_is_given_to_nobody(place: Place, placed_app: Celery) -> None:
    placed_app.conf.redbeat_lite_redis_options = {"socket_timeout": 0.2}
    backend = Backend(Settings.from_app(placed_app))
    backend.client.mset({"a": "A", "b": "B"})
    place.queue.execute_command("CLIENT", "PAUSE", 300, "ALL")
    with pytest.raises(redis.TimeoutError):
        backend.client.get("a")

    def other() -> bytes | None:
        try:
            return backend.client.get("b")  # type: ignore[return-value]
        except redis.TimeoutError:
            return None

    assert eventually(other, what="a reply") == b"B"
    backend.close()


def test_the_beat_leads_sends_and_hears_of_changes(
    place: Place, placed_app: Celery, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    placed_app.conf.beat_max_loop_interval = 300
    schedules = Schedules(placed_app)
    schedules.add_many([Entry(f"e{n}", "add", every(0.05), expires=None, misfire="all") for n in range(5)])
    scheduler.run_due()
    deadline = time.monotonic() + 15
    while place.queue.llen("celery") < 20:
        assert time.monotonic() < deadline, caplog.text
        scheduler.tick()
    for n in range(5):
        times = [m.scheduled_at.timestamp() for m in of_entry(place.queue, f"e{n}") if m.scheduled_at]
        assert [round(1000 * (at - times[0])) for at in times] == [50 * n for n in range(len(times))]
    assert ("in one step with the schedule" in caplog.text) == (place.one_step and BATCHES)
    schedules.clear()
    scheduler.run_due()
    # The beat waits for nothing now; word of the change comes over the wake channel.
    took: list[Stopwatch] = []

    def add() -> None:
        time.sleep(0.2)  # until the beat waits
        with Stopwatch() as watch:
            schedules.add("soon", "add", every(0.4), expires=None)
            eventually(lambda: of_entry(place.queue, "soon"), what="the first run")
        took.append(watch)

    adding = threading.Thread(target=add)
    adding.start()
    while not took:
        assert time.monotonic() < deadline + 40, caplog.text
        scheduler.tick()
    adding.join()
    assert took[0].took >= 0.4
    took[0].at_most(0.8)
    assert "ERROR" not in caplog.text


@whoever_is_let_in
def test_a_backfill(place: Place, placed_app: Celery, scheduler: Scheduler) -> None:
    schedules, last = Schedules(placed_app), datetime(2025, 1, 1, tzinfo=UTC)
    schedules.add("past", "add", cron("0 * * * *", tz="UTC"), enabled=False)
    first = last - timedelta(hours=29)
    backfill = schedules.backfills.start("past", first, last, max_active=None, rate=1000)
    deadline = time.monotonic() + 15
    while schedules.backfills[backfill.id].ended != "done":
        assert time.monotonic() < deadline
        scheduler.run_due()
    assert [m.scheduled_at for m in of_entry(place.queue, "past")] == [first + timedelta(hours=n) for n in range(30)]


@whoever_is_let_in
def test_an_incident_and_a_freeze(place: Place, placed_app: Celery, scheduler: Scheduler) -> None:
    schedules, client = Schedules(placed_app), LockClient.of(placed_app).store.client
    scheduler.run_due()
    Worker(client).reports()
    scheduler._parts.incidents.check()
    schedules.add("e", "add", every(0.05), expires=None, expect={"start_within": 60})
    eventually(lambda: scheduler.run_due() and of_entry(place.queue, "e"), what="a message")
    run = Attempt("e", wall_ms(), of_entry(place.queue, "e")[0].id, 0, 20, expected=True)
    assert RunStore(client, "redbeat-lite").record([Fate(run, "failed", time.monotonic())]) == (0, "")
    scheduler._parts.incidents.check()
    [incident] = schedules.incidents()
    assert schedules.acknowledge(incident.id, "mine").acknowledged == "mine"
    schedules.freeze(60)
    eventually(lambda: scheduler.run_due() > 50, what="it is held")
    scheduler._parts.incidents.check()
    assert [each.id for each in schedules.incidents(closed=True)] == [incident.id], "of what is frozen none is open"
    schedules.thaw()
    sent = len(of_entry(place.queue, "e"))
    eventually(lambda: scheduler.run_due() and len(of_entry(place.queue, "e")) > sent, what="one more")


@whoever_is_let_in
def test_one_leads_and_hands_over(placed_app: Celery, scheduler: Scheduler) -> None:
    Schedules(placed_app).add("hourly", "add", every(3600))
    scheduler.run_due()
    assert scheduler.leader.holds_lease
    other = Scheduler(placed_app)
    assert 0 < other.run_due() <= 4
    assert not other.leader.holds_lease
    first = scheduler.leader.term.number
    scheduler.close()
    other.run_due()
    assert other.leader.term.number == first + 1
    other.close()


@whoever_is_let_in
def test_a_stolen_lease_is_noticed_by_the_renewal(place: Place, placed_app: Celery) -> None:
    placed_app.conf.redbeat_lite_lease = 1
    scheduler = Scheduler(placed_app)
    scheduler.run_due()
    scheduler.store.backend.client.delete(scheduler.store.keys.leader)
    eventually(lambda: not scheduler.leader.holds_lease, what="the loss")
    scheduler.run_due()
    scheduler.run_due()
    assert scheduler.leader.holds_lease
    scheduler.close()


@whoever_is_let_in
def test_once_locks(placed_app: Celery, scheduler: Scheduler, place: Place) -> None:
    with redbeat_lite.lock(placed_app, "reindex", lease=5) as held:
        assert held
        with redbeat_lite.lock(placed_app, "reindex", lease=5) as again:
            assert not again
        assert [each.key for each in redbeat_lite.locks(placed_app).list()] == ["reindex"]
    assert not redbeat_lite.locks(placed_app).list()
    schedules = Schedules(placed_app)
    schedules.add("once", "add", every(0.05), once=True, expires=None)

    def skipped() -> int:
        scheduler.run_due()
        return schedules["once"].skipped_count

    eventually(lambda: skipped() >= 2, what="two runs that the lock left out")
    assert len(of_entry(place.queue, "once")) == 1
    [lock] = redbeat_lite.locks(placed_app).list()
    assert lock.state == "queued"
    assert redbeat_lite.locks(placed_app).clear(lock.key)


@whoever_is_let_in
def test_the_record_of_runs(placed_app: Celery) -> None:
    runtime, now = LockClient.of(placed_app), wall_ms()
    attempts = [Attempt(name, now, "id", 0, 20) for name in ("guarded", "other")]
    held = Hold("token", "id", 0, 60_000, key="k", life_ms=60_000)
    assert runtime.store.begin(held).word == "run"
    runtime.store.end(held)
    assert not runtime.store.client.exists(runtime.store.keys.lock("k"))
    for attempt, outcome in zip(attempts, ("succeeded", "failed"), strict=True):
        runtime.recorder.enqueue(Fate(attempt, outcome, time.monotonic()))
    record = RunStore(runtime.store.client, runtime.settings.key_prefix)

    def outcomes() -> list[list[str]]:
        return [[row.outcome for row in rows] for rows in record.rows(["guarded", "other"], 10)]

    eventually(lambda: outcomes() == [["succeeded"], ["failed"]], what="both rows")
    attempt = Attempt("returned", now, "returned", 0, 20)
    returned = Hold("token", "returned", 0, 60_000, life_ms=60_000)
    runtime.store.begin(returned)
    record.record([Fate(attempt, "running", time.monotonic())])
    runtime.store.end(returned, "dead")
    schedules = Schedules(placed_app)
    assert [schedules.runs(name)[0].outcome for name in ("guarded", "other", "returned")] == [
        "succeeded",
        "failed",
        "waiting",
    ]
    assert [run.name for run in schedules.runs()] == ["other", "guarded"]


@whoever_is_let_in
def test_pipelines(placed_app: Celery, place: Place) -> None:
    placed_app.conf.redbeat_lite_once_lease = 1  # the sweeper looks twice in that time
    for name in ("first", "second"):

        @placed_app.task(name=name, base=PipelineTask, shared=False)
        def step(params: dict[str, object]) -> None:
            """Never runs: there is no worker here."""

    run = Pipeline(placed_app, [["first", 1], ["second", 2]], {"x": 1}).start()
    assert place.queue.llen("celery") == 1
    assert run.params() == {"x": 1}
    eventually(lambda: sweep(placed_app), what="a look of the sweeper")
    run.cancel()
    assert run.status().ended


@whoever_is_let_in
def test_signs_of_life(placed_app: Celery, scheduler: Scheduler) -> None:
    Schedules(placed_app).add("hourly", "add", every(3600))
    scheduler.run_due()
    found = eventually(lambda: status(placed_app).leader, what="the report of the leader")
    assert found.pid == os.getpid()
    assert health(scheduler.settings).healthy
    findings = examine(placed_app)
    assert all(finding.severity != "error" for finding in findings), findings


def test_no_password_is_shown(place: Place, placed_app: Celery, scheduler: Scheduler) -> None:
    shown = scheduler.info + repr(scheduler.settings) + scheduler.store.backend.display_url
    for secret in ("specials", "of-the-sentinels"):
        assert secret not in shown
