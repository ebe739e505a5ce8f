"""Forms of schedules."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar
from hypothesis import example, given
from hypothesis import strategies as st

import redbeat_lite
from redbeat_lite._base.errors import InvalidEntry
from redbeat_lite.rules import (
    Rule,
    at,
    cron,
    decode_schedule,
    encode_schedule,
    every,
    forms,
    manual,
    register_schedule,
    rrule,
    rule_of,
)
from tests.support.cases import together
from tests.support.examples import examples

T = datetime(2026, 5, 5, 5, 5, 5, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


class Shifted(BaseSchedule):  # type: ignore[misc]
    """A registered class: full hours and some seconds."""

    def __init__(self, seconds: int) -> None:
        super().__init__()
        self.seconds = seconds

    def next_after(self, instant: datetime) -> datetime:
        full = instant.replace(minute=0, second=0, microsecond=0) + timedelta(seconds=self.seconds)
        return full if full > instant else full + timedelta(hours=1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shifted) and self.seconds == other.seconds

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_custom", {})


@together(
    ("written", "stored"),
    [
        (every(10), {"every": "10s"}),
        (manual(), {"manual": True}),
        (every(0.05, align=True), {"every": "50ms", "align": True}),
        (cron("0  3 * * MON"), {"cron": "0 3 * * MON"}),
        (cron("0 3 * * *", tz="Europe/Berlin"), {"cron": "0 3 * * *", "tz": "Europe/Berlin"}),
        (
            cron("0 0 3 * * *", tz="+05:30", seconds="first"),
            {"cron": "0 0 3 * * *", "tz": "+05:30", "seconds": "first"},
        ),
        (at(datetime(2026, 1, 1, tzinfo=UTC)), {"at": "2026-01-01T00:00:00+00:00"}),
        (rrule("FREQ=DAILY;BYHOUR=9", tz=BERLIN), {"rrule": "FREQ=DAILY;BYHOUR=9", "tz": "Europe/Berlin"}),
        (rrule("FREQ=DAILY;COUNT=3", start=T), {"rrule": "FREQ=DAILY;COUNT=3", "start": "2026-05-05T05:05:05+00:00"}),
        (crontab(0, "*/4", day_of_month={1, 15}), {"crontab": [0, "*/4", "*", [1, 15], "*"]}),
        (crontab((5, 6), range(3)), {"crontab": [[5, 6], [0, 1, 2], "*", "*", "*"]}),
        (schedule(30), {"schedule": 30.0}),
        (schedule(timedelta(microseconds=100_001), relative=True), {"schedule": 0.100001, "relative": True}),
        (solar("sunset", 52.5, -13.4), {"solar": ["sunset", 52.5, -13.4]}),
    ],
)
def test_a_schedule_comes_back_equal_and_of_its_class(written: Any, stored: dict[str, Any]) -> None:
    assert encode_schedule(written) == stored
    read = decode_schedule(json.loads(json.dumps(stored)))
    assert type(read) is type(written)
    assert read == written
    assert encode_schedule(read) == stored
    before = T - timedelta(days=200)
    assert rule_of(read, BERLIN).next_after(before) == rule_of(written, BERLIN).next_after(before)


def test_the_name_that_makes_a_schedule_is_its_class() -> None:
    for written in (every(60), cron("0 3 * * *"), at(T), rrule("FREQ=DAILY"), manual()):
        kind, *_ = encode_schedule(written)
        assert isinstance(decode_schedule(encode_schedule(written)), getattr(redbeat_lite, kind))


def test_a_registered_class_survives_the_store_and_fires() -> None:
    register_schedule(Shifted, lambda found: found.seconds, Shifted, name="shifted")
    stored = encode_schedule(Shifted(90))
    assert stored == {"custom": "shifted", "data": 90}
    read = decode_schedule(stored)
    assert read == Shifted(90)
    assert rule_of(read, UTC).next_after(T) == T.replace(minute=1, second=30) + timedelta(hours=1)
    assert rule_of(read, UTC) == rule_of(Shifted(90), UTC)
    assert rule_of(read, UTC) != rule_of(Shifted(91), UTC)


def test_the_data_of_a_registered_class_may_be_whatever_an_argument_may_be() -> None:
    register_schedule(
        Shifted,
        lambda found: (found.seconds, datetime(2026, 1, 1, tzinfo=UTC)),
        lambda data: Shifted(data[0]),
        name="shifted",
    )
    stored = json.loads(json.dumps(encode_schedule(Shifted(90))))
    assert decode_schedule(stored) == Shifted(90)
    with pytest.raises(InvalidEntry, match="a rule that can be read"):
        decode_schedule({"custom": "shifted", "data": {"__type__": "no such", "__value__": 1}})


def test_a_class_that_nobody_registered_is_refused_and_not_flattened() -> None:
    class Mine(crontab):  # type: ignore[misc]
        pass

    for unknown in (Mine(0, 9), Shifted(5), BaseSchedule()):
        with pytest.raises(InvalidEntry, match="register_schedule") as refused:
            encode_schedule(unknown)
        assert refused.value.field == "schedule"
    with pytest.raises(InvalidEntry, match="import the module") as refused:
        decode_schedule({"custom": "elsewhere.Mine", "data": None})
    register_schedule(Mine, lambda found: found._orig_hour, lambda hour: Mine(0, hour), name="elsewhere.Mine")
    assert type(decode_schedule(encode_schedule(Mine(0, 9)))) is Mine
    with pytest.raises(InvalidEntry, match="did you mean 'elsewhere"):
        decode_schedule({"custom": "elsewhere.Mines"})


def test_registering_is_checked() -> None:
    for cls in (crontab, schedule, solar, type(every(1)), type(cron("@daily")), int, "x"):
        with pytest.raises(InvalidEntry, match="cls"):
            register_schedule(cls, repr, repr)  # type: ignore[type-var,arg-type]
    register_schedule(Shifted, lambda found: iter([found.seconds]), Shifted)
    with pytest.raises(InvalidEntry, match=r"^schedule\.data: expected a value that JSON"):
        encode_schedule(Shifted(5))
    register_schedule(Shifted, lambda found: found.seconds, lambda data: every(data), name="liar")  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidEntry, match="a Shifted from its decoder"):
        decode_schedule({"custom": "liar", "data": 5})


def test_a_function_for_the_time_cannot_be_stored() -> None:
    with pytest.raises(InvalidEntry, match=r"without nowfun.*cron"):
        encode_schedule(crontab(0, 9, nowfun=datetime.now))


HOSTILE = [
    None,
    5,
    "every",
    [],
    {},
    {"every": "ten"},
    {"every": 0.0105},
    {"every": True},
    {"every": 0},
    {"every": 0.049},
    {"every": 10**30},
    {"every": 10_000, "align": "yes"},
    {"manual": 1},
    {"manual": False},
    {"every": 10_000, "cron": "* * * * *"},
    {"every": 10_000, "__class__": "os.system"},
    {"cron": 5},
    {"cron": "* * * *"},
    {"cron": "0 0 30 2 *"},
    {"cron": "* * * * *", "tz": "Nowhere/Land"},
    {"cron": "* * * * *", "tz": 5},
    {"cron": "* * * * *", "seconds": []},
    {"cron": "*/1," * 100_000 + "* * * * *"},
    {"at": "2026-01-01T00:00:00"},
    {"at": 10**20},
    {"rrule": "FREQ=NEVER"},
    {"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"},
    {"rrule": "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30"},
    {"rrule": "FREQ=MINUTELY;INTERVAL=1440;BYHOUR=3"},
    {"rrule": "FREQ=SECONDLY;COUNT=999999999", "start": "2026-01-01T00:00:00+00:00"},
    {"rrule": "FREQ=DAILY", "start": "2026-01-01T00:00:00"},
    {"rrule": "FREQ=DAILY", "start": "soon"},
    {"rrule": "FREQ=DAILY", "start": 5},
    {"crontab": []},
    {"crontab": ["*", "*", "*", "*"]},
    {"crontab": "* * * * *"},
    {"crontab": ["*/0", "*", "*", "*", "*"]},
    {"crontab": ["60", "*", "*", "*", "*"]},
    {"crontab": [60, "*", "*", "*", "*"]},
    {"crontab": [[], "*", "*", "*", "*"]},
    {"crontab": [[["5"]], "*", "*", "*", "*"]},
    {"crontab": [None, "*", "*", "*", "*"]},
    {"crontab": ["0-99999999999999", "*", "*", "*", "*"]},
    {"crontab": ["5," * 100_000, "*", "*", "*", "*"]},
    {"crontab": [0, 0, "*", 30, 2]},
    {"crontab": ["", "*", "*", "*", "*"]},
    {"schedule": "30"},
    {"schedule": float("nan")},
    {"schedule": 1e300},
    {"schedule": 30, "relative": 1},
    {"solar": ["sunset", 52.5]},
    {"solar": ["lunch", 52.5, 13.4]},
    {"solar": ["sunset", 91, 13.4]},
    {"solar": ["sunset", float("nan"), 13.4]},
    {"solar": 5},
    {"custom": 5},
    {"custom": "os.system", "data": "true"},
]


@together("obj", HOSTILE, ids=lambda obj: str(obj)[:40])
def test_what_is_no_stored_schedule_is_a_value_error_at_once(obj: object) -> None:
    begun = time.thread_time()
    with pytest.raises(InvalidEntry) as refused:
        decode_schedule(obj)
    assert isinstance(refused.value, ValueError)
    assert len(str(refused.value)) < 600
    assert time.thread_time() - begun < 2


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
json_like = st.recursive(leaves, lambda inner: st.lists(inner, max_size=5), max_leaves=6)
kinds = st.sampled_from(["every", "cron", "at", "rrule", "crontab", "schedule", "solar", "custom"])
extras = st.sampled_from(["align", "tz", "seconds", "start", "relative", "data", "other"])


@examples(35)
@given(kinds, json_like, st.dictionaries(extras, json_like, max_size=2))
def test_any_json_decodes_or_is_refused(kind: str, value: Any, extra: dict[str, Any]) -> None:
    try:
        read = decode_schedule({kind: value, **extra})
    except InvalidEntry:
        return
    assert decode_schedule(encode_schedule(read)) == read


cron_pieces = st.sampled_from([*"0157*-/,lw#?", "12", "31", "59", "60", "mon", "friday", "jan"])


@examples(60)
@given(
    st.lists(st.text("0123456789*/-,lw#abcdefrinosu ", max_size=8), min_size=5, max_size=6)
    | st.lists(st.lists(cron_pieces, min_size=1, max_size=6).map("".join) | st.just("*"), min_size=5, max_size=6)
)
@example(["0", "0-0-0", "*", "*", "*"])
@example(["0", "0", "l-1", "*", "*"])
def test_any_text_is_a_cron_or_is_refused(fields: list[str]) -> None:
    try:
        read = cron(" ".join(fields), tz="Europe/Berlin")
    except InvalidEntry:
        return
    found = read.next_after(T)
    assert found is not None
    assert found > T
    assert isinstance(rule_of(read, UTC), Rule)
