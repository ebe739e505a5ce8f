"""Whether the broker is the database of the schedule, and what a server without its data has to be told again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import redis
from celery import Celery
from kombu import Exchange, Queue
from kombu.common import Broadcast

from redbeat_lite import Scheduler, Schedules, every
from redbeat_lite.store.connections import FAULTS
from redbeat_lite.store.leader_store import LeaderStore
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import heard, parse, queued
from tests.support.server import Server

ONE_STEP = "in one step with the schedule (exactly once), "


@contextmanager
def between_look_and_connection(beat: Scheduler, happens: Callable[[], Any]) -> Iterator[None]:
    """Have something happen once, after the leader has looked for due entries and before it turns to the broker."""
    peek, left = beat.store.peek, [happens]

    def peeked(*args: Any) -> Any:
        found = peek(*args)
        if left:
            left.pop()()
        return found

    with mock.patch.object(beat.store, "peek", peeked):
        yield
    assert not left


@needs_batches
class TestOwnDatabase:
    @pytest.mark.parametrize("successor", [False, True])
    def test_is_known_by_who_has_lost_its_lease_before_it_connects(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
        caplog: pytest.LogCaptureFixture,
        successor: bool,
    ) -> None:
        caplog.set_level("INFO")
        app = make_app()
        beat, other = make_beat(app), make_beat(app)
        Schedules(app).add("a", "t", every(10))
        clock.forward(10)

        def lose() -> None:
            client.delete(beat.store.keys.leader)
            if successor:
                other.run_due()
                other.leader.resign()

        with between_look_and_connection(beat, lose):
            assert beat.run_due() == 0.0
        assert not beat.leader.has_term
        clock.forward(10)
        beat.run_due()
        assert beat._parts.state.dispatch.startswith(ONE_STEP)
        assert not [line for line in caplog.messages if "apart from the schedule" in line]
        messages = queued(client)
        assert len({message.id for message in messages}) == len(messages)

    def test_is_known_by_who_loses_its_lead_while_it_asks(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        app = make_app()
        beat, other = make_beat(app), make_beat(app)
        Schedules(app).add("a", "t", every(10))
        clock.forward(10)
        is_marked = LeaderStore.is_marked

        def late(store: LeaderStore, *args: Any) -> bool:
            client.delete(beat.store.keys.leader)
            other.leader.acquire()
            other.store.mark(other.leader.term)
            return is_marked(store, *args)

        with mock.patch.object(LeaderStore, "is_marked", late):
            assert beat.run_due() == 0.0
        assert beat._parts.state.dispatch == ""
        assert beat._parts.publisher._producer is None

    @pytest.mark.parametrize("anew", ["term", "connection"])
    def test_is_judged_anew_in_each(
        self, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock, anew: str
    ) -> None:
        app = make_app(broker_url=f"{server.url.removesuffix('/0')}/1", redbeat_lite_url=server.url)
        beat = make_beat(app)
        Schedules(app).add("a", "t", every(10))
        clock.forward(10)
        beat.run_due()
        assert "the broker is another server or database" in beat._parts.state.dispatch
        app.conf.broker_write_url = server.url
        if anew == "term":
            with server.client() as client:
                client.delete(beat.store.keys.leader)
            beat.run_due()
        else:
            with (
                mock.patch.object(beat.store, "peek", side_effect=redis.ConnectionError("gone for a moment")),
                mock.patch.object(beat._parts.wakeup, "wait"),
            ):
                beat.tick()
        clock.forward(10)
        beat.run_due()
        assert beat._parts.state.dispatch.startswith(ONE_STEP)

    def test_is_not_that_of_a_copy(self, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock) -> None:
        app = make_app(broker_url=f"{server.url.removesuffix('/0')}/1", redbeat_lite_url=server.url)
        beat = make_beat(app)
        Schedules(app).add("a", "t", every(10))
        clock.forward(10)
        beat.run_due()
        with server.client() as client, server.client(db=1) as broker:
            for _ in range(2):
                for key in client.keys("{redbeat-lite}:*"):
                    client.copy(key, key, destination_db=1, replace=True)
                beat._parts.publisher.close()
                clock.forward(10)
                beat.run_due()
                assert "the broker is another server or database" in beat._parts.state.dispatch
            assert len(queued(broker)) == 3


TOPIC = Exchange("news", type="topic")
SPORT = {"queue": "sport", "routing_key": "sport.chess"}


@pytest.fixture
def topical(make_app: MakeApp) -> Callable[..., Celery]:
    """Makes apps with a queue that is bound to a topic exchange."""
    queues = [Queue("celery"), Queue("sport", TOPIC, routing_key="sport.*")]
    return lambda **conf: make_app(task_queues=queues, **conf)


class TestAServerWithoutItsData:
    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    @pytest.mark.parametrize("restarts", [False, True])
    def test_is_told_of_the_queues_again(
        self,
        topical: MakeApp,
        make_beat: MakeBeat,
        own_server: Callable[..., Server],
        clock: Clock,
        dispatch: str,
        restarts: bool,
    ) -> None:
        server = own_server()
        app = topical(broker_url=server.url, redbeat_lite_dispatch=dispatch)
        beat = make_beat(app)
        Schedules(app).add("a", "t", every(10), options=SPORT)
        clock.forward(10)
        beat.run_due()
        if restarts:
            server.stop()
            with pytest.raises(FAULTS):
                beat.run_due()
            server.start()
        else:
            with server.client() as client:
                client.flushall()
        beat.run_due()
        Schedules(app).add("a", "t", every(10), options=SPORT)
        clock.forward(10)
        beat.run_due()
        with server.client() as client:
            assert [message.entry for message in queued(client, "sport")] == ["a"]

    @needs_batches
    def test_that_holds_the_queues_alone_is_told_of_them_again(
        self, topical: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock
    ) -> None:
        app = topical(broker_url=f"{server.url.removesuffix('/0')}/1", redbeat_lite_url=server.url)
        beat = make_beat(app)
        schedules = Schedules(app)
        schedules.add("a", "t", every(10), options=SPORT)
        with server.client(db=1) as broker:
            for _ in range(3):
                broker.flushdb()
                clock.forward(10)
                beat.run_due()
                assert [message.entry for message in queued(broker, "sport")] == ["a"]
        assert schedules["a"].total_run_count == 3


@needs_batches
@pytest.mark.parametrize("database", [0, 1])
def test_a_message_that_no_queue_is_bound_for_counts_as_sent_and_is_told_of_once(
    topical: MakeApp,
    make_beat: MakeBeat,
    server: Server,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    database: int,
) -> None:
    app = topical(broker_url=f"{server.url.removesuffix('/0')}/{database}", redbeat_lite_url=server.url)
    beat = make_beat(app)
    schedules = Schedules(app)
    schedules.add("stray", "t", every(10), options={"queue": "sport", "routing_key": "weather.rain"})
    schedules.add("b", "t", every(10), options=SPORT)
    for _ in range(3):
        clock.forward(10)
        beat.run_due()
    assert [line for line in caplog.messages if "goes nowhere" in line] == [
        "beat: 'stray' goes nowhere, as in Celery: no queue is bound to exchange 'news' with routing key 'weather.rain'"
    ]
    assert {name: entry.total_run_count for name, entry in schedules.items()} == {"stray": 3, "b": 3}
    with server.client(db=database) as broker:
        assert [message.entry for message in queued(broker, "sport")] == ["b"] * 3


@needs_batches
def test_a_message_that_finds_no_queue_takes_no_other_from_its_listeners(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    app = make_app(task_queues=[Queue("sport", TOPIC, routing_key="sport.*"), Broadcast("everybody")])
    schedules = Schedules(app)
    schedules.add("1, stray", "t", every(10), options={"queue": "sport", "routing_key": "weather.rain"})
    schedules.add("2, loud", "t", every(10), options={"queue": "everybody"})
    beat = make_beat(app)
    listener = client.pubsub()
    listener.psubscribe("*everybody*")
    assert listener.get_message(timeout=5)["type"] == "psubscribe"
    clock.forward(10)
    beat.run_due()
    assert parse(heard(listener)).entry == "2, loud"
    listener.close()


@needs_batches
def test_a_task_that_publishes_nothing_is_asked_once(make_app: MakeApp, make_beat: MakeBeat, clock: Clock) -> None:
    app = make_app()
    asked = []

    @app.task(shared=False, name="quiet")
    def quiet() -> None: ...

    Schedules(app).add("a", "quiet", every(10))
    beat = make_beat(app)
    clock.forward(10)
    with mock.patch.object(quiet, "apply_async", side_effect=lambda *args, **options: asked.append(args)):
        beat.run_due()
    assert len(asked) == 1
