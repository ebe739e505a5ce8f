"""``lock()`` over a client of memcached."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pymemcache.client.base import Client

from redbeat_lite import lock
from tests.once.memcached import memcached

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with memcached() as address:
        yield address


@pytest.fixture(params=[True, False], ids=["does not wait", "waits"])
def clients(request: pytest.FixtureRequest, address: tuple[str, int]) -> Iterator[tuple[Client, Client]]:
    """Two clients that wait for answers to ``add`` and ``delete``, or do not, as is the default."""
    first, second = (Client(address, default_noreply=request.param) for _ in range(2))
    yield first, second
    first.close()
    second.close()


def test_two_clients_do_not_hold_one_lock(clients: tuple[Client, Client]) -> None:
    first, second = clients
    with lock(first, "k", lease=600) as held, lock(second, "k", lease=600) as refused:
        assert held
        assert not refused
        with lock(second, "other") as other:
            assert other


def test_the_lock_is_free_after_the_block(clients: tuple[Client, Client]) -> None:
    first, second = clients
    with lock(first, "k", lease=600) as held:
        assert held
    with lock(second, "k", lease=600, timeout=5) as next_held:
        assert next_held


def test_whoever_was_refused_leaves_the_lock_alone(clients: tuple[Client, Client]) -> None:
    first, second = clients
    with lock(first, "k", lease=600):
        with lock(second, "k", lease=600) as refused:
            assert not refused
        with lock(second, "k", lease=600) as still_refused:
            assert not still_refused


def test_a_lease_is_rounded_up_to_whole_seconds(clients: tuple[Client, Client]) -> None:
    with lock(clients[0], "k", lease=1.5) as held:
        assert held
