"""Queues and exchanges of every kind, and those who see or change a message on its way into one."""

from __future__ import annotations

import base64
import json
from typing import Any

import celery.beat
import pytest
import redis
from celery import signals
from kombu import Exchange, Queue
from kombu.common import Broadcast

from redbeat_lite import Schedules, every
from tests.beat.ways import SENDERS, Setup
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import heard, parse, queued
from tests.support.server import Server


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
        listener = client.pubsub()
        listener.psubscribe("*everybody*")
        assert listener.get_message(timeout=5)["type"] == "psubscribe"
        Schedules(app).add("a", "t", every(10))
        beat = make_beat(app)
        for _ in range(2):
            clock.forward(10)
            beat.run_due()
        messages = [parse(heard(listener)) for _ in range(2)]
        assert [message.entry for message in messages] == ["a", "a"]
        assert messages[0].id != messages[1].id
        listener.close()

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

    @pytest.mark.parametrize("way", SENDERS)
    def test_sent_events_are_sent(
        self, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock, way: str
    ) -> None:
        setup = Setup(way, make_app, make_beat, server, task_send_sent_event=True)
        events = setup.broker.pubsub()
        events.psubscribe("*celeryev*")
        assert events.get_message(timeout=5)["type"] == "psubscribe"
        setup.schedules.add("a", "t", every(10))
        clock.forward(10)
        setup.beat.run_due()
        [message] = queued(setup.broker)
        body = json.loads(base64.b64decode(json.loads(heard(events))["body"]))
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
