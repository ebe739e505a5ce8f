"""Keys of ours that another program uses are named."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import redis

from redbeat_lite.once.lock_store import OnceKeys
from redbeat_lite.pipeline.pipeline_keys import ended_key, index_key
from redbeat_lite.runs.run_store import RunKeys
from redbeat_lite.settings import Settings
from redbeat_lite.store.connections import Backend
from redbeat_lite.store.keys import TYPES, ForeignKey, check_types
from redbeat_lite.store.scripts import checked
from redbeat_lite.store.store import Store
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.server import Server

ROOT = KEYS.prefix


@pytest.fixture
def backend(server: Server) -> Iterator[Backend]:
    backend = Backend(Settings(url=server.url))
    yield backend
    backend.close()


def test_the_table_has_every_key_that_exists_once() -> None:
    prefix = "redbeat-lite"
    keys = {getattr(KEYS, name) for name in KEYS.__slots__ if name != "wake"}
    keys |= {getattr(KEYS.of_backfills, name) for name in KEYS.__slots__ if name != "wake"}
    keys |= {index_key(prefix), ended_key(prefix)}
    for others in (OnceKeys(prefix), RunKeys(prefix)):
        public = [name for name in vars(others) if not name.startswith("_") and name != "prefix"]
        keys |= {getattr(others, name) for name in public}
    assert {f"{ROOT}:{name}" for name in TYPES} == keys


def test_sound_keys_pass(backend: Backend, client: redis.Redis) -> None:
    client.zadd(KEYS.due, {"a": 1})
    client.hset(KEYS.meta, "term", 1)
    check_types(backend.client, ROOT)


def test_a_key_may_be_asked_for_twice(backend: Backend, client: redis.Redis) -> None:
    check_types(backend.client, ROOT, [KEYS.due])
    client.rpush(KEYS.due, "x")
    with pytest.raises(ForeignKey, match="due is a list"):
        check_types(backend.client, ROOT, [KEYS.due])


@together("key", [f"{ROOT}:{name}" for name in TYPES], emptied=True)
def test_each_key_is_checked(backend: Backend, client: redis.Redis, key: str) -> None:
    client.rpush(key, "x")
    with pytest.raises(ForeignKey, match=f"{key} is a list, not a .*Delete the key"):
        check_types(backend.client, ROOT)


def test_a_key_of_one_entry_is_checked_if_it_is_asked_for(backend: Backend, client: redis.Redis) -> None:
    rows = RunKeys("redbeat-lite").rows("x}:due")
    client.rpush(rows, "x")
    check_types(backend.client, ROOT)
    with pytest.raises(ForeignKey, match="runs:of:x}:due is a list, not a zset"):
        check_types(backend.client, ROOT, [rows])


def test_an_error_of_a_command_a_script_or_several_together_names_the_key(
    backend: Backend, client: redis.Redis
) -> None:
    reading = Store(backend, KEYS)
    client.rpush(KEYS.state, "x")
    client.rpush("other", "x")
    with pytest.raises(ForeignKey) as of_command:
        backend.client.hlen(KEYS.state)
    with pytest.raises(ForeignKey) as of_script:
        reading.read(["a"])
    with pytest.raises(ForeignKey) as of_several:
        checked(backend.scripts.together([("HLEN", KEYS.entries), ("HLEN", KEYS.state)]))
    assert {error.value.key for error in (of_command, of_script, of_several)} == {KEYS.state}
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        backend.client.hlen("other")


def test_the_error_survives_a_trip_through_a_result_backend() -> None:
    error = pickle.loads(pickle.dumps(ForeignKey("key", "list", "hash")))
    assert str(error).startswith("key is a list, not a hash")
