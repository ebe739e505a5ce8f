"""Arbitrary bytes as definitions, states, names, scores and wake messages: each is used or set aside, none harms."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redbeat_lite import Entry, Scheduler, Schedules, cron, every, rrule
from redbeat_lite._base.errors import CorruptEntry, RedbeatError
from redbeat_lite._base.json_values import MAX_BYTES, loads, unpack
from redbeat_lite.beat.dispatch.planner import Planner
from redbeat_lite.entries.changes import Stored
from redbeat_lite.entries.model import encode
from redbeat_lite.entries.state import EntryState
from redbeat_lite.entries.stored_entry import decode
from tests.support.messages import of_entry
from tests.support.rules import UTC_APP

NOW = 1_800_000_000_000

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 2**31, 2**63, 10**30, 10**400])
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["", "__import__('os').system('true')", "../../etc", "{x}", "os.system", "\n", "P1D", "* * * * *"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
tagged = st.builds(
    lambda tag, value: {"__type__": tag, "__value__": value},
    st.sampled_from(["dict", "set", "datetime", "decimal", "uuid", "bytes", "pickle", "object", ""])
    | st.text(max_size=5),
    json_values,
)

SOUND = [
    json.loads(encode(entry))
    for entry in (
        Entry("a", "add", every(10), [1], {"x": 2}, {"queue": "q"}, jitter=3, max_runs=9, misfire="all"),
        Entry("b", "add", cron("0 3 * * *", tz="Europe/Berlin"), once=True, expires=5, description="text"),
        Entry("c", "add", rrule("FREQ=DAILY;COUNT=5", start=datetime(2026, 1, 1, tzinfo=UTC))),
        Entry("d", "add", timedelta(seconds=3), start_at=datetime(2026, 1, 1, tzinfo=UTC), enabled=False),
    )
]
RULES = st.one_of(
    st.fixed_dictionaries({"every": json_values}),
    st.fixed_dictionaries({"cron": st.text(st.sampled_from("0123456789*/,-#L ?@adnoymeru"), max_size=20)}),
    st.fixed_dictionaries({"rrule": st.text(st.sampled_from("FREQ=DAILYCOUNTBYSTPO;0123456789-,"), max_size=40)}),
    st.fixed_dictionaries({"crontab": st.lists(json_values, max_size=6)}),
    st.fixed_dictionaries({"custom": json_values, "data": json_values}),
    st.fixed_dictionaries({"solar": json_values}),
    json_values,
)


def spoiled(sound: dict[str, Any], changes: dict[str, Any]) -> bytes:
    return json.dumps({**sound, **changes}).encode()


FIELDS = sorted({field for each in SOUND for field in each} | {"unstored", "owner", "relative", "remove_when_done"})
definitions = st.one_of(
    st.binary(max_size=60),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.builds(
        spoiled,
        st.sampled_from(SOUND),
        st.dictionaries(st.sampled_from(FIELDS), json_values | tagged, min_size=1, max_size=3),
    ),
    st.builds(lambda sound, rule: spoiled(sound, {"schedule": rule}), st.sampled_from(SOUND), RULES),
    st.sampled_from(SOUND).map(lambda sound: spoiled(sound, {})),
)
#: 4,300 digits are the most that Python reads as a number, and one too few for what comes after it.
LIMITS = ["", "x", "-0", "-5", "1e9", str(10**15 - 1), "99999999999999999999", "9" * 4300]
numbers = st.integers().map(str) | st.sampled_from(LIMITS) | st.text(max_size=5)
states = st.one_of(
    st.binary(max_size=40),
    st.lists(numbers, min_size=6, max_size=10).map(lambda parts: "|".join(parts).encode("utf-8", "surrogatepass")),
    st.builds(
        lambda nominal, notes: f"1|abcd|{nominal}|{notes}".encode("utf-8", "surrogatepass"),
        numbers,
        st.text(max_size=20),
    ),
    # With counters of any kind, and all else in order.
    st.builds(
        lambda counters: f'{counters[0]}|abcd|{NOW - 1000}|{{"count":{counters[1]},"last":{counters[2]}}}'.encode(
            "utf-8", "surrogatepass"
        ),
        st.lists(numbers, min_size=3, max_size=3),
    ),
    st.just(EntryState.new(NOW - 1000).encode().encode()),
)


def fuzz(count: int, *strategies: Any, **options: Any) -> Callable[[Callable[..., None]], None]:
    """Run a function with that many examples, at once."""

    def run(function: Callable[..., None]) -> None:
        fixture = HealthCheck.function_scoped_fixture
        settings(max_examples=count, deadline=None, suppress_health_check=[fixture, HealthCheck.too_slow])(
            given(*strategies)(function)
        )()

    return run


@pytest.fixture
def scheduler(app: Celery) -> Iterator[Scheduler]:
    scheduler = Scheduler(app)
    yield scheduler
    scheduler.close()


# One test, because each process that draws examples first builds the strategies, which takes longest.
@pytest.mark.parametrize(
    ("count", "ticks"), [(60, 8), pytest.param(20_000, 2_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_bytes_are_read_or_refused_and_entries_sent_or_set_aside(
    app: Celery,
    scheduler: Scheduler,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    count: int,
    ticks: int,
) -> None:
    caplog.set_level(logging.CRITICAL)
    fuzz(count, definitions)(is_definition_read_or_refused)
    fuzz(count, tagged)(makes_tag_nothing_but_values)
    fuzz(count, states)(is_state_read_or_refused)
    fuzz(count, definitions | st.none(), states | st.none(), st.binary(max_size=10))(is_planned_or_set_aside)
    rubbish = st.dictionaries(
        st.binary(min_size=1, max_size=12),
        st.tuples(definitions | st.none(), states | st.none(), st.floats(allow_nan=False)),
        max_size=8,
    )

    def is_what_is_sound_sent(entries: Any, words: list[bytes]) -> None:
        tick_over_rubbish(Schedules(app), scheduler, client, entries, words)

    fuzz(ticks, rubbish, st.lists(st.binary(max_size=20), max_size=3))(is_what_is_sound_sent)


def is_definition_read_or_refused(raw: bytes) -> None:
    entry, error = _decoded(raw)
    if entry is not None:
        assert decode("name", encode(entry).encode()) == entry
    assert "\n" not in error, "it goes into a log line"


def _decoded(raw: bytes) -> tuple[Entry | None, str]:
    try:
        return decode("name", raw), ""
    except RedbeatError as exc:
        return None, str(exc)


def makes_tag_nothing_but_values(value: dict[str, Any]) -> None:
    kinds = {dict, list, str, int, float, bool, type(None), tuple, set, frozenset, bytes}
    try:
        found = unpack(loads(json.dumps(value)))
    except CorruptEntry:
        return
    assert type(found) in kinds or type(found).__module__ in ("datetime", "decimal", "uuid"), type(found)


def is_state_read_or_refused(raw: bytes) -> None:
    try:
        state = EntryState.decode(raw)
    except CorruptEntry:
        return
    assert EntryState.decode(state.encode().encode()) == state


PLANNER = Planner(
    app=UTC_APP,
    completed=lambda entry: entry,
    prefix="redbeat-lite",
    slack=5_000,
)


def is_planned_or_set_aside(definition: bytes | None, state: bytes | None, name: bytes) -> None:
    batch = PLANNER.plan([Stored(name, NOW, definition, state)], NOW, 500)
    assert len(batch.jobs) + len(batch.bad) + len(batch.custom_entries) == 1
    for bad in batch.bad:
        assert json.loads(bad.record)["error"]


def tick_over_rubbish(
    schedules: Schedules,
    scheduler: Scheduler,
    client: redis.Redis,
    entries: dict[bytes, tuple[bytes | None, bytes | None, float]],
    words: list[bytes],
) -> None:
    keys = scheduler.store.keys
    client.flushdb()
    scheduler.run_due()
    scheduler.run_due()
    schedules.add("sound", "add", every(0.05), expires=None)
    for name, (definition, state, score) in entries.items():
        if name != b"sound":
            client.hset(keys.entries, name, definition) if definition is not None else None
            client.hset(keys.state, name, state) if state is not None else None
            client.zadd(keys.due, {name: score})
    client.zadd(keys.due, {"sound": 0})
    for word in words:
        client.publish(keys.wake, word)
    scheduler._parts.wakeup.listen()
    deadline = time.monotonic() + 5
    while not of_entry(client, "sound"):
        assert time.monotonic() < deadline
        scheduler.run_due()
        scheduler._parts.wakeup.wait(0.01, until=lambda: False, leads=True)
    found = set(client.keys("*")) - _queues(client)
    assert all(key.startswith((b"{redbeat-lite}:", b"_kombu.")) for key in found), found
    schedules.quarantined()
    len(schedules.list(limit=100))


def _queues(client: redis.Redis) -> set[bytes]:
    """The lists of the broker: a definition may name any queue."""
    return {key for key in client.keys("*") if client.type(key) == b"list"}


def test_a_definition_over_the_limit_is_not_even_parsed() -> None:
    huge = b'{"v":3,"task":"add","description":"' + b"x" * MAX_BYTES + b'"}'
    with pytest.raises(CorruptEntry, match="over"):
        decode("name", huge)


def test_depth_does_not_matter() -> None:
    for raw in (b"[" * 30_000, b'{"v":3,"args":' + b"[" * 900 + b"]" * 900 + b"}", b'{"a":' * 20_000):
        with pytest.raises(CorruptEntry):
            decode("name", raw)
