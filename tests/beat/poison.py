"""Entries that cannot be used, and a schedule that raises."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import redis
from celery.schedules import BaseSchedule, schedstate

from redbeat_lite import Entry, Schedules, every
from tests.beat.moments import after
from tests.support.in_process import KEY


class CannotTell(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """A schedule that works for a while and then raises."""

    def __init__(self, fails_from: float) -> None:
        super().__init__()
        self.fails_from = fails_from

    def is_due(self, last_run_at: datetime) -> Any:
        if last_run_at.timestamp() >= self.fails_from:
            raise ZeroDivisionError("schedule is broken")
        since = (self.now() - last_run_at).total_seconds()
        return schedstate(is_due=since >= 10, next=10 if since >= 10 else 10 - since)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CannotTell) and other.fails_from == self.fails_from

    __hash__ = None  # type: ignore[assignment]


class CannotBeRead(Mapping[str, Any]):
    """What may stand for a dict, and raises as soon as it is read."""

    def __getitem__(self, key: str) -> Any:
        raise ZeroDivisionError("mapping is broken")

    def __iter__(self) -> Iterator[str]:
        return iter(["task"])

    def __len__(self) -> int:
        return 1


class NeitherTrueNorFalse(dict[str, Any]):
    """A dict of a class that has no truth, as arrays and expressions of some libraries."""

    def __bool__(self) -> bool:
        raise ValueError("the truth of this is ambiguous")


def poison(schedules: Schedules, client: redis.Redis, kind: str) -> None:
    """Make the entry ``bad``, due 10 s from now, and spoil it."""
    if kind == "raising schedule":
        schedules["bad"] = Entry("bad", "add", CannotTell(after(9).timestamp()))
        return
    if kind == "schedule that raises beyond its next run":
        schedules["bad"] = Entry("bad", "add", CannotTell(after(19).timestamp()))
        definition = json.loads(client.hget(KEY + "entries", "bad") or b"")
        client.hset(KEY + "entries", "bad", json.dumps({**definition, "jitter": 0.5}))
        return
    schedules.add("bad", "add", every(10))
    definition = json.loads(client.hget(KEY + "entries", "bad") or b"")
    state = (client.hget(KEY + "state", "bad") or b"").decode()
    match kind:
        case "no JSON":
            client.hset(KEY + "entries", "bad", "{")
        case "not UTF-8":
            client.hset(KEY + "entries", "bad", b"\xff\xfe")
        case "JSON of another kind":
            client.hset(KEY + "entries", "bad", "[1]")
        case "unknown schedule class":
            client.hset(KEY + "entries", "bad", json.dumps({**definition, "schedule": {"custom": "no.Such"}}))
        case "rule that takes minutes to search":
            costly = "DTSTART:10000101T000001 RRULE:FREQ=SECONDLY;INTERVAL=3607;COUNT=10000;BYMINUTE=0;BYSECOND=0"
            client.hset(KEY + "entries", "bad", json.dumps({**definition, "schedule": {"rrule": costly}}))
        case "field of a wrong type":
            client.hset(KEY + "entries", "bad", json.dumps({**definition, "jitter": "soon"}))
        case "format to come":
            client.hset(KEY + "entries", "bad", json.dumps({**definition, "v": 99}))
        case "task gone":
            client.hset(KEY + "entries", "bad", json.dumps({"v": 3, "schedule": {"every": "10s"}}))
        case "definition gone":
            client.hdel(KEY + "entries", "bad")
        case "state gone":
            client.hdel(KEY + "state", "bad")
        case "state garbage":
            client.hset(KEY + "state", "bad", "garbage")
        case "state that reads like another":
            client.hset(KEY + "state", "bad", " " + state)
        case "name not UTF-8":
            client.zadd(KEY + "due", {b"\xff\xfe": after(10).timestamp() * 1000})
            client.hset(KEY + "entries", b"\xff\xfe", json.dumps(definition))
            client.hset(KEY + "state", b"\xff\xfe", state)
            schedules.remove("bad")
        case "once key without its argument":
            client.hset(
                KEY + "entries", "bad", json.dumps({**definition, "once": {"key": "{missing}", "scope": "queue"}})
            )
        case _:
            raise AssertionError(kind)
