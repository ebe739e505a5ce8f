"""Entries and states come back from their stored forms as they went in."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from celery.schedules import crontab, schedule, solar
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redbeat_lite import Entry, Expect, Misfire, Once, Pause, at, cron, every, rrule
from redbeat_lite._base.errors import CorruptEntry
from redbeat_lite._base.times import MAX_MS, MIN_MS
from redbeat_lite.entries.model import encode
from redbeat_lite.entries.state import EntryState, task_id
from redbeat_lite.entries.stored_entry import decode
from tests.support.cases import together
from tests.support.examples import examples

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=200)
zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=9))])
instants = st.datetimes(datetime(1980, 1, 1), datetime(2200, 1, 1), timezones=zones)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text | instants,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text | st.just("__type__"), inner, max_size=3),
    max_leaves=8,
)
schedules = st.one_of(
    st.integers(50, 10**9).map(lambda ms: every(timedelta(milliseconds=ms))),
    st.integers(50, 10**9).map(lambda ms: every(timedelta(milliseconds=ms), align=True)),
    st.floats(0.05, 10**6).map(schedule),
    st.booleans().map(lambda relative: schedule(3600, relative=relative)),
    st.sampled_from(["* * * * *", "*/7 1-5 L * *", "0 0 * * fri#2", "@daily", "1 2 3 4 5 6"]).map(cron),
    st.sampled_from(["Europe/Berlin", "Asia/Tokyo"]).map(lambda zone: cron("30 2 * * *", tz=zone)),
    st.builds(
        lambda minute, hour: crontab(minute=minute, hour=hour), st.integers(0, 59), st.sampled_from(["*", "*/3"])
    ),
    st.just(crontab(minute="0,30", day_of_week="mon-fri", day_of_month="1-7", month_of_year="*/2")),
    st.just(solar("sunrise", 10.5, -20.25)),
    st.just(rrule("FREQ=WEEKLY;BYDAY=MO,WE", start=datetime(2026, 1, 5, 9, tzinfo=UTC))),
    instants.map(at),
)
onces = st.one_of(
    st.booleans(),
    st.builds(
        Once,
        key=st.none() | st.just("{x}"),
        scope=st.sampled_from(["run", "queue"]),
        lease=st.floats(1, 10**4),
        max_waiters=st.integers(1, 10),
    ),
)
misfires = st.builds(
    Misfire,
    st.sampled_from(["coalesce", "skip", "all"]),
    st.none() | st.floats(1, 10**6),
    st.none() | st.integers(1, 1000),
)


expectations = st.sampled_from([None, False]) | st.builds(
    Expect,
    st.none() | st.floats(0.001, 100),
    st.none() | st.floats(100, 10**6),
    st.none() | st.integers(1, 10**6),
    st.integers(1, 1000),
)


@st.composite
def entries(draw: Any) -> Entry:
    window, goes = sorted([draw(instants), draw(instants)]), draw(st.booleans())
    return Entry(
        draw(names),
        draw(names),
        draw(schedules),
        draw(st.lists(values, max_size=3)),
        draw(st.dictionaries(text, values, max_size=3)),
        draw(st.dictionaries(st.sampled_from(["queue", "priority", "headers"]), st.none(), max_size=2)),
        expires=draw(
            st.none() | st.just("interval") | st.floats(0.1, 10**6) | st.timedeltas(timedelta(1), timedelta(36_500))
        ),
        once=draw(onces),
        misfire=draw(misfires),
        jitter=draw(st.floats(0, 10**5)),
        start_at=draw(st.none() | st.just(window[0])),
        end_at=draw(st.none() | st.just(window[1])),
        max_runs=draw(st.none() | st.integers(1, 10**9)),
        enabled=draw(st.booleans()),
        description=draw(text),
        remove_when_done=goes,
        history=draw(st.none() | st.integers(1, 1000)),
        tags=draw(st.sets(names.map(lambda tag: tag.replace(",", ".")[:100]), max_size=3)),
        expect=None if goes else draw(expectations),
        on_failure=None if goes else draw(st.none() | st.builds(Pause, st.integers(1, 1000))),
    )


@examples(35)
@given(entries())
def test_an_entry_survives_storage(entry: Entry) -> None:
    stored = encode(entry)
    back = decode(entry.name, stored.encode())
    assert back == entry
    assert encode(back) == stored
    for field, value in entry.definition().items():
        assert getattr(back, field) == value, field
        if field not in ("args", "start_at", "end_at"):
            assert type(getattr(back, field)) is type(value), field


@examples(25)
@given(entries())
def test_an_entry_survives_being_pickled_and_copied(entry: Entry) -> None:
    entry.state = EntryState.new(5)
    for twin in (pickle.loads(pickle.dumps(entry)), copy.deepcopy(entry), copy.copy(entry)):
        assert twin == entry
        assert twin.state == entry.state


ms = st.integers(MIN_MS, MAX_MS)
states = st.builds(
    EntryState,
    version=st.integers(1, 10**9),
    generation=st.text("0123456789abcdef", min_size=1, max_size=8),
    nominal=st.none() | ms,
    last=st.none() | ms,
    count=st.integers(0, 10**12),
    skipped=st.integers(0, 10**12),
    attempts=st.integers(0, 10**6),
    paused=st.booleans(),
    note=text | st.just("a|b|\n|"),
    error=text,
    deltas=st.from_regex(r"(0(,[0-9a-f]{1,12}){0,3})?", fullmatch=True),
)


@examples(35)
@given(states)
def test_a_state_survives_storage_and_begins_with_its_guard(state: EntryState) -> None:
    stored = state.encode()
    assert EntryState.decode(stored.encode()) == state
    assert stored.startswith(state.guard)


@examples(35)
@given(st.binary(max_size=60) | st.text("0123456789|abc -+_.\u0661", max_size=60).map(str.encode))
def test_a_state_that_is_read_at_all_is_one_that_a_commit_can_match(raw: bytes) -> None:
    try:
        state = EntryState.decode(raw)
    except CorruptEntry:
        return
    assert raw.startswith(state.guard.encode())


@together("raw", [b"1|g|5.0|{}", b"1|g|05|{}", b"1|g|null|{}", b'1|g|5|{"version":2}'])
def test_a_state_in_a_foreign_spelling_is_corrupt(raw: bytes) -> None:
    with pytest.raises(CorruptEntry, match="state is not "):
        EntryState.decode(raw)


@together("more", [{"note": "x" * 33_000}, {"count": 10**15}, {"version": -1}])
def test_a_state_beyond_all_bounds_is_corrupt(more: dict[str, Any]) -> None:
    with pytest.raises(CorruptEntry):
        EntryState.decode(replace(EntryState.new(0), **more).encode().encode())


@examples(40)
@given(names, names, ms, ms)
def test_occurrences_have_names_of_their_own(one: str, two: str, first: int, second: int) -> None:
    assert task_id(one, "g", first) == task_id(one, "g", first)
    same = (one, first) == (two, second)
    assert (task_id(one, "g", first) == task_id(two, "g", second)) == same
    assert task_id(one, "g", first) != task_id(one, "h", first)
