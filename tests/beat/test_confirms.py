"""Batches that RabbitMQ confirms: what became of each message, whatever comes in between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any
from unittest import mock

import amqp
import kombu
import pytest
from amqp.exceptions import FrameSyntaxError, MessageNacked, NotFound

from redbeat_lite import Entry, every
from redbeat_lite.beat.dispatch import publisher
from redbeat_lite.beat.dispatch.broker import BrokerDown
from redbeat_lite.beat.dispatch.confirms import Confirming, confirms
from tests.beat.ways import Setup
from tests.support.cases import together
from tests.support.frozen import Clock
from tests.support.messages import queued


class Message(str):
    @property
    def properties(self) -> dict[str, str]:
        return {"correlation_id": str(self)}


class Channel:
    """Of a broker that does with each message what the message says."""

    def __init__(self) -> None:
        self.events: dict[str, set[Callable[..., None]]] = defaultdict(set)
        self.connection = self
        self._confirm_selected = False
        self._number = 0
        self._taken: list[tuple[int, str]] = []
        self.sent: list[str] = []

    def confirm_select(self) -> None:
        self._number = 0
        self._taken.clear()

    def _basic_publish(self, message: str, **how: Any) -> None:
        assert self._confirm_selected
        if message == "unwritable":
            raise FrameSyntaxError("no table")
        self._number += 1
        self.sent.append(message)
        self._taken.append((self._number, message))

    def drain_events(self, timeout: float) -> None:
        number, message = self._taken.pop(0)
        if message == "closing":
            self._confirm_selected = False
            raise NotFound("no exchange")
        if message == "cutting":
            raise ConnectionResetError("gone")
        if message == "astray":
            assert self.events["basic_return"], "py-amqp raises it then"
            for tell in self.events["basic_return"]:
                tell(NotFound("no route"), "", "", Message(message))
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
    for message in messages:
        channel.basic_publish(Message(message), exchange="", routing_key="celery")
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


def test_it_needs_no_batches_of_kombu_which_has_none_before_5_7(
    apart: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []

    def confirming(producer: Any, timeout: float) -> Confirming:
        producer.channel.events = defaultdict(set)
        made = Confirming(producer.channel, timeout)
        monkeypatch.setattr(made, "send", lambda messages: kept.extend(messages) or [None] * len(messages))
        return made

    monkeypatch.delattr(kombu.Producer, "batch", raising=False)
    monkeypatch.setattr(publisher, "_collector", confirming)
    apart.schedules.add("e", "t", every(10))
    clock.forward(10)
    apart.beat.run_due()
    [[(_, _, (_, how))]] = kept
    assert how["routing_key"] == "celery"
    assert apart.schedules["e"].total_run_count == 1


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
