"""The ways messages go out: in one step with the schedule, in batches, one by one; and what a crash does to each."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import celery.beat
import kombu.transport.redis
import pytest
import redis
from celery import Task, signals
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.exceptions import OperationalError

from redbeat_lite import Entry, Scheduler, Schedules, every, locks
from redbeat_lite.beat.dispatch.broker import BrokerDown
from redbeat_lite.beat.dispatch.collector import Collector
from redbeat_lite.beat.dispatch.prepared import Prepared
from redbeat_lite.storage.stored import Lost
from tests.support.commands import commands, round_trips
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import BATCHES, needs_batches
from tests.support.messages import parse, queued
from tests.support.proxy import Proxy
from tests.support.server import Server

#: Every way of dispatch there is, by the settings that bring it about.
WAYS: dict[str, dict[str, Any]] = {
    "one step": {},
    "one step, in full": {"redbeat_lite_dispatch": "batch"},
    "one by one": {"redbeat_lite_dispatch": "plain"},
    "batches to another database": {"broker": 1},
    "batches to another database, in full": {"broker": 1, "redbeat_lite_dispatch": "batch"},
    "one by one to another database": {"broker": 1, "redbeat_lite_dispatch": "plain"},
}


class Setup:
    """An app, its schedules and a beat, dispatching in one of the ways."""

    def __init__(self, way: str, make_app: MakeApp, make_beat: MakeBeat, server: Server, **conf: Any) -> None:
        conf = {**WAYS[way], **conf}
        database = conf.pop("broker", 0)
        url = server.url.removesuffix("/0")
        self.app = make_app(broker_url=f"{url}/{database}", redbeat_lite_url=server.url, **conf)
        self.schedules = Schedules(self.app)
        self.make_beat = make_beat
        self.beat = make_beat(self.app)
        self.broker = server.client(db=database)

    def restart(self) -> None:
        """Start another beat; of the one that has crashed nothing is heard any more but the end of its lease."""
        self.beat.leader.resign()
        self.beat = self.make_beat(self.app)

    def crash_before_the_commit(self) -> None:
        """Dispatch what is due, and die when it would be committed."""
        with (
            mock.patch.object(self.beat.store, "commit", side_effect=redis.ConnectionError("crash")),
            pytest.raises(redis.ConnectionError),
        ):
            self.beat.run_due()

    def odd_task(self, **options: Any) -> Any:
        """A task of its own, of which a test makes what it likes."""

        @self.app.task(shared=False, name="odd", **options)
        def odd() -> None: ...

        return odd


@pytest.fixture(params=WAYS)
def setup(request: pytest.FixtureRequest, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock) -> Any:
    setup = Setup(request.param, make_app, make_beat, server)
    yield setup
    setup.broker.close()


ONE_STEP = [pytest.param(way, marks=needs_batches) for way in ("one step", "one step, in full")]
exactly_once = pytest.mark.parametrize("setup", ONE_STEP, indirect=True)


class TestEveryWay:
    @pytest.mark.parametrize("count", [140, pytest.param(700, marks=pytest.mark.soak)])
    def test_sends_each_occurrence_once(self, setup: Setup, clock: Clock, count: int) -> None:
        setup.beat._dispatcher._batch_size = count * 5 // 7  # by default it is 500: they do not fit into one batch
        setup.schedules.add_many(Entry(f"e{number}", "t", every(10), (number,)) for number in range(count))
        for _ in range(3):
            clock.forward(10)
            setup.beat.run_due()
        messages = queued(setup.broker)
        assert len({message.id for message in messages}) == len(messages) == 3 * count
        assert all(entry.total_run_count == 3 for entry in setup.schedules.values())

    def test_says_how_it_sends(self, setup: Setup, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        setup.schedules.add("a", "t", every(10))
        clock.forward(10)
        setup.beat.run_due()
        [line] = [each for each in caplog.messages if "messages go out" in each]
        one_step, batches = "one step" in line, "in batches" in line
        if not BATCHES:
            assert (one_step, batches) == (False, False)
        elif setup.broker.connection_pool.connection_kwargs["db"]:
            assert (one_step, batches) == (False, setup.app.conf.get("redbeat_lite_dispatch") != "plain")
        else:
            assert (one_step, batches) == (setup.app.conf.get("redbeat_lite_dispatch") != "plain", False)

    def test_after_a_crash_between_publish_and_commit_the_same_ids_go_out(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add_many(Entry(f"e{number}", "t", every(10)) for number in range(20))
        clock.forward(10)
        setup.crash_before_the_commit()
        before = {message.id for message in queued(setup.broker)}
        setup.restart()
        setup.beat.run_due()
        messages = queued(setup.broker)
        assert len({message.id for message in messages}) == 20
        assert before <= {message.id for message in messages}
        assert len(messages) == 20 + len(before)
        assert all(entry.total_run_count == 1 for entry in setup.schedules.values())
        assert {entry.last_task_id for entry in setup.schedules.values()} == {message.id for message in messages}

    @exactly_once
    def test_a_crash_between_publish_and_commit_doubles_nothing_in_one_step(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add_many(Entry(f"e{number}", "t", every(10)) for number in range(20))
        clock.forward(10)
        setup.crash_before_the_commit()
        assert queued(setup.broker) == []
        setup.restart()
        setup.beat.run_due()
        assert len(queued(setup.broker)) == 20

    @exactly_once
    def test_a_leader_that_lost_its_lead_before_the_commit_holds_no_once_lock(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add("a", "t", every(10), once=True)
        clock.forward(10)
        with mock.patch.object(setup.beat.store, "commit", side_effect=Lost):
            setup.beat.run_due()
        assert (queued(setup.broker), list(locks(setup.app).list())) == ([], [])

    @exactly_once
    def test_a_beat_that_dies_before_the_commit_leaves_no_once_lock_to_the_next(
        self, setup: Setup, clock: Clock
    ) -> None:
        setup.schedules.add("a", "t", every(10), once=True)
        clock.forward(10)
        setup.crash_before_the_commit()
        setup.restart()
        clock.forward(10)
        setup.beat.run_due()
        assert len(queued(setup.broker)) == 1

    @exactly_once
    def test_a_commit_whose_answer_is_lost_doubles_nothing_in_one_step(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add("a", "t", every(10))
        clock.forward(10)
        commit = setup.beat.store.commit

        def lost(*args: Any) -> Any:
            commit(*args)
            raise redis.ConnectionError("the answer was lost")

        with (
            mock.patch.object(setup.beat.store, "commit", side_effect=lost),
            pytest.raises(redis.ConnectionError),
        ):
            setup.beat.run_due()
        setup.beat.run_due()
        assert len(queued(setup.broker)) == 1

    @exactly_once
    def test_an_entry_removed_between_plan_and_commit_is_not_sent_in_one_step(self, setup: Setup, clock: Clock) -> None:
        # The interleaving: peeked by the beat, removed and edited by somebody, committed by the beat.
        setup.schedules.add("removed", "t", every(10))
        setup.schedules.add("edited", "t", every(10), (1,))
        setup.schedules.add("paused", "t", every(10))
        clock.forward(10)
        commit = setup.beat.store.commit

        def late(*args: Any) -> Any:
            if "removed" in setup.schedules:
                del setup.schedules["removed"]
                setup.schedules.update("edited", args=(2,))
                setup.schedules.pause("paused")
            return commit(*args)

        with mock.patch.object(setup.beat.store, "commit", side_effect=late):
            setup.beat.run_due()
        assert [(message.entry, message.args) for message in queued(setup.broker)] == [("edited", [2])]
        assert "removed" not in setup.schedules
        assert setup.schedules["paused"].paused_note == ""

    @exactly_once
    def test_an_entry_removed_between_plan_and_commit_holds_no_once_lock(self, setup: Setup, clock: Clock) -> None:
        for name in ("removed", "paused"):
            setup.schedules.add(name, "t", every(10), (name,), once=True)
        clock.forward(10)
        commit = setup.beat.store.commit

        def late(*args: Any) -> Any:
            del setup.schedules["removed"]
            setup.schedules.pause("paused")
            return commit(*args)

        with mock.patch.object(setup.beat.store, "commit", side_effect=late):
            setup.beat.run_due()
        assert (queued(setup.broker), list(locks(setup.app).list())) == ([], [])

    def test_a_removed_entry_does_not_come_back_by_a_late_commit(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add("a", "t", every(10))
        clock.forward(10)
        commit = setup.beat.store.commit

        def late(*args: Any) -> Any:
            setup.schedules.remove("a", missing_ok=True)
            return commit(*args)

        with mock.patch.object(setup.beat.store, "commit", side_effect=late):
            setup.beat.run_due()
        assert "a" not in setup.schedules
        assert setup.schedules.list() == []

    def test_the_transports_key_prefix_is_honoured(
        self, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock
    ) -> None:
        for way in WAYS:
            setup = Setup(way, make_app, make_beat, server, broker_transport_options={"global_keyprefix": f"{way}:"})
            setup.schedules.add("a", "t", every(10))
            for _ in range(2):
                clock.forward(10)
                setup.beat.run_due()
            assert setup.broker.llen(f"{way}:celery") == 2
            assert not setup.broker.exists("celery")
            setup.broker.delete(*setup.broker.keys(f"{way}:*"))
            setup.beat.close()
            setup.schedules.clear()
            setup.broker.close()

    @pytest.mark.parametrize("setup", [way for way in WAYS if "one step" not in way], indirect=True)
    def test_what_is_out_keeps_its_once_lock_where_it_cannot_be_committed(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add("a", "t", every(10), once=True)
        clock.forward(10)
        setup.crash_before_the_commit()
        [message] = queued(setup.broker)
        assert [lock.task_id for lock in locks(setup.app).list()] == [message.id]


class TestQueues:
    @needs_batches
    def test_a_queue_that_expires_gets_its_expiry(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        queue = Queue("short", Exchange("short"), "short", expires=100)
        app = make_app(task_queues=[queue], task_default_queue="short")
        Schedules(app).add("a", "t", every(10))
        beat = make_beat(app)
        for expected in (1, 2):
            clock.forward(10)
            beat.run_due()
            assert client.llen("short") == expected
            assert 0 < client.pttl("short") <= 100_000
            client.persist("short")
        clock.forward(10)
        beat.run_due()
        assert client.pttl("short") > 0

    def test_a_broadcast_queue_reaches_its_listeners(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        app = make_app(task_queues=[Broadcast("everybody")], task_routes={"t": {"queue": "everybody"}})
        heard = client.pubsub()
        heard.psubscribe("*everybody*")
        assert heard.get_message(timeout=5)["type"] == "psubscribe"
        Schedules(app).add("a", "t", every(10))
        beat = make_beat(app)
        for _ in range(2):
            clock.forward(10)
            beat.run_due()
        messages = [parse(heard.get_message(timeout=5)["data"]) for _ in range(2)]
        assert [message.entry for message in messages] == ["a", "a"]
        assert messages[0].id != messages[1].id
        heard.close()

    def test_a_topic_exchange_with_several_queues_reaches_each(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        topic = Exchange("news", type="topic")
        queues = [Queue("all", topic, routing_key="#"), Queue("sport", topic, routing_key="sport.*")]
        app = make_app(task_queues=queues)
        with app.connection_for_write() as connection:
            for queue in queues:
                queue(connection.default_channel).declare()
        Schedules(app).add("a", "t", every(10), options={"queue": "sport", "routing_key": "sport.chess"})
        beat = make_beat(app)
        for _ in range(2):
            clock.forward(10)
            beat.run_due()
        assert [message.entry for message in queued(client, "all")] == ["a", "a"]
        assert [message.id for message in queued(client, "all")] == [message.id for message in queued(client, "sport")]

    def test_a_queue_that_is_bound_later_gets_what_comes_later(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        topic = Exchange("news", type="topic")
        app = make_app(task_queues=[Queue("sport", topic, routing_key="sport.*")])
        Schedules(app).add("a", "t", every(10), options={"queue": "sport", "routing_key": "sport.chess"})
        beat = make_beat(app)
        clock.forward(10)
        beat.run_due()
        with app.connection_for_write() as connection:
            Queue("all", topic, routing_key="#")(connection.default_channel).declare()
        clock.forward(10)
        beat.run_due()
        assert (client.llen("sport"), client.llen("all")) == (2, 1)

    @pytest.mark.parametrize("way", WAYS)
    def test_sent_events_are_sent(
        self, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock, client: redis.Redis, way: str
    ) -> None:
        setup = Setup(way, make_app, make_beat, server, task_send_sent_event=True)
        events = setup.broker.pubsub()
        events.psubscribe("*celeryev*")
        assert events.get_message(timeout=5)["type"] == "psubscribe"
        setup.schedules.add("a", "t", every(10))
        clock.forward(10)
        setup.beat.run_due()
        [message] = queued(setup.broker)
        body = json.loads(base64.b64decode(json.loads(events.get_message(timeout=5)["data"])["body"]))
        found = body[0] if isinstance(body, list) else body
        assert (found["type"], found["uuid"]) == ("task-sent", message.id)
        events.close()
        setup.broker.close()

    def test_a_signal_handler_sees_every_message_and_may_change_it(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        seen = []

        def before(sender: str, headers: dict[str, Any], **_: Any) -> None:
            seen.append((sender, headers["periodic_task_name"]))
            headers["added"] = len(seen)

        app = make_app()
        Schedules(app).add("a", "t", every(10))
        beat = make_beat(app)
        clock.forward(10)
        beat.run_due()
        signals.before_task_publish.connect(before)
        try:
            for _ in range(2):
                clock.forward(10)
                beat.run_due()
        finally:
            signals.before_task_publish.disconnect(before)
        assert seen == [("t", "a"), ("t", "a")]
        assert [message.headers.get("added") for message in queued(client)] == [None, 1, 2]

    def test_apply_entry_sees_every_run(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # As Sentry's beat monitoring does it.
        seen: list[tuple[str, str]] = []
        original = celery.beat.Scheduler.apply_entry

        def monitored(self: Any, entry: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append((entry.name, entry.options["headers"]["scheduled_at"]))
            entry.options["headers"]["sentry-trace"] = "trace"
            return original(self, entry, *args, **kwargs)

        monkeypatch.setattr(celery.beat.Scheduler, "apply_entry", monitored)
        app = make_app()
        Schedules(app).add("a", "t", every(10))
        beat = make_beat(app)
        for _ in range(3):
            clock.forward(10)
            beat.run_due()
        assert seen == [("a", message.headers["scheduled_at"]) for message in queued(client)]
        assert len(seen) == 3
        assert all(message.headers["sentry-trace"] == "trace" for message in queued(client))


class TestBrokerDown:
    def test_keeps_what_is_due_and_sends_it_once_it_is_back(
        self, make_app: MakeApp, make_beat: MakeBeat, server: Server, own_server: Callable[..., Server], clock: Clock
    ) -> None:
        broker = own_server()
        app = make_app(broker_url=broker.url, redbeat_lite_url=server.url)
        schedules, beat = Schedules(app), make_beat(app)
        schedules.add_many(Entry(f"e{number}", "t", every(60)) for number in range(10))
        clock.forward(60)
        beat.run_due()
        broker.stop(kill=True)
        clock.forward(60)
        for _ in range(2):
            with pytest.raises(BrokerDown):
                beat.run_due()
        assert all(entry.total_run_count == 1 for entry in schedules.values())
        broker.start()
        beat.run_due()
        assert all(entry.total_run_count == 2 for entry in schedules.values())
        with broker.client() as client:
            assert len({message.id for message in queued(client)}) == 10

    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    @pytest.mark.parametrize(
        ("refuse", "allow", "said"),
        [
            ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "memory"),
            ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "read only"),
            ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "enough good replicas"),
        ],
    )
    def test_goes_on_at_once_after_a_time_in_which_it_took_nothing(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        server: Server,
        own_server: Callable[..., Server],
        clock: Clock,
        dispatch: str,
        refuse: str,
        allow: str,
        said: str,
    ) -> None:
        broker = own_server()
        app = make_app(broker_url=broker.url, redbeat_lite_url=server.url, redbeat_lite_dispatch=dispatch)
        schedules, beat = Schedules(app), make_beat(app)
        schedules.add_many(Entry(f"e{number}", "t", every(60)) for number in range(10))
        with broker.client() as client:
            clock.forward(60)
            beat.run_due()
            client.execute_command(*refuse.split())
            clock.forward(60)
            for _ in range(3):
                with pytest.raises(BrokerDown, match=rf"it refuses every message: .*{said}"):
                    beat.run_due()
            assert client.llen("celery") == 10
            assert {entry.total_run_count for entry in schedules.values()} == {1}
            client.execute_command(*allow.split())
            beat.run_due()
            assert len({message.id for message in queued(client)}) == client.llen("celery") == 20
        assert {entry.total_run_count for entry in schedules.values()} == {2}

    @needs_batches
    def test_in_the_middle_of_a_batch_keeps_what_arrived(
        self, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        setup = Setup("batches to another database", make_app, make_beat, server)
        setup.schedules.add_many(Entry(f"e{number}", "t", every(60)) for number in range(10))
        clock.forward(60)
        send, full = Collector.send, redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")

        def half(self: Collector, messages: Sequence[Any]) -> list[Any]:
            return [*send(self, messages[:5]), *[full] * (len(messages) - 5)]

        with monkeypatch.context() as patch:
            patch.setattr(Collector, "send", half)
            with pytest.raises(BrokerDown):
                setup.beat.run_due()
        assert sum(entry.total_run_count for entry in setup.schedules.values()) == setup.broker.llen("celery") == 5
        setup.beat.run_due()
        assert len({message.id for message in queued(setup.broker)}) == setup.broker.llen("celery") == 10
        setup.broker.close()

    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    def test_holds_no_once_lock_against_the_later_run_that_is_sent_in_the_place_of_this_one(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        server: Server,
        own_server: Callable[..., Server],
        clock: Clock,
        dispatch: str,
    ) -> None:
        broker = own_server()
        app = make_app(broker_url=broker.url, redbeat_lite_url=server.url, redbeat_lite_dispatch=dispatch)
        schedules, beat = Schedules(app), make_beat(app)
        schedules.add("connects", "t", every(10))
        clock.forward(10)
        beat.run_due()
        schedules.remove("connects")
        schedules.add_many(Entry(f"e{number}", f"t{number}", every(10), once=True) for number in range(3))
        broker.stop(kill=True)
        clock.forward(10)
        with pytest.raises(BrokerDown):
            beat.run_due()
        broker.start()
        clock.forward(10)
        beat.run_due()
        with broker.client() as client:
            assert sorted(message.headers["task"] for message in queued(client)) == ["t0", "t1", "t2"]

    @pytest.mark.parametrize("setup", [way for way in WAYS if "one by one" in way], indirect=True)
    def test_after_some_messages_were_out_one_by_one_sends_only_the_others_later(
        self, setup: Setup, clock: Clock
    ) -> None:
        odd = setup.odd_task()
        setup.schedules.add_many(Entry(name, "odd" if name == "c" else "t", every(60)) for name in "abcd")
        clock.forward(60)
        with (
            mock.patch.object(odd, "apply_async", side_effect=OperationalError("cut")),
            mock.patch.object(setup.beat._publisher, "answers", return_value=False),
            pytest.raises(BrokerDown),
        ):
            setup.beat.run_due()
        assert [message.entry for message in queued(setup.broker)] == ["a", "b"]
        setup.beat.run_due()
        assert [message.entry for message in queued(setup.broker)] == ["a", "b", "c", "d"]
        assert {entry.total_run_count for entry in setup.schedules.values()} == {1}

    @needs_batches
    @pytest.mark.parametrize("setup", [way for way in WAYS if "one by one" not in way], indirect=True)
    def test_before_a_batch_was_sent_leaves_all_of_it_due(self, setup: Setup, clock: Clock) -> None:
        odd = setup.odd_task()
        setup.schedules.add_many(Entry(name, "odd" if name == "c" else "t", every(60)) for name in "abcd")
        clock.forward(60)
        with (
            mock.patch.object(odd, "apply_async", side_effect=OperationalError("cut")),
            mock.patch.object(setup.beat._publisher, "answers", return_value=False),
            pytest.raises(BrokerDown),
        ):
            setup.beat.run_due()
        assert queued(setup.broker) == []
        assert {entry.total_run_count for entry in setup.schedules.values()} == {0}
        setup.beat.run_due()
        assert [message.entry for message in queued(setup.broker)] == ["a", "b", "c", "d"]

    @needs_batches
    def test_whose_answer_is_lost_gets_the_batch_again_under_the_same_ids(
        self, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        setup = Setup("batches to another database", make_app, make_beat, server)
        setup.schedules.add_many(Entry(f"e{number}", "t", every(60)) for number in range(10))
        clock.forward(60)
        send = Collector.send

        def lost(self: Collector, messages: Sequence[Any]) -> list[Any]:
            send(self, messages)
            raise redis.ConnectionError("the answer was lost")

        with monkeypatch.context() as patch:
            patch.setattr(Collector, "send", lost)
            with pytest.raises(BrokerDown):
                setup.beat.run_due()
        assert {entry.total_run_count for entry in setup.schedules.values()} == {0}
        setup.beat.run_due()
        messages = queued(setup.broker)
        assert (len(messages), len({message.id for message in messages})) == (20, 10)
        assert {entry.total_run_count for entry in setup.schedules.values()} == {1}
        setup.broker.close()

    @pytest.mark.parametrize(
        "broker",
        ["redis://127.0.0.1:1/0", "redis://h/no-number", "redis://:p;w@h:1/0", "sentinel://127.0.0.1:1", "none://h"],
    )
    def test_costs_no_entry_a_backoff_of_its_own(
        self, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock, broker: str
    ) -> None:
        app = make_app(broker_url=broker, redbeat_lite_url=server.url)
        schedules, beat = Schedules(app), make_beat(app)
        schedules.add("a", "t", every(60))
        clock.forward(60)
        with pytest.raises(BrokerDown):
            beat.run_due()
        assert schedules["a"].last_error is None
        assert schedules["a"].next_run_at == clock.now
        assert clock.now > NOW

    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    def test_that_was_demoted_is_followed_by_whom_new_connections_lead_to(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        server: Server,
        own_server: Callable[..., Server],
        clock: Clock,
        caplog: pytest.LogCaptureFixture,
        dispatch: str,
    ) -> None:
        caplog.set_level("INFO")
        old, new = own_server(), own_server()
        with Proxy(old.port) as proxy, old.client() as to_old, new.client() as to_new:
            app = make_app(broker_url=proxy.url, redbeat_lite_url=server.url, redbeat_lite_dispatch=dispatch)
            Schedules(app).add("a", "t", every(60))
            beat = make_beat(app)
            clock.forward(60)
            beat.run_due()
            to_old.replicaof("127.0.0.1", str(new.port))
            proxy.target = new.port
            clock.forward(60)
            with pytest.raises(BrokerDown):
                beat.run_due()
            beat.run_due()
            assert to_new.llen("celery") == 1
        assert len([line for line in caplog.messages if "messages go out" in line]) == 1


class TestOneEntryThatFails:
    @pytest.mark.parametrize("setup", WAYS, indirect=True)
    def test_costs_a_new_connection_where_the_line_has_failed(self, setup: Setup, clock: Clock) -> None:
        """Over AMQP a line that was cut stays so. That nothing else was due is no reason to keep it."""

        odd = setup.odd_task()
        setup.schedules.add("odd", "odd", every(60))
        clock.forward(60)
        with mock.patch.object(odd, "apply_async", side_effect=OperationalError("cut")):
            setup.beat.run_due()
        assert not setup.beat._publisher.connected
        clock.forward(1)
        setup.beat.run_due()
        assert len(queued(setup.broker)) == 1

    @pytest.mark.parametrize("setup", WAYS, indirect=True)
    def test_for_its_line_leaves_the_others_to_the_next_line(self, setup: Setup, clock: Clock) -> None:
        odd = setup.odd_task()
        apply_async, lines = odd.apply_async, []

        def over_the_second(*args: Any, producer: Any, **options: Any) -> Any:
            lines.append(producer)
            if producer is lines[0]:
                raise OperationalError("cut")
            return apply_async(*args, producer=producer, **options)

        setup.schedules.add_many(Entry(name, "odd", every(60)) for name in "abc")
        clock.forward(60)
        with mock.patch.object(odd, "apply_async", over_the_second):
            setup.beat.run_due()
        assert [message.entry for message in queued(setup.broker)] == ["b", "c"]
        assert [entry.name for entry in setup.schedules.values() if entry.last_error] == ["a"]

    @pytest.mark.parametrize("setup", WAYS, indirect=True)
    def test_costs_no_new_connection_where_the_line_has_not_failed(self, setup: Setup, clock: Clock) -> None:
        """An unknown compression is a KeyError, which kombu counts among the errors of a connection to Redis."""

        setup.odd_task(compression="nope")
        setup.schedules.add("odd", "odd", every(60))
        setup.schedules.add_many(Entry(f"e{number}", "t", every(60)) for number in range(3))
        clock.forward(60)
        setup.beat.run_due()
        before = setup.broker.info("stats")["total_connections_received"]
        clock.forward(60)
        setup.beat.run_due()
        assert setup.broker.info("stats")["total_connections_received"] == before
        assert "nope" in (setup.schedules["odd"].last_error or "")
        assert len(queued(setup.broker)) == 6

    @needs_batches
    @pytest.mark.parametrize("setup", [way for way in WAYS if "one by one" not in way], indirect=True)
    def test_after_its_message_was_made_leaves_no_part_of_it_to_the_next(self, setup: Setup, clock: Clock) -> None:
        class Late(Task):
            def apply_async(self, *args: Any, **options: Any) -> Any:
                super().apply_async(*args, **options)
                raise RuntimeError("too late")

        setup.odd_task(base=Late)
        setup.schedules.add_many(Entry(name, task, every(60)) for name, task in (("a", "odd"), ("b", "t")))
        clock.forward(60)
        setup.beat.run_due()
        assert [message.entry for message in queued(setup.broker)] == ["b"]
        assert "too late" in (setup.schedules["a"].last_error or "")

    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    def test_in_a_scheduler_of_the_users_does_not_count_as_sent(
        self, make_app: MakeApp, clock: Clock, client: redis.Redis, dispatch: str
    ) -> None:
        class Tenants(Scheduler):
            def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
                if entry.name == "unknown":
                    raise LookupError("no such tenant")
                return super().apply_async(entry, *args, **kwargs)

        app = make_app(redbeat_lite_dispatch=dispatch)
        schedules = Schedules(app)
        schedules.add_many(Entry(name, "t", every(60)) for name in ("known", "unknown"))
        beat = Tenants(app)
        for _ in range(2):
            clock.forward(60)
            beat.run_due()
        beat.close()
        assert [message.entry for message in queued(client)] == ["known", "known"]
        assert schedules["unknown"].total_run_count == 0
        assert schedules["unknown"].last_error == "LookupError: no such tenant"

    @pytest.mark.parametrize("setup", WAYS, indirect=True)
    def test_whose_queue_refuses_it_leaves_the_others_sent_once(self, setup: Setup, clock: Clock) -> None:
        queues = ("first", "broken", "last")
        setup.schedules.add_many(
            Entry(f"{queue}-{number}", "t", every(60), options={"queue": queue})
            for number in range(5)
            for queue in queues
        )
        clock.forward(60)
        setup.beat.run_due()
        setup.broker.delete("broken")
        setup.broker.set("broken", "not a list")
        connections = setup.broker.info("stats")["total_connections_received"]
        clock.forward(60)
        setup.beat.run_due()
        clock.forward(1)
        setup.beat.run_due()
        assert setup.broker.info("stats")["total_connections_received"] == connections
        for queue in ("first", "last"):
            messages = queued(setup.broker, queue)
            assert len({message.id for message in messages}) == len(messages) == 10
        for entry in setup.schedules.values():
            refused = entry.name.startswith("broken")
            assert entry.total_run_count == (1 if refused else 2)
            assert ("list" in (entry.last_error or "") or "WRONGTYPE" in (entry.last_error or "")) is refused
        setup.broker.delete("broken")
        clock.forward(2)
        setup.beat.run_due()
        messages = queued(setup.broker, "broken")
        assert {message.id for message in messages} == {
            entry.last_task_id for entry in setup.schedules.values() if entry.name.startswith("broken")
        }
        assert len(messages) == 5


@needs_batches
def test_a_batch_for_another_database_is_not_sent_by_who_leads_no_more(
    make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock
) -> None:
    setup = Setup("batches to another database", make_app, make_beat, server)
    setup.schedules.add("a", "t", every(60))
    for _ in range(2):
        clock.forward(60)
        setup.beat.run_due()
    clock.forward(60)
    commands = Prepared.commands

    def slow(self: Prepared, occurrence: Any) -> Any:
        setup.beat.leader.resign()
        return commands(self, occurrence)

    with mock.patch.object(Prepared, "commands", slow):
        setup.beat.run_due()
    assert setup.broker.llen("celery") == 2
    setup.broker.close()


@needs_batches
def test_a_message_whose_queue_cannot_be_told_to_expire_is_sent_once(
    make_app: MakeApp, make_beat: MakeBeat, server: Server, own_server: Callable[..., Server], clock: Clock
) -> None:
    broker = own_server()
    with broker.client() as admin:
        admin.execute_command("ACL", "SETUSER", "sender", "on", ">secret", "~*", "&*", "+@all", "-pexpire")
        app = make_app(
            broker_url=broker.url.replace("redis://", "redis://sender:secret@"),
            redbeat_lite_url=server.url,
            task_queues=[Queue("short", Exchange("short"), "short", expires=100)],
            task_default_queue="short",
        )
        Schedules(app).add("a", "t", every(60))
        beat = make_beat(app)
        clock.forward(60)
        beat.run_due()
        clock.forward(5)
        beat.run_due()
        assert admin.llen("short") == 1


class Lifo(kombu.transport.redis.Channel):
    """The channel of a transport that puts messages into its queues by itself, whatever batch there is."""

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        self.client.rpush(queue, json.dumps(message))


@needs_batches
def test_a_transport_that_puts_messages_into_queues_by_itself_gets_them_one_by_one(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    app = make_app()
    schedules, beat = Schedules(app), make_beat(app)
    schedules.add_many(Entry(name, "t", every(60)) for name in "ab")
    with mock.patch.object(kombu.transport.redis.Transport, "Channel", Lifo):
        for _ in range(2):
            clock.forward(60)
            beat.run_due()
    assert [message.entry for message in queued(client)] == ["b", "a", "b", "a"]
    assert beat.vitals.dispatch == "one by one (at least once, with stable ids; its transport knows no batches)"


class Numbering(kombu.transport.redis.Channel):
    """The channel of a transport that has a say in each message, and leaves the sending to kombu."""

    numbers = itertools.count()

    def prepare_message(self, *args: Any, **kwargs: Any) -> Any:
        message = super().prepare_message(*args, **kwargs)
        message["headers"]["number"] = next(self.numbers)
        return message


@needs_batches
def test_a_transport_that_has_a_say_in_messages_is_asked_every_time(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    app = make_app()
    beat = make_beat(app)
    Schedules(app).add("a", "t", every(60))
    with mock.patch.object(kombu.transport.redis.Transport, "Channel", Numbering):
        for _ in range(2):
            clock.forward(60)
            beat.run_due()
    assert len({message.headers["number"] for message in queued(client)}) == 2
    assert beat.vitals.dispatch.startswith("in one step with the schedule (exactly once), each made in full, because")


@needs_batches
def test_a_broker_in_another_database_is_written_in_one_batch(
    make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock
) -> None:
    setup = Setup("batches to another database", make_app, make_beat, server)
    setup.schedules.add_many(Entry(f"e{number}", "t", every(60)) for number in range(500))
    clock.forward(60)
    setup.beat.run_due()
    assert "in batches apart from the schedule (" in setup.beat.vitals.dispatch
    assert "stable ids; the broker is another server or database)" in setup.beat.vitals.dispatch
    clock.forward(60)
    with commands(server) as seen, round_trips() as trips:
        setup.beat.run_due()
    assert setup.broker.llen("celery") == 1000
    assert len([command for command in seen if not command.upper().startswith("LPUSH")]) <= 8
    assert len(trips) <= 10
    setup.broker.close()


@needs_batches
def test_once_locks_of_runs_that_were_missed_cost_no_round_trip_each(
    make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock, client: redis.Redis
) -> None:
    app = make_app()
    Schedules(app).add_many(Entry(f"e{number}", "t", every(60), (number,), once=True) for number in range(200))
    beat = make_beat(app)
    clock.forward(200)
    with commands(server) as seen:
        beat.run_due()
    assert client.llen("celery") == 200
    assert len(seen) < 100  # nearly all of them open the connection to the broker and load the scripts


@needs_batches
def test_a_broker_whose_user_may_not_read_the_schedule_is_written_in_batches(
    make_app: MakeApp, make_beat: MakeBeat, own_server: Callable[..., Server], clock: Clock
) -> None:
    server = own_server()
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "sender", "on", ">secret", "~celery*", "~_kombu.*", "&*", "+@all")
        app = make_app(broker_url=server.url.replace("redis://", "redis://sender:secret@"), redbeat_lite_url=server.url)
        Schedules(app).add("a", "t", every(60))
        clock.forward(60)
        beat = make_beat(app)
        beat.run_due()
        assert [message.entry for message in queued(admin)] == ["a"]
        assert "stable ids; the broker's user may not read the schedule)" in beat.vitals.dispatch


@needs_batches
def test_a_schedule_whose_user_may_not_write_to_the_queues_leaves_that_to_the_brokers(
    make_app: MakeApp,
    make_beat: MakeBeat,
    own_server: Callable[..., Server],
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = own_server()
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "planner", "on", ">secret", "~{redbeat-lite}:*", "&*", "+@all")
        app = make_app(
            broker_url=server.url, redbeat_lite_url=server.url.replace("redis://", "redis://planner:secret@")
        )

        @app.task(shared=False, name="odd")
        def odd() -> None: ...

        Schedules(app).add_many(Entry(f"e{number}", "t", every(60)) for number in range(10))
        beat = make_beat(app)
        for count in (1, 2):
            clock.forward(60)
            beat.run_due()
            assert len({message.id for message in queued(admin)}) == admin.llen("celery") == 10 * count
        assert "stable ids; the schedule's user may not write to a queue)" in beat.vitals.dispatch
        beat._publisher.close()  # so that it tries one step again, …
        Schedules(app).add("e5, odd", "odd", every(60))
        clock.forward(60)
        with mock.patch.object(odd, "apply_async", side_effect=OperationalError("cut")):
            beat.run_due()  # … and gives up a connection meanwhile
        assert len({message.id for message in queued(admin)}) == admin.llen("celery") == 30
    assert [line for line in caplog.messages if "may not write to a queue" in line]
    schedules = Schedules(make_app(broker_url=server.url))
    assert {entry.total_run_count for entry in schedules.values() if entry.task == "t"} == {3}


@needs_batches
def test_a_channel_that_the_schedules_user_may_not_publish_to_fails_its_entry_alone(
    make_app: MakeApp, make_beat: MakeBeat, own_server: Callable[..., Server], clock: Clock
) -> None:
    server = own_server()
    with server.client() as admin:
        words = ("~*", "resetchannels", "&{redbeat-lite}:wake", "+@all")
        admin.execute_command("ACL", "SETUSER", "planner", "on", ">secret", *words)
        app = make_app(
            broker_url=server.url,
            redbeat_lite_url=server.url.replace("redis://", "redis://planner:secret@"),
            task_queues=[Queue("celery"), Broadcast("everybody")],
        )
        schedules = Schedules(app)
        schedules.add_many(Entry(f"e{number}", "t", every(60)) for number in range(3))
        schedules.add("loud", "t", every(60), options={"queue": "everybody"})
        clock.forward(60)
        beat = make_beat(app)
        beat.run_due()
        assert {message.entry for message in queued(admin)} == {"e0", "e1", "e2"}
        assert "channel" in (schedules["loud"].last_error or "")
        assert schedules["loud"].total_run_count == 0
