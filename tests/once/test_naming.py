"""Keys: the same for the same call, different for different ones, refused where that cannot be told."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from redbeat_lite import Once
from redbeat_lite._base.errors import InvalidEntry
from redbeat_lite.once.lock_key import MAX_KEY, canonical, key_of
from tests.support.cases import together
from tests.support.examples import examples


def f(x: Any, y: Any = 2, *args: Any, z: Any = 3, **rest: Any) -> None: ...


SIGNATURE = inspect.signature(f)

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.text(),
    st.datetimes(timezones=st.just(UTC)), st.uuids(), st.decimals(allow_nan=False, allow_infinity=False),
)  # fmt: skip
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


class Colour(str, Enum):  # noqa: UP042 - not StrEnum, whose str() is its value
    RED = "red"


class Level(int, Enum):
    LOW = 1


class Share(float, Enum):
    HALF = 0.5


def key(*args: Any, once: Once | None = None, **kwargs: Any) -> str:
    return key_of(once or Once(), "t", args, kwargs, SIGNATURE)


@examples(15)
@given(values, values)
def test_positions_names_and_defaults_make_no_difference(x: Any, y: Any) -> None:
    assert key(x, y) == key(x=x, y=y) == key(x, y=y, z=3)
    assert key(x) == key(x, 2)


@examples(15)
@given(values)
def test_a_trip_through_the_broker_makes_no_difference(x: Any) -> None:
    assert key(loads(dumps(x))) == key(x)


@examples(15)
@given(values, values)
def test_different_arguments_have_different_keys(x: Any, y: Any) -> None:
    assert (key(x) == key(y)) == (canonical(x) == canonical(y))


def test_every_process_writes_the_same_key() -> None:
    code = (
        "from redbeat_lite import Once; from redbeat_lite.once.lock_key import key_of\n"
        "print(key_of(Once(), 't', (), {'b': [1, 2, 'x', (3, 4)], 'a': {'k': b'1', 'j': None}}))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in (1, 2, 3)
    }  # fmt: skip
    assert len(printed) == 1


def test_lists_and_tuples_are_the_same_as_for_the_broker() -> None:
    assert key((1, 2)) == key([1, 2])


@pytest.mark.parametrize("x", [datetime(2024, 1, 1, tzinfo=UTC), date(2024, 1, 1), UUID(int=5), Decimal("1.0")])
def test_what_celerys_json_knows_has_a_form(x: Any) -> None:
    assert key(x) != key(str(x))


def test_an_argument_that_has_no_form_is_refused_by_name() -> None:
    with pytest.raises(InvalidEntry, match=r"once\.key: expected the arguments to be JSON"):
        key(object())


def test_a_task_without_arguments_has_its_name_for_a_key() -> None:
    assert key_of(Once(), "proj.task", (), {}) == "proj.task"


def test_a_template_counts_only_what_it_names() -> None:
    once = Once(key="{x}-{rest_name}")
    assert key(1, y=5, rest_name="a", once=once) == key(1, y=9, rest_name="a", once=once) == "t:1-a"
    assert key({"b": 1, "a": 2}, rest_name="", once=once) == 't:{"a":2,"b":1}-'
    assert key({"id": 7}, once=Once(key="{x[id]}")) == "t:7"


@together(
    "template", ["{x.__class__}", "{x[a].b}", "{x[a]b}", "{0}", "{}", "{x!r}", "{x:>9}", "{x:{y}}", "{x[]}", "{x[{y}]}"]
)
def test_a_template_is_of_names_and_items_alone(template: str) -> None:
    with pytest.raises(InvalidEntry, match=r"once\.key"):
        Once(key=template)


def test_a_constant_and_a_callable_are_shared_between_tasks() -> None:
    assert key(1, once=Once(key="reindex")) == "reindex"
    assert key(1, once=Once(key=lambda x, **_: f"user-{x}")) == "user-1"


@pytest.mark.parametrize("result", [None, 5, ""])
def test_a_callable_that_returns_no_text_is_refused(result: Any) -> None:
    with pytest.raises(InvalidEntry, match=r"once\.key"):
        key(1, once=Once(key=lambda *_, **__: result))


def test_an_argument_the_call_lacks_is_named() -> None:
    with pytest.raises(InvalidEntry, match="template"):
        key(1, once=Once(key="{missing}"))


@pytest.mark.parametrize("value", [10**5000, object()], ids=["digits", "object"])
@pytest.mark.parametrize("template", [None, "{x}"])
def test_an_argument_that_cannot_be_written_is_refused_as_such(template: str | None, value: Any) -> None:
    with pytest.raises(InvalidEntry, match=r"^once\.key: expected (the )?arguments") as refused:
        key(value, once=Once(key=template))
    assert str(refused.value).count("expected") == 1


@examples(15)
@given(st.text(min_size=MAX_KEY, max_size=3 * MAX_KEY), st.text(min_size=MAX_KEY, max_size=3 * MAX_KEY))
def test_long_keys_are_cut_without_meeting(a: str, b: str) -> None:
    keys = [key(text, once=Once(key="{x}")) for text in (a, b)]
    assert all(len(one) <= MAX_KEY for one in keys)
    assert (keys[0] == keys[1]) == (a == b)


def test_without_the_function_the_call_counts_as_written() -> None:
    assert key_of(Once(), "t", (1,), {}) != key_of(Once(), "t", (), {"x": 1})


def test_a_call_that_does_not_fit_the_function_still_has_a_key() -> None:
    assert key(1, x=2).startswith("t:")


def test_canonical_json_is_json() -> None:
    assert json.loads(canonical({"b": (1, 2.5, None, True), "a": "ä"})) == {"a": "ä", "b": [1, 2.5, None, True]}


@together("once", [Once(), Once(key="{x}"), Once(key="{x[a]}")], ids=["all", "template", "item"])
@together("member", [Colour.RED, Level.LOW, Share.HALF])
def test_a_member_of_an_enum_has_one_key_before_and_behind_the_broker(once: Once, member: Any) -> None:
    value = {"a": member, member: 1} if once.key == "{x[a]}" else member
    assert key(value, once=once) == key(loads(dumps(value)), once=once)
