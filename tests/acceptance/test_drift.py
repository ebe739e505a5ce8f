"""A live beat keeps the pace of its intervals: none is left out, none comes early, and lateness does not grow."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import pytest
import redis

from tests.harness.history import now_ms
from tests.harness.queues import Sent, check_messages, sent_of
from tests.support.beats import KEYS, conf
from tests.support.processes import Process

#: Seconds that the median of the last tenth may be later than that of the first. A beat that counted from the moment of
#: sending would lose at least a millisecond with each run, and a run of the long test would lose 60.
DRIFT = 0.05


def received(client: redis.Redis, seconds: float) -> list[Sent]:
    """The messages of the entry ``watched`` that arrive within these seconds."""
    messages = []
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        popped = client.blpop(["watched"], timeout=left)  # type: ignore[arg-type]  # redis-py takes fractions too
        if popped:
            messages.append(sent_of(json.loads(popped[1])["headers"], now_ms(), 0))
    return messages


# In `make test`, test_hundreds_of_runs_of_a_second_end_where_they_should_although_each_tick_is_late of
# tests/beat/test_pace.py has the same, by a clock that stands still, and each promise of "One stream" counts the
# milliseconds from run to run.
@pytest.mark.soak
@pytest.mark.timeout(120)
def test_a_second_stays_a_second_under_load(beat: Callable[..., Process], client: redis.Redis) -> None:
    """Besides the entry that is watched, 200 work the beat at the same time.

    The audit judges the plan. It has no law about lateness that grows from run to run.
    """
    seconds, others = 60, 200
    watched = {"task": "proj.add", "schedule": 1.0, "options": {"queue": "watched"}, "misfire": "all"}
    load = {f"other {n}": {"task": "proj.add", "schedule": 0.5 + n / 1000} for n in range(others)}
    process = beat(PROJ_CONF=conf(schedule={"watched": watched, **load}))
    process.says("beat: leading")
    client.blpop(["watched"], timeout=20)
    messages = received(client, seconds)
    assert len(messages) in (seconds - 1, seconds, seconds + 1)
    check_messages(messages, ["watched"], 1000)
    late = [(message.at - message.nominal) / 1000 for message in messages]
    assert min(late) >= 0, "an occurrence came before its time"
    tenth = max(len(late) // 10, 3)
    first, last = statistics.median(late[:tenth]), statistics.median(late[-tenth:])
    print(
        f"{len(messages)} runs, late by {first:.4f} s at first, {last:.4f} s in the end, and at most {max(late):.4f} s"
    )
    assert last - first < DRIFT
    assert client.zcard(KEYS.due) >= others + 1
    assert process.alive
