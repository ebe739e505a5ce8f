"""Moments and messages of a test, in seconds after it began."""

from __future__ import annotations

from datetime import datetime, timedelta

import redis

from tests.support.frozen import NOW
from tests.support.messages import Message, of_entry


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def nominals(client: redis.Redis, name: str) -> list[float]:
    """Nominal times of an entry's messages, in seconds after the start of the test."""
    return seconds(of_entry(client, name))


def seconds(messages: list[Message]) -> list[float]:
    """The nominal times of messages, in seconds after the start of the test."""
    times = []
    for message in messages:
        assert message.scheduled_at is not None
        times.append((message.scheduled_at - NOW).total_seconds())
    return times
