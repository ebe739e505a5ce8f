"""Messages to RabbitMQ go one by one, each confirmed where the user asks for it: what one does to the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import kombu
import pytest
from celery import Celery

from redbeat_lite import Entry, Schedules, every
from tests.support.amqp_broker import AmqpBroker
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.server import Server


@pytest.fixture
def broker() -> Iterator[AmqpBroker]:
    with closing(AmqpBroker()) as broker:
        yield broker


@pytest.fixture
def confirming_app(make_app: MakeApp, server: Server, broker: AmqpBroker) -> Celery:
    options = {"confirm_publish": True}
    return make_app(broker_url=broker.url, redbeat_lite_url=server.url, broker_transport_options=options)


def test_a_message_over_which_the_channel_is_closed_doubles_no_other(
    confirming_app: Celery, make_beat: MakeBeat, broker: AmqpBroker, clock: Clock
) -> None:
    schedules, beat = Schedules(confirming_app), make_beat(confirming_app)
    schedules.add_many(Entry(f"e{number:02}", "t", every(10)) for number in range(20))
    nowhere = {"exchange": AmqpBroker.UNKNOWN, "routing_key": "x", "declare": []}
    schedules.add("e10-bad", "t", every(10), options=nowhere)
    for _ in range(2):
        clock.forward(10)
        beat.run_due()
    sent = Counter(message.properties["correlation_id"] for _, _, message in broker.messages)
    assert (len(sent), {*sent.values()}) == (40, {1})
    bad = schedules["e10-bad"]
    assert bad.total_run_count == 0
    assert "no exchange 'unknown'" in (bad.last_error or "")


def test_a_message_that_a_queue_refuses_fails_alone_and_says_so(
    confirming_app: Celery, make_beat: MakeBeat, broker: AmqpBroker, clock: Clock
) -> None:
    schedules, beat = Schedules(confirming_app), make_beat(confirming_app)
    schedules.add_many(Entry(f"e{number}", "t", every(10)) for number in range(3))
    schedules.add("refused", "t", every(10), options={"queue": AmqpBroker.FULL})
    clock.forward(10)
    beat.run_due()
    assert len(broker.messages) == 3
    assert schedules["refused"].last_error == "MessageNacked"


def test_how_messages_go_out_is_said_with_what_is_promised(
    confirming_app: Celery, make_beat: MakeBeat, clock: Clock
) -> None:
    Schedules(confirming_app).add("e", "t", every(10))
    beat = make_beat(confirming_app)
    clock.forward(10)
    beat.run_due()
    assert beat._parts.state.dispatch == "one by one (at least once, with stable ids; its transport knows no batches)"


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
