"""What a new leader owes the schedule is done, even if the server goes away in the middle of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Scheduler, Schedules, every
from redbeat_lite._base.clock import wall_ms
from redbeat_lite.beat.leader import Leader
from redbeat_lite.beat.repair import Repair
from redbeat_lite.entries.changes import Stored
from redbeat_lite.events import Hooks, LeaderGained, LeaderLost, subscribe
from redbeat_lite.store.keys import ForeignKey
from redbeat_lite.store.records import Lost, Term
from redbeat_lite.store.scripts import Scripts
from redbeat_lite.store.server_check import server_of
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually


def test_a_term_that_broke_off_at_its_beginning_is_begun_anew(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(beat_schedule={"configured": {"task": "add", "schedule": 60}})
    scheduler = Scheduler(app)
    with monkeypatch.context() as patch:

        def gone(*args: object) -> None:
            raise redis.ConnectionError("the server went away")

        patch.setattr(scheduler._parts.leadership.config, "sync", gone)
        with pytest.raises(redis.ConnectionError):
            scheduler.run_due()
    assert scheduler.leader.holds_lease
    scheduler.run_due()
    assert "configured" in Schedules(app)
    scheduler.close()


def test_a_term_that_has_run_out_by_the_end_of_a_turn_is_noticed_then(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(make_app())
    turn = scheduler._parts.dispatcher.run

    def frozen() -> int | None:
        upcoming = turn()
        assert scheduler.leader._renewal is not None
        scheduler.leader._renewal.stop()
        return upcoming

    monkeypatch.setattr(scheduler._parts.dispatcher, "run", frozen)
    with Stopwatch() as watch:
        scheduler.tick()
    watch.at_most(2)  # and not in five minutes
    scheduler.close()


def test_a_lease_whose_grant_was_lost_on_the_way_is_given_back_at_the_end(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(make_app())
    scripts = scheduler.store.backend.scripts

    class LosesReplies:
        together = scripts.together

        def run(self, *args: Any, **values: Any) -> Any:
            scripts.run(*args, **values)
            raise redis.ConnectionError("the reply is lost")

    monkeypatch.setitem(vars(scheduler.store.backend), "scripts", LosesReplies())
    with pytest.raises(redis.ConnectionError):
        scheduler.run_due()
    assert client.exists(scheduler.store.keys.leader)
    scheduler.close()
    assert not client.exists(scheduler.store.keys.leader)


@pytest.mark.parametrize("stood_by", [False, True])
def test_the_end_of_the_lease_in_an_outage_is_not_the_end_of_the_outage(
    make_app: MakeApp, own_server: Callable[..., Server], caplog: pytest.LogCaptureFixture, stood_by: bool
) -> None:
    server = own_server()
    options = {"socket_timeout": 0.3, "socket_connect_timeout": 0.3}
    app = make_app(broker_url=server.url, redbeat_lite_lease=1, redbeat_lite_redis_options=options)
    scheduler = Scheduler(app, max_interval=0.05)
    if stood_by:
        with server.client() as client:
            client.hset(scheduler.store.keys.leader, mapping={"token": "other", "term": 1})
        scheduler.tick()
        assert not scheduler.leader.has_term
    while not scheduler.leader.has_term:
        scheduler.tick()
    server.freeze()
    while scheduler.leader.has_term:
        scheduler.tick()
    assert "cannot use" in caplog.text
    assert "working again" not in caplog.text
    server.thaw()
    while not scheduler.leader.has_term:
        scheduler.tick()
    assert "working again" in caplog.text
    scheduler.close()


def test_a_leader_whose_server_refuses_connections_says_that_it_leads_no_more(
    make_app: MakeApp, proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[LeaderGained | LeaderLost] = []

    class Listener(Hooks):
        def leader_gained(self, event: LeaderGained) -> None:
            heard.append(event)

        def leader_lost(self, event: LeaderLost) -> None:
            heard.append(event)

    heartbeat = tmp_path / "beat"
    app = make_app(redbeat_lite_url=proxy.url, redbeat_lite_lease=1, redbeat_lite_heartbeat_file=str(heartbeat))
    subscribe(app, Listener())
    scheduler = Scheduler(app, max_interval=0.05)
    eventually(lambda: scheduler.tick() or scheduler._parts.state.is_leader, what="a leader")
    eventually(lambda: scheduler.tick() or '"leader"' in heartbeat.read_text(), what="its file")
    proxy.refuse()
    eventually(lambda: scheduler.tick() or '"stand-by"' in heartbeat.read_text(), what="its other file", within=20)
    assert not scheduler._parts.state.is_leader
    eventually(lambda: len(heard) == 2, what="the end of its term")
    assert isinstance(heard[1], LeaderLost)
    assert "could not be renewed" in heard[1].reason
    assert "working again" not in caplog.text
    proxy.heal()
    eventually(lambda: scheduler.tick() or scheduler._parts.state.is_leader, what="another term")
    assert caplog.text.count("no longer leading") == 1
    scheduler.close()


@pytest.mark.usefixtures("small_pages")
def test_mending_a_large_schedule_is_progress_for_the_watchdog(make_app: MakeApp, server: Server) -> None:
    app = make_app()
    Schedules(app).add_many(Entry(f"e{number}", "add", every(60)) for number in range(250))
    scheduler = Scheduler(app)
    told: list[str] = []
    leader, leadership = scheduler.leader, scheduler._parts.leadership
    repair = Repair(scheduler.store, app, leader.clock, leadership.config, told.append)
    with server.client() as client:
        client.delete(scheduler.store.keys.due)
        leader.acquire()
        repair.restore(leader.term, wall_ms())
        assert client.zcard(scheduler.store.keys.due) == 250
        assert len(told) == 250
    scheduler.close()


class TestAStalledLeader:
    """One that wakes in the middle of its work, after its successor has done the same, writes nothing."""

    @pytest.fixture
    def contents(self, client: redis.Redis) -> Callable[[], dict[bytes, bytes | None]]:
        """All that the server holds, but for the lease, which is renewed all the time."""
        return lambda: {key: client.dump(key) for key in client.keys("*") if not key.endswith(b"leader")}

    @pytest.fixture
    def asleep(self, make_app: MakeApp, client: redis.Redis) -> Iterator[tuple[Scheduler, Term]]:
        """A leader of an older configuration, whose successor leads by now and has begun its term."""
        shared = {"task": "add", "schedule": 3600}
        old = Scheduler(make_app(beat_schedule={"both": {**shared, "args": [1]}, "before": shared}))
        old.leader.acquire()
        term = old.leader.term
        client.delete(old.store.keys.leader)  # the lease ran out while it slept
        new = Scheduler(make_app(beat_schedule={"both": {**shared, "args": [2]}, "after": shared}))
        new.run_due()
        yield old, term
        for each in (old, new):
            each.close()

    def test_in_the_reading_of_its_configuration(
        self, asleep: tuple[Scheduler, Term], contents: Callable[[], dict[bytes, bytes | None]]
    ) -> None:
        old, term = asleep
        before = contents()
        with pytest.raises(Lost):
            old._parts.leadership.config.sync(term, wall_ms())
        with pytest.raises(Lost):
            old.store.set_config_names("proj", ["before"], term)
        assert contents() == before

    @pytest.mark.parametrize("part", ["due", "state"])
    def test_in_mending(
        self,
        asleep: tuple[Scheduler, Term],
        contents: Callable[[], dict[bytes, bytes | None]],
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        part: str,
    ) -> None:
        old, term = asleep
        client.delete(f"{{redbeat-lite}}:{part}")
        before = contents()
        with pytest.raises(Lost):
            old._parts.leadership.repair.restore(term, wall_ms())
        assert contents() == before

    def test_in_rescheduling_after_the_clock_went_back(
        self, asleep: tuple[Scheduler, Term], contents: Callable[[], dict[bytes, bytes | None]]
    ) -> None:
        old, term = asleep
        before = contents()
        repair = old._parts.leadership.repair
        with pytest.raises(Lost):
            repair.reschedule(term, b"1")
        assert contents() == before

    def test_loses_its_term_and_stands_by(
        self, make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scheduler = Scheduler(make_app(beat_schedule={"configured": {"task": "add", "schedule": 60}}))
        read = scheduler.store.read

        def slow(names: Sequence[str | bytes]) -> list[Stored]:
            found = read(names)
            client.hset(scheduler.store.keys.leader, mapping={"token": "successor", "term": 99})
            return found

        monkeypatch.setattr(scheduler.store, "read", slow)
        assert scheduler.run_due() == 0.0
        assert not scheduler.leader.has_term
        assert client.hlen(scheduler.store.keys.entries) == 0
        scheduler.close()


def test_a_connection_that_breaks_while_the_server_is_looked_at_is_no_clean_bill() -> None:
    class Gone:
        def info(self, *sections: str) -> None:
            raise redis.ConnectionError("the server went away")

    with pytest.raises(redis.ConnectionError):
        server_of(Gone())


class Held(Scripts):
    """Scripts whose replies are held up, by a clock that the test sets."""

    now = 100.0
    by = 0.0
    renewals = 0

    def run(self, name: str, *args: Any, **values: Any) -> Any:
        reply = super().run(name, *args, **values)
        Held.now += Held.by
        if name == "leader/renew":
            Held.renewals += 1
            Held.by = 0.0
            if Held.renewals > 1:
                raise redis.ConnectionError("one renewal is enough")
        return reply


class TestTrust:
    """The leader trusts its lease from the moment it asked for it, and for an eighth less than Redis keeps it."""

    @pytest.fixture
    def leader(
        self, make_app: MakeApp, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Leader]:
        scheduler = Scheduler(make_app(redbeat_lite_lease=request.param))
        monkeypatch.setattr("redbeat_lite.beat.leader.elapsed", lambda: Held.now)
        monkeypatch.setattr("redbeat_lite.beat.leader.Scripts", Held)
        monkeypatch.setitem(vars(scheduler.store.backend), "scripts", Held(scheduler.store.backend.client))
        for name, value in (("now", 100.0), ("by", 0.0), ("renewals", 0)):
            monkeypatch.setattr(Held, name, value)
        yield scheduler.leader
        scheduler.close()

    @pytest.mark.parametrize("leader", [600], indirect=True)
    def test_after_the_lease_was_given_late(self, leader: Leader) -> None:
        Held.by = 300.0
        leader.acquire()
        Held.now = 100 + 525 - 0.1
        assert leader.holds_lease
        Held.now = 100 + 525 + 0.1
        assert not leader.holds_lease

    @pytest.mark.parametrize("leader", [1], indirect=True)
    def test_after_a_renewal_whose_reply_came_late(self, leader: Leader) -> None:
        leader.acquire()
        Held.now, Held.by = 100.4, 0.5
        eventually(lambda: Held.renewals, what="a renewal")
        Held.now = 100.4 + 0.875 - 0.01
        eventually(lambda: leader.holds_lease, what="trust in it")
        Held.now = 100.4 + 0.875 + 0.01
        assert not leader.holds_lease

    def test_a_term_that_ends_in_another_thread_meanwhile_is_no_error(self, make_beat: MakeBeat, app: Celery) -> None:
        """The incident watch asks whether its process leads, while the main loop ends the term."""
        leader = make_beat(app).leader
        leader.acquire()
        renewal = leader._renewal
        for ask, answer in ((lambda: leader.holds_lease, True), (lambda: leader.term.number, 1)):
            # The main loop ends the term after the first read of the attribute.
            ends = mock.PropertyMock(side_effect=[renewal, None, None])
            with mock.patch.object(Leader, "_renewal", ends, create=True):
                assert ask() == answer

    def test_a_term_that_ends_while_a_renewal_is_under_way_is_trusted_no_more(
        self, make_beat: MakeBeat, app: Celery, client: redis.Redis
    ) -> None:
        leader = make_beat(app).leader
        leader.acquire()
        renewal = leader._renewal
        assert renewal is not None
        # Another thread ends the term after the renewal has looked whether it has ended.
        with mock.patch.object(leader.clock, "adjust", side_effect=lambda *reading: renewal.stop()):
            assert renewal._renew(Scripts(client))
        assert not leader.holds_lease

    def test_who_has_stepped_down_renews_no_more(self, make_app: MakeApp, client: redis.Redis) -> None:
        scheduler = Scheduler(make_app(redbeat_lite_lease=1))
        scheduler.leader.acquire()
        scheduler.leader.step_down()
        eventually(lambda: not client.exists(scheduler.store.keys.leader), what="the end of the lease")
        scheduler.close()


def test_a_beat_says_that_it_stands_by_each_time_that_it_does(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    app = make_app()
    Schedules(app).add("a", "add", every(60))
    first, second = make_beat(app), make_beat(app)
    first.run_due()
    assert "beat: leading (term 1), 1 entry" in caplog.messages
    for _ in range(2):
        second.run_due()
    assert caplog.text.count("standing by") == 1
    first.close()
    second.run_due()
    assert second.leader.holds_lease
    client.hset(second.store.keys.leader, mapping={"token": "elsewhere:1:00:project", "term": 99})
    for _ in range(2):
        second.run_due()
    assert caplog.text.count("standing by") == 2


def misuse_a_key(client: redis.Redis) -> None:
    """Do what another program does that uses a key of ours."""
    client.rpush("{redbeat-lite}:pipelines", "x")


def test_a_leader_finds_out_when_another_program_begins_to_use_a_key(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
) -> None:
    beat = make_beat(make_app())
    beat.run_due()
    misuse_a_key(client)
    beat.run_due()
    beat._parts.leadership._next_check = 0.0  # some leases later
    with pytest.raises(ForeignKey, match="pipelines is a list"):
        beat.run_due()
    client.delete("{redbeat-lite}:pipelines")


def test_a_leader_that_met_a_foreign_key_does_not_lead_on_with_the_rest_of_its_lease(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
) -> None:
    beat = make_beat(make_app())
    beat.run_due()
    misuse_a_key(client)
    beat._parts.leadership._next_check = 0.0
    with pytest.raises(ForeignKey) as met:
        beat.run_due()
    beat._parts.outage.handle(met.value)
    assert client.hget(beat.store.keys.leader, "token")  # the lease is this beat's own, and lasts for a while
    with pytest.raises(ForeignKey, match="pipelines is a list"):
        beat.run_due()
    client.delete("{redbeat-lite}:pipelines")
    beat.run_due()
    assert beat.leader.holds_lease


def test_a_renewal_does_not_undo_the_dispatchers_request_for_a_repair(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
) -> None:
    beat = make_beat(make_app())
    beat.run_due()
    renewal = beat.leader._renewal
    assert renewal is not None
    beat.leader.needs_repair = True  # as the dispatcher does, which met a torn entry
    assert renewal._renew(Scripts(client))  # read Redis before the entry was torn
    assert beat.leader.needs_repair
    beat.run_due()
    assert not beat.leader.needs_repair


def test_a_lease_that_is_acquired_during_a_resignation_is_released_by_the_next_one(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
) -> None:
    beat = make_beat(make_app())
    beat.run_due()
    backend = beat.store.backend
    open_client = backend.open

    def open_for_the_release(**options: Any) -> Any:
        opened = open_client(**options)
        patch.stop()
        close = opened.close

        def close_late() -> None:
            opened.close = close  # type: ignore[method-assign]  # redis-py closes a client again when it is collected
            close()
            assert beat.leader.acquire() == 0.0  # as the main loop may, while another thread closes the beat

        opened.close = close_late  # type: ignore[method-assign]
        return opened

    patch = mock.patch.object(backend, "open", open_for_the_release)
    patch.start()
    beat.leader.resign()
    assert client.exists(beat.store.keys.leader)
    beat.leader.resign()
    assert not client.exists(beat.store.keys.leader)


def test_an_option_of_the_url_that_makes_replies_texts_changes_nothing(
    make_app: MakeApp, make_beat: MakeBeat, server: Server
) -> None:
    app = make_app(redbeat_lite_url=f"{server.url}?decode_responses=true")
    schedules = Schedules(app)
    schedules.add("a", "add", every(60))
    make_beat(app).run_due()
    assert [change.names for change in schedules.changes() if change.action == "added"] == [("a",)]
