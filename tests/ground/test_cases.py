"""Many cases as one test: each is tried, and those that fail are told."""

from __future__ import annotations

import logging

import pytest
import redis

from tests.support.cases import together
from tests.support.server import Server


@together("number", range(4))
def odd_numbers_fail(number: int) -> None:
    assert number % 2 == 0


def test_each_case_that_fails_is_told() -> None:
    with pytest.raises(ExceptionGroup, match="2 of 4 cases") as failed:
        odd_numbers_fail()  # type: ignore[call-arg]
    assert [exc.__notes__ for exc in failed.value.exceptions] == [["with number=1"], ["with number=3"]]


@together("number", range(3), emptied=True)
def test_each_case_finds_an_empty_server_and_log(
    number: int, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    assert (client.keys(), caplog.messages) == ([], [])
    client.set("key", number)
    logging.getLogger("cases").warning("number %d", number)


@together("number", range(3), emptied=True)
def test_the_server_may_be_asked_for(number: int, server: Server) -> None:
    assert server.own_client.incr("count") == 1
