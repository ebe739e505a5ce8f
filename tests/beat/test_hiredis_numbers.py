"""What hiredis is given to pack, where it is installed. A signal while it packs a number ends the process."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest
import redis.connection
from kombu import Exchange, Queue
from redis.connection import PythonRespSerializer

from redbeat_lite import Entry, Schedules, every
from redbeat_lite.beat import hiredis_numbers
from redbeat_lite.schedules import Question
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.messages import queued
from tests.support.server import Server


class Hiredis:
    """Stands in for hiredis: packs as redis-py would without it, and keeps what is no text."""

    def __init__(self) -> None:
        self.commands = 0
        self.numbers: list[tuple[Any, ...]] = []
        encode = redis.connection.Encoder("utf-8", "strict", False).encode  # type: ignore[no-untyped-call]
        self._packer = PythonRespSerializer(6000, encode)  # type: ignore[no-untyped-call]

    def pack_command(self, args: tuple[Any, ...]) -> bytes:
        self.commands += 1
        if not all(isinstance(arg, (str, bytes)) for arg in args):
            self.numbers.append(args[:4])
        return b"".join(self._packer.pack(*args))  # type: ignore[no-untyped-call]


@pytest.fixture
def hiredis(monkeypatch: pytest.MonkeyPatch) -> Hiredis:
    """From now on new connections pack with it."""
    spy = Hiredis()
    monkeypatch.setattr(redis.connection.HiredisRespSerializer, "pack", lambda _, *args: [spy.pack_command(args)])
    monkeypatch.setattr(redis.connection, "hiredis", spy, raising=False)
    monkeypatch.setattr(redis.connection, "HIREDIS_AVAILABLE", True)
    monkeypatch.setattr(redis.connection, "HIREDIS_PACK_AVAILABLE", True, raising=False)  # in redis-py 5
    return spy


@pytest.mark.parametrize("broker", [0, 1])
@pytest.mark.parametrize("dispatch", ["auto", "plain"])
def test_no_number_of_a_beat_is_left_to_it(
    make_app: MakeApp,
    make_beat: MakeBeat,
    server: Server,
    clock: Clock,
    hiredis: Hiredis,
    broker: int,
    dispatch: str,
) -> None:
    app = make_app(
        broker_url=f"{server.url.removesuffix('/0')}/{broker}",
        redbeat_lite_url=server.url,
        redbeat_lite_dispatch=dispatch,
        beat_schedule={"configured": {"task": "t", "schedule": 10}},
        task_queues=[Queue("celery"), Queue("short", Exchange("short", type="topic"), routing_key="#", expires=100)],
    )
    beat = make_beat(app)
    schedules = Schedules(app)
    schedules.add("locked", "t", every(10), once=True)
    schedules.add("short", "t", every(10), options={"queue": "short"})
    schedules.add_many(Entry(f"e{number}", "t", every(10), (number,)) for number in range(20))
    beat.max_interval = 0.01
    for _ in range(2):
        beat.tick()
        clock.forward(10)
    beat.tick()
    beat.close()
    with server.client(db=broker) as client:
        assert len(queued(client)) >= 40
    assert hiredis.commands > 20
    assert hiredis.numbers == []


def test_each_argument_is_packed_as_redis_py_would(hiredis: Hiredis) -> None:
    class Count(IntEnum):
        SEVEN = 7

    def packed(*args: Any) -> bytes:
        return b"".join(hiredis_numbers._packed(None, *args))  # type: ignore[arg-type]

    given = ("CONFIG GET", 1, 2.5, Count.SEVEN, Question(1772453250000, 5), "é", b"bytes", bytearray(b"more"))
    said = hiredis.pack_command(("CONFIG", "GET", "1", "2.5", "7", "1772453250000", "é", b"bytes", b"more"))
    assert packed(*given) == said
    assert hiredis.numbers == []
    assert packed(b"CONFIG GET", memoryview(b"more")) == hiredis.pack_command((b"CONFIG", b"GET", b"more"))
    with pytest.raises(redis.DataError, match="bool"):
        packed("SET", True)
