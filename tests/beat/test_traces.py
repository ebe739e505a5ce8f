"""With ``redbeat_lite_traceparent`` each run begins a trace of its own, which bears the id of its task."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from celery import signals

from redbeat_lite import Entry, every
from tests.beat.ways import SENDERS, Setup
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import Message, queued
from tests.support.server import Server

FAST_WAYS = [pytest.param(way, marks=needs_batches) for way in ("one step", "one by one to another database")]

OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(params=SENDERS)
def traced(
    request: pytest.FixtureRequest, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock
) -> Iterator[Setup]:
    setup = Setup(request.param, make_app, make_beat, server, redbeat_lite_traceparent=True)
    yield setup
    setup.broker.close()


def sent(setup: Setup, clock: Clock) -> list[Message]:
    """Three runs of each of two entries that are alike."""
    setup.schedules.add_many(Entry(name, "t", every(10), (name,)) for name in ("a", "b"))
    for _ in range(3):
        clock.forward(10)
        setup.beat.run_due()
    return queued(setup.broker)


def test_every_run_begins_a_trace_of_its_own(traced: Setup, clock: Clock) -> None:
    messages = sent(traced, clock)
    traces = {}
    for message in messages:
        found = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01", message.headers["traceparent"])
        assert found, message.headers["traceparent"]
        assert int(found[2], 16), "a span of this id is none"
        traces[message.id] = found[1]
    assert traces == {message.id: message.id.replace("-", "") for message in messages}
    assert len(traces) == 6


@pytest.mark.parametrize("traced", FAST_WAYS, indirect=True)
def test_messages_are_prepared_all_the_same(traced: Setup, clock: Clock) -> None:
    publisher = traced.beat._parts.publisher
    with mock.patch.object(publisher, "_make_in_full", wraps=publisher._make_in_full) as full:
        sent(traced, clock)
    assert publisher.mode.endswith("prepared")
    assert full.call_count == 1, "the first message of two entries that are alike"


def test_nothing_is_said_of_traces_unless_it_is_asked_for(setup: Setup, clock: Clock) -> None:
    assert {message.headers.get("traceparent") for message in sent(setup, clock)} == {None}


def test_who_traces_messages_in_the_beat_has_the_last_word(traced: Setup, clock: Clock) -> None:
    """As OpenTelemetry does it: a span for each message, which is put into the headers before it is published."""

    def inject(headers: dict[str, Any], **kwargs: Any) -> None:
        headers["traceparent"] = OWN

    signals.before_task_publish.connect(inject)
    try:
        assert {message.headers["traceparent"] for message in sent(traced, clock)} == {OWN}
    finally:
        signals.before_task_publish.disconnect(inject)


def test_a_trace_that_an_entry_names_itself_is_kept(traced: Setup, clock: Clock) -> None:
    traced.schedules.add("own", "t", every(10), options={"headers": {"traceparent": OWN}})
    messages = [message for message in sent(traced, clock) if message.entry == "own"]
    assert [message.headers["traceparent"] for message in messages] == 3 * [OWN]
