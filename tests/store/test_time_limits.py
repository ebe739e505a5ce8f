"""Patience with a server that restarts, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import redis

from redbeat_lite.store import connections
from redbeat_lite.store.connections import retry_for


class Clock:
    """In the place of the ``time`` module."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(connections, "time", clock)
    return clock


def server(clock: Clock, *, back: float, hangs: float = 0) -> tuple[Callable[[], str], list[float]]:
    """A question to a server that answers ``back`` seconds from now, and when it was asked."""
    asked: list[float] = []

    def ask() -> str:
        asked.append(clock.now - 1000)
        clock.now += hangs
        if asked[-1] < back:
            raise redis.ConnectionError("away")
        return "answer"

    return ask, asked


def test_a_server_that_comes_back_is_asked_until_it_answers(clock: Clock) -> None:
    ask, asked = server(clock, back=3)
    assert retry_for(ask, 8) == "answer"
    assert asked == pytest.approx([0, 0.2, 0.6, 1.4, 3.0])


def test_the_last_attempt_is_at_the_end_of_the_time(clock: Clock) -> None:
    ask, asked = server(clock, back=60)
    with pytest.raises(redis.ConnectionError):
        retry_for(ask, 8)
    assert asked[-1] == pytest.approx(8)
    assert max(after - before for before, after in pairwise(asked)) <= 4


def test_a_server_that_hangs_does_not_make_it_longer_than_one_attempt(clock: Clock) -> None:
    ask, _ = server(clock, back=600, hangs=5)
    with pytest.raises(redis.ConnectionError):
        retry_for(ask, 8)
    assert clock.now - 1000 <= 13


def test_without_patience_it_is_asked_once(clock: Clock) -> None:
    ask, asked = server(clock, back=1)
    with pytest.raises(redis.ConnectionError):
        retry_for(ask, 0)
    assert asked == [0]


def test_what_is_no_fault_of_the_server_is_raised_at_once(clock: Clock) -> None:
    def ask() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        retry_for(ask, 8)
    assert clock.now == 1000
