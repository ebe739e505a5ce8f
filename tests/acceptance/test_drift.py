"""A live beat keeps the pace of its intervals: none is left out, none comes early, and lateness does not grow."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
import redis

from tests.support.beats import KEYS, conf
from tests.support.messages import parse
from tests.support.processes import Process

#: Seconds that the median of the last tenth may be later than that of the first. A beat that counted from the moment of
#: sending would lose at least a millisecond with each run, and a run of the long test would lose 60.
DRIFT = 0.05


def lateness(client: redis.Redis, seconds: float) -> list[tuple[float, float]]:
    """Nominal times of the entry ``watched`` within these seconds, and how much later each message arrived."""
    seen = []
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        found = client.blpop(["watched"], timeout=left)  # type: ignore[arg-type]  # redis-py takes fractions too
        arrived = time.time()
        if found:
            at = parse(found[1]).scheduled_at
            assert at is not None
            seen.append((at.timestamp(), arrived - at.timestamp()))
    return seen


@pytest.mark.parametrize(
    ("seconds", "others"),
    [(6, 40), pytest.param(60, 200, marks=[pytest.mark.soak, pytest.mark.timeout(120)])],
)
def test_a_second_stays_a_second_under_load(
    beat: Callable[..., Process], client: redis.Redis, seconds: int, others: int
) -> None:
    """Besides the entry that is watched, so many work the beat at the same time."""
    watched = {"task": "proj.add", "schedule": 1.0, "options": {"queue": "watched"}, "misfire": "all"}
    load = {f"other {n}": {"task": "proj.add", "schedule": 0.5 + n / 1000} for n in range(others)}
    process = beat(PROJ_CONF=conf(schedule={"watched": watched, **load}))
    process.says("beat: leading")
    client.blpop(["watched"], timeout=20)
    seen = lateness(client, seconds)
    nominals, late = zip(*seen, strict=True)
    assert len(seen) in (seconds - 1, seconds, seconds + 1)
    assert [round(at - nominals[0], 3) for at in nominals] == list(range(len(seen))), "the plan drifts"
    assert min(late) > -0.001, "an occurrence came before its time"
    tenth = max(len(late) // 10, 3)
    first, last = statistics.median(late[:tenth]), statistics.median(late[-tenth:])
    print(f"{len(seen)} runs, late by {first:.4f} s at first and {last:.4f} s in the end, at most {max(late):.4f} s")
    assert last - first < DRIFT
    assert client.zcard(KEYS.due) >= others + 1
    assert process.alive
