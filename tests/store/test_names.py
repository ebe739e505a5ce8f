"""The first entries are read alone, and errors of a dead address say what to do."""

from __future__ import annotations

from itertools import islice

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Schedules, every
from tests.support.cases import together
from tests.support.in_process import MakeApp
from tests.support.server import free_port


def test_the_first_entries_are_read_without_the_names_of_all(make_app: MakeApp, client: redis.Redis) -> None:
    schedules = Schedules(make_app())
    schedules.add_many(Entry(f"e{number:04}", "t", every(60 + number)) for number in range(1_100))
    calls = _scans(client)
    entries = iter(schedules.items())
    names = [name for name, _ in islice(entries, 20)]
    assert names == [f"e{number:04}" for number in range(20)]
    assert _scans(client) == calls
    moved = schedules.update("e1050", schedule=every(1))
    assert moved.name in {name for name, _ in entries}, "an entry is not missed that moves to the front meanwhile"


def _scans(client: redis.Redis) -> int:
    calls: int = client.info("commandstats").get("cmdstat_zscan", {"calls": 0})["calls"]
    return calls


@together("call", [lambda it: it.add("a", "t", every(5)), lambda it: it["a"], lambda it: it.pause("a")])
def test_an_address_where_nothing_listens_is_said_with_its_setting(call: object) -> None:
    app = Celery("away", broker=f"redis://127.0.0.1:{free_port()}/0", set_as_current=False)
    with pytest.raises(redis.ConnectionError, match=r"Start the server, or check redbeat_lite_url$"):
        call(Schedules(app))  # type: ignore[operator]
    app.close()
