"""Batches that RabbitMQ confirms: what became of each message, whatever comes in between."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from types import MethodType, SimpleNamespace
from typing import Any
from unittest import mock

import amqp
import kombu
import pytest
from amqp.exceptions import FrameSyntaxError, MessageNacked, NotFound
from celery import Celery

from redbeat_lite import Entry, Schedules, every
from redbeat_lite.beat.dispatch.broker import BrokerDown
from redbeat_lite.beat.dispatch.confirms import Confirming, confirms
from tests.beat.ways import Setup
from tests.support.amqp_broker import AmqpBroker
from tests.support.cases import together
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.messages import queued
from tests.support.server import Server


class Channel:
    """Of a broker that does with each message what the message says."""

    def __init__(self) -> None:
        self.events: dict[str, set[Callable[..., None]]] = defaultdict(set)
        self.connection = self.transport = self
        self.frame_max, self.channel_id, self.bytes_sent = 131_072, 1, 0
        self._confirm_selected = False
        self._number = 0
        self._taken: list[tuple[int, str]] = []
        self.sent: list[str] = []

    def confirm_select(self) -> None:
        self._number = 0
        self._taken.clear()

    def write(self, frames: bytes) -> None:
        assert self._confirm_selected
        while frames:
            kind, _, size = struct.unpack_from(">BHI", frames)
            payload, frames = frames[7 : 7 + size].decode(errors="replace"), frames[8 + size :]
            if kind == 3:  # a body
                self._number += 1
                self.sent.append(payload)
                self._taken.append((self._number, payload))

    def blocking_read(self, timeout: float) -> None:
        number, message = self._taken.pop(0)
        if message == "closing":
            self._confirm_selected = False
            raise NotFound("no exchange")
        if message == "cutting":
            raise ConnectionResetError("gone")
        if message == "astray":
            assert self.events["basic_return"], "py-amqp raises it then"
            for tell in self.events["basic_return"]:
                tell(NotFound("no route"), "", "", amqp.Message(message, correlation_id=message))
        event, multiple = "basic_nack" if message == "refused" else "basic_ack", message == "late"
        if multiple:
            number, _ = self._taken.pop()
            self._taken.clear()
        for tell in self.events[event]:
            tell(number, multiple)


def sent(channel: Any, messages: list[str]) -> list[Any]:
    """What became of each message, by the type of the error."""
    confirming = Confirming(channel, 1)
    batch = []
    for text in messages:
        headers = {"odd": object()} if text == "unwritable" else {}
        message = amqp.Message(text, correlation_id=text, application_headers=headers)
        channel.basic_publish(message, exchange="", routing_key="celery", mandatory=False, immediate=False)
        batch.append(confirming.take())
    return [error and type(error) for error in confirming.send(batch)]


@together(
    ("messages", "errors", "again"),
    [
        (["a", "b"], [None, None], []),
        (["late", "b", "c"], [None, None, None], []),
        (["a", "refused", "b"], [None, MessageNacked, None], []),
        (["a", "unwritable", "b"], [None, FrameSyntaxError, None], []),
        (["a", "astray", "b"], [None, NotFound, None], []),
        (["a", "closing", "b", "c"], [None, NotFound, None, None], ["closing", "b", "c"]),
        (["closing", "cutting", "b"], [NotFound, BrokerDown, BrokerDown], ["closing", "cutting"]),
        (["a", "cutting", "b"], [None, BrokerDown, BrokerDown], []),
    ],
)
def test_it_is_known_of_each_message_whether_it_is_there(messages: list[str], errors: list[Any], again: Any) -> None:
    channel = Channel()
    assert sent(channel, messages) == errors
    assert channel.sent == [each for each in messages if each != "unwritable"] + again


def test_a_batch_after_one_that_closed_the_channel_is_confirmed() -> None:
    channel = Channel()
    assert sent(channel, ["a", "closing"]) == [None, NotFound]
    assert sent(channel, ["a", "b"]) == [None, None]


def test_only_what_would_wait_for_each_message_is_confirmed_in_batches() -> None:
    waiting, plain = (MethodType(each, 1) for each in (amqp.Channel.basic_publish_confirm, amqp.Channel.basic_publish))
    found = [confirms(SimpleNamespace(basic_publish=each)) for each in (waiting, plain, lambda: None)]
    assert found == [True, False, False]
    assert not confirms(object())


@pytest.fixture
def broker() -> Iterator[AmqpBroker]:
    with closing(AmqpBroker()) as broker:
        yield broker


@pytest.fixture
def confirming_app(make_app: MakeApp, server: Server, broker: AmqpBroker) -> Celery:
    options = {"confirm_publish": True}
    return make_app(broker_url=broker.url, redbeat_lite_url=server.url, broker_transport_options=options)


def test_a_broker_that_confirms_nothing_and_goes_on_with_its_heartbeats_is_given_up(broker: AmqpBroker) -> None:
    """As RabbitMQ does that is short of memory."""
    broker.heartbeats = 15
    with kombu.Connection(broker.url, transport_options={"confirm_publish": True}) as connection:
        assert sent(connection.default_channel, ["a"]) == [BrokerDown]


def test_it_needs_no_batches_of_kombu_which_has_none_before_5_7(
    confirming_app: Celery, make_beat: MakeBeat, broker: AmqpBroker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(kombu.Producer, "batch", raising=False)
    Schedules(confirming_app).add("e", "t", every(10))
    beat = make_beat(confirming_app)
    clock.forward(10)
    beat.run_due()
    assert [to for *to, _ in broker.messages] == [["", "celery"]]
    assert Schedules(confirming_app)["e"].total_run_count == 1


def test_a_queue_that_is_declared_each_time_is_so_before_each_message(
    confirming_app: Celery, make_beat: MakeBeat, broker: AmqpBroker, clock: Clock
) -> None:
    """RabbitMQ may have deleted it, and confirms what it puts nowhere."""
    confirming_app.conf.task_queues = [kombu.Queue("celery"), kombu.Queue("passing", auto_delete=True)]
    Schedules(confirming_app).add("e", "t", every(10))
    Schedules(confirming_app).add("p", "t", every(10), options={"queue": "passing"})
    beat = make_beat(confirming_app)
    for _ in range(3):
        clock.forward(10)
        beat.run_due()
    assert Counter(key for _, key, _ in broker.messages) == {"celery": 3, "passing": 3}
    assert Counter(broker.declared) == {"celery": 1, "passing": 3}


def test_what_was_confirmed_before_the_connection_broke_is_not_sent_again(apart: Setup, clock: Clock) -> None:
    apart.schedules.add_many(Entry(f"e{number}", "t", every(10)) for number in range(3))
    clock.forward(10)
    apart.beat.run_due()
    clock.forward(10)
    sending = apart.beat._publisher
    send = sending.send
    broken = lambda messages: [*send(messages[:1]), *(BrokerDown("gone") for _ in messages[1:])]  # noqa: E731
    with mock.patch.object(sending, "send", side_effect=broken), pytest.raises(BrokerDown, match="gone"):
        apart.beat.run_due()
    assert sorted(entry.total_run_count for entry in apart.schedules.values()) == [1, 1, 2]
    apart.beat.run_due()
    messages = queued(apart.broker)
    assert len({message.id for message in messages}) == len(messages) == 6
