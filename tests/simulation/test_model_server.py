"""The model of the server answers as a real Valkey does."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from redbeat_lite.store.scripts import _FILES, _names
from tests.simulation.comparison import Comparison, Difference, comparable
from tests.simulation.contracts import CONTRACTS
from tests.simulation.real_server import OPTIONS
from tests.simulation.server import ModelServer
from tests.simulation.values import Database
from tests.support.server import Server, valkey

MINUTES = float(os.environ.get("SOAK_MINUTES", "2"))

#: Calls in the ordinary run.
CALLS = 10_000


@pytest.fixture(scope="module")
def valkey_server() -> Iterator[Server]:
    with Server(valkey(), **OPTIONS) as server:
        yield server


def seed() -> int:
    """The seed that the environment names as SIMULATION_SEED, else a new one."""
    value = os.environ.get("SIMULATION_SEED")
    drawn = int(value) if value else secrets.randbits(32)
    print(f"SIMULATION_SEED={drawn}")
    return drawn


def test_every_script_has_a_contract() -> None:
    scripts = {name for name in _FILES if not name.startswith("shared/")}
    assert scripts == set(CONTRACTS)


@pytest.mark.parametrize("script", sorted(CONTRACTS))
def test_a_contract_has_what_the_script_names(script: str) -> None:
    for contract in CONTRACTS[script]:
        for kind, words, more in (
            ("KEYS", contract.keys, contract.each_key),
            ("ARGS", contract.args, contract.each_arg),
        ):
            names = _names(script, kind)
            fixed = [name for name, ending in names.items() if ending != "..."]
            has_tail = len(fixed) < len(names)
            count = len(words.split()) + ("transaction" in words or "unrecorded" in words)
            assert count >= len(fixed) if has_tail else count == len(fixed)
            assert has_tail or not more


def test_random_calls_have_equal_replies_and_leave_equal_keys(valkey_server: Server) -> None:
    with valkey_server.client() as client:
        comparison = Comparison(client, seed())
        comparison.run(CALLS)
    called = {script for script, is_error in comparison.counts if not is_error}
    assert called == set(CONTRACTS)


#: Arguments that random calls seldom draw, and on which the model once differed.
ODD_COMMANDS = [
    ["ZRANGEBYSCORE", "scores", "", "1e400"],
    ["ZRANGEBYSCORE", "scores", "(", "+inf"],
    ["ZRANGEBYSCORE", "scores", "x", "1"],
    ["ZADD", "scores", "1e400", "a"],
    ["XREVRANGE", "scores", "+", "-", "COUNT", ""],
    ["XREVRANGE", "scores", "+", "-", "COUNT", "1"],
    ["XRANGE", "scores", "-", "+", "COUNT", "x"],
]


@pytest.mark.parametrize("command", ODD_COMMANDS, ids=" ".join)
def test_odd_arguments_have_equal_replies(valkey_server: Server, command: list[str]) -> None:
    score = ["ZADD", "scores", "0", "zero", "1.5", "more"]
    model = ModelServer(lambda: 0)
    model.reply([word.encode() for word in score])
    with valkey_server.client() as client:
        client.flushall()
        client.execute_command(*score)
        try:
            real: Any = client.execute_command(*command, NEVER_DECODE=True)
        except redis.ResponseError as exc:
            real = exc
    reply = model.reply([word.encode() for word in command])
    assert comparable(reply) == comparable(real)


def test_a_wrong_model_is_noticed(valkey_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model that forgets to expire keys differs soon."""
    monkeypatch.setattr(Database, "expire_at", lambda self, key, instant: self.find(key) is not None)
    with valkey_server.client() as client, pytest.raises(Difference, match="seed 7, call"):
        Comparison(client, 7).run(CALLS)


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 120)
def test_random_calls_for_minutes(valkey_server: Server) -> None:
    ends = time.monotonic() + MINUTES * 60
    with valkey_server.client() as client:
        while time.monotonic() < ends:
            Comparison(client, seed()).run(CALLS)
