"""The runs of entries around now, and how many entries run next in a span of time."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from redbeat_lite import Entry, Schedules, cron, every
from redbeat_lite._base.times import to_ms
from tests.support.beats import KEYS
from tests.support.frozen import NOW
from tests.web.conftest import Visitor
from tests.web.test_pages import recorded

pytestmark = pytest.mark.usefixtures("clock")

HOUR = NOW.replace(minute=0, second=0, microsecond=0)


@pytest.fixture
def due(schedules: Schedules, client: redis.Redis) -> Callable[..., None]:
    """Stores entries that are due at these minutes from the beginning of the hour on."""

    def store(*minutes: float) -> None:
        names = [f"e{number}" for number in range(len(minutes))]
        schedules.add_many(Entry(name, "add", every(3600)) for name in names)
        at = (to_ms(HOUR + timedelta(minutes=each)) for each in minutes)
        client.zadd(KEYS.due, dict(zip(names, at, strict=True)))

    return store


def test_due_times_are_counted_between_instants(schedules: Schedules, due: Callable[..., None]) -> None:
    due(-1, 0, 0.5, 1, 59.99, 60, 9e6)
    schedules.pause("e3")
    edges = [HOUR + timedelta(minutes=each) for each in (0, 1, 60)]
    assert schedules.due_counts(edges) == [1, 2, 1, 2]
    assert schedules.due_counts([]) == [6]


def test_lanes_have_past_runs_and_those_to_come(visitor: Visitor, schedules: Schedules, client: redis.Redis) -> None:
    schedules.add("poll", "add", every(3600 * 4))
    schedules.add("often", "add", every(10))
    schedules.add("parked", "add", cron("0 0 * * *"), enabled=False)
    recorded(client, schedules, "poll", "failed", "succeeded")
    seen = visitor.get("timeline", q="po")
    assert seen.html.count("<svg") == 1
    assert 'aria-label="2 past runs, 4 to come"' in seen.html
    assert [*re.findall(r'<path class="outcome (\w+)"', seen.html)] == ["succeeded", "bad"]
    assert re.search(r'<path class="next" d="(M\d+ 6V14){4}"/>', seen.html)
    assert 'aria-label="0 past runs, 20 to come"' in (often := visitor.get("timeline", q="often", span="7d").html)
    assert "<option selected>7d</option>" in often
    week = timedelta(days=7) // timedelta(seconds=1)
    assert re.search(rf'M\d+ 10H{week}"/>', often)
    assert 'aria-label="0 past runs, 0 to come"' in visitor.get("timeline", q="parked").html
    schedules.freeze(86400 * 2)
    assert 'aria-label="2 past runs, 0 to come"' in visitor.get("timeline", q="po").html
    assert "No entry matches this filter." in visitor.get("timeline", tag="nope").text


def test_there_are_a_hundred_lanes_at_most(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add_many(Entry(f"e{number}", "add", every(60), tags=["a"]) for number in range(120))
    assert visitor.get("timeline", tag="a").html.count("<svg") == 100


def test_due_times_are_counted_in_one_round_trip_however_many_are_stored(
    schedules: Schedules, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.zadd(KEYS.due, {f"e{number}": to_ms(HOUR) + 9 * number for number in range(20_000)})
    store: Any = schedules._store
    sent, pipeline = list[int](), store.backend.client.pipeline

    def counted(**how: Any) -> Any:
        assert how == {"transaction": False}  # or the server would do nothing else meanwhile
        pipe = pipeline(**how)
        execute = pipe.execute
        pipe.execute = lambda **how: sent.append(len(pipe)) or execute(**how)
        return pipe

    monkeypatch.setattr(store.backend.client, "pipeline", counted)
    counts = schedules.due_counts([HOUR + timedelta(minutes=each) for each in range(1441)])
    assert (sum(counts), len(counts), sent) == (20_000, 1442, [1442])
