"""Brokers in another database and transports of one's own: what goes out in one batch, and what one by one."""

from __future__ import annotations

import itertools
import json
from typing import Any
from unittest import mock

import kombu.transport.memory
import kombu.transport.redis
import pytest
import redis

from redbeat_lite import Entry, Schedules, every
from redbeat_lite.beat.dispatch.publisher import BrokerDown, Publisher
from tests.beat.ways import Setup
from tests.support.commands import commands
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import queued
from tests.support.server import Server


@needs_batches
def test_sentinel_may_take_as_long_as_a_new_connection(apart: Setup, clock: Clock) -> None:
    apart.schedules.add("a", "t", every(60))
    clock.forward(60)
    apart.beat.run_due()
    publisher = apart.beat._parts.publisher
    told = mock.Mock()
    with (
        mock.patch.object(publisher, "_follow_master", told.follow),
        mock.patch.object(publisher.leader, "progress", told.progress),
    ):
        assert not publisher.connect()
    assert told.mock_calls == [mock.call.progress("connecting to the broker", within=10), mock.call.follow()]


def test_nothing_is_sent_in_full_once_the_connection_is_closed(apart: Setup, clock: Clock) -> None:
    apart.schedules.add("a", "t", every(60))
    clock.forward(60)
    publisher = apart.beat._parts.publisher

    def stop(doing: str) -> None:
        publisher.close()

    with mock.patch.object(publisher, "check_lead", stop), pytest.raises(BrokerDown):
        apart.beat.run_due()
    assert not apart.broker.exists("celery")


def test_nothing_is_sent_to_another_database_by_who_leads_no_more(apart: Setup, clock: Clock) -> None:
    apart.schedules.add_many(Entry(name, "t", every(60)) for name in ("a", "b"))
    clock.forward(60)
    make_in_full = Publisher._make_in_full

    def slow(self: Publisher, occurrence: Any) -> Any:
        commands = make_in_full(self, occurrence)
        apart.beat.leader.resign()
        return commands

    with mock.patch.object(Publisher, "_make_in_full", slow):
        apart.beat.run_due()
    assert not apart.broker.exists("celery")


@needs_batches
def test_a_broker_in_another_database_gets_one_message_at_a_time(apart: Setup, server: Server, clock: Clock) -> None:
    apart.schedules.add_many(Entry(f"e{number}", "t", every(60)) for number in range(150))
    clock.forward(60)
    apart.beat.run_due()
    assert "one by one (at least once, with stable ids; " in apart.beat._parts.state.dispatch
    assert "the broker is another server or database)" in apart.beat._parts.state.dispatch
    clock.forward(60)
    with commands(server) as seen:
        apart.beat.run_due()
    assert apart.broker.llen("celery") == 300
    assert len([command for command in seen if not command.upper().startswith("LPUSH")]) <= 10


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
    assert beat._parts.state.dispatch == "one by one (at least once, with stable ids; its transport knows no batches)"


@pytest.mark.parametrize(
    ("options", "promise"),
    [
        (
            {},
            "with stable ids; what the broker does not take is lost, as confirm_publish is not set; "
            "its transport knows no batches",
        ),
        ({"confirm_publish": True}, "at least once, with stable ids; its transport knows no batches"),
    ],
)
def test_at_least_once_is_promised_of_amqp_only_where_it_confirms(
    make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock, options: dict[str, Any], promise: str
) -> None:
    app = make_app(broker_url="memory://", redbeat_lite_url=server.url, broker_transport_options=options)
    beat = make_beat(app)
    Schedules(app).add("a", "t", every(60))
    clock.forward(60)
    with mock.patch.object(kombu.transport.memory.Transport, "driver_type", "amqp"):
        beat.run_due()
    assert beat._parts.state.dispatch == f"one by one ({promise})"


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
    mode = beat._parts.state.dispatch
    assert mode.startswith("in one step with the schedule (exactly once), each made in full, because")
