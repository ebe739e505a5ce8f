"""The model of the server answers as a real Valkey does."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator

import pytest

from redbeat_lite.storage.scripts import _FILES
from tests.simulation.comparison import Comparison, Difference
from tests.simulation.contracts import CONTRACTS
from tests.simulation.real_server import OPTIONS
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


def test_random_calls_have_equal_replies_and_leave_equal_keys(valkey_server: Server) -> None:
    with valkey_server.client() as client:
        comparison = Comparison(client, seed())
        comparison.run(CALLS)
    called = {script for script, is_error in comparison.counts if not is_error}
    assert called == set(CONTRACTS)


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
