"""Values come back from storage as they went in."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redbeat_lite._base.errors import CorruptEntry, InvalidEntry
from redbeat_lite._base.json_values import dumps, loads, pack, unpack
from tests.support.cases import together
from tests.support.examples import examples

text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    text,
    st.binary(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(),
    st.dates(),
    st.times(),
)
keys = st.one_of(text, st.sampled_from(["__type__", "__value__"]))
members = st.recursive(
    st.integers() | text, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=2), max_leaves=4
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(members, max_size=4),
    ),
    max_leaves=20,
)


@examples(35)
@given(values)
@example([{"__type__": "set", "__value__": [5]}])
def test_values_survive_storage_with_their_types(value: object) -> None:
    back = unpack(loads(dumps(pack(value, "args"))))
    assert back == value
    assert type(back) is type(value)


@together(
    "value",
    [{"__type__": "datetime", "__value__": "2026-01-01"}, {"__type__": 1}, {"__value__": 2, "__type__": "set"}],
)
def test_a_dict_that_looks_like_a_tag_stays_a_dict(value: dict[str, object]) -> None:
    assert unpack(loads(dumps(pack(value, "kwargs")))) == value


def test_large_integers_are_not_rounded() -> None:
    assert unpack(loads(dumps(pack([2**60, 2**70 + 1], "args")))) == [2**60, 2**70 + 1]


def test_kombu_types_are_stored_with_kombus_own_tags() -> None:
    stored = pack([Decimal("1.10"), date(2026, 1, 2), time(3, 4)], "args")
    assert [item["__type__"] for item in stored] == ["decimal", "date", "time"]


class Unknown:
    """Something that nobody can store."""

    def __repr__(self) -> str:
        return "Unknown()"


@together(
    ("value", "field"),
    [
        ([1, Unknown()], "args[1]"),
        ({"deep": [{"er": Unknown()}]}, "args.deep[0].er"),
        ({1: "one"}, "args"),
        (float("nan"), "args"),
        ([float("inf")], "args[0]"),
        (timedelta(1), "args"),
        ("\ud800", "args"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_its_exact_place(value: object, field: str) -> None:
    with pytest.raises(InvalidEntry) as caught:
        pack(value, "args")
    assert caught.value.field == field


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidEntry, match="nested"):
        pack(loop, "args")


@together(
    "raw",
    [b"", b"{", b"\xff", b"[" * 100_000, b'{"__type__":"nonsense","__value__":1}', b'{"__type__":"set","__value__":3}'],
)
def test_garbage_is_named_as_such(raw: bytes) -> None:
    with pytest.raises(CorruptEntry):
        unpack(loads(raw))


def test_aware_datetimes_keep_their_instant() -> None:
    moment = datetime(2026, 3, 29, 2, 30, tzinfo=UTC)
    assert unpack(loads(dumps(pack(moment, "args")))) == moment
