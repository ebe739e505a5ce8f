"""The policy: what it accepts, what it refuses and how it survives being stored."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from redbeat_lite import Once, OnceRejected, OnceSkipped
from redbeat_lite._base.errors import InvalidEntry, RedbeatError
from tests.support.cases import together
from tests.support.examples import examples
from tests.support.pages import document

policies = st.builds(
    Once,
    key=st.one_of(st.none(), st.sampled_from(["reindex", "{feed}", "feed:{a}:{b[id]}"])),
    scope=st.sampled_from(["run", "queue"]),
    on_conflict=st.sampled_from(["skip", "wait", "raise"]),
    lease=st.floats(1, 1e6),
    hold_on_retry=st.booleans(),
    max_hold=st.one_of(st.none(), st.floats(1, 1e6)),
    max_waiters=st.one_of(st.none(), st.integers(1, 10**6)),
)


@examples(20)
@given(policies)
def test_a_policy_survives_being_stored_as_json(once: Once) -> None:
    assert Once.decode(json.loads(json.dumps(once.encode()))) == once


def test_defaults_take_no_room() -> None:
    assert Once().encode() == {}


def test_true_means_one_message_queued_or_running_and_others_skipped() -> None:
    assert Once.of(True) == Once(scope="queue", on_conflict="skip", lease=60)


@pytest.mark.parametrize("value", [None, False])
def test_false_and_none_mean_no_lock(value: Any) -> None:
    assert Once.of(value) is None


def test_a_mapping_has_the_fields_by_name() -> None:
    assert Once.of({"on_conflict": "wait"}) == Once(on_conflict="wait")
    assert Once.of({"lease": 2}) == Once(lease=2)


def test_a_policy_is_taken_as_it_is() -> None:
    once = Once(lease=3)
    assert Once.of(once) is once


@together(
    ("field", "value"),
    [
        ("lease", 0.9),
        ("lease", True),
        ("lease", float("nan")),
        ("lease", float("inf")),
        ("lease", "60x"),
        ("lease", 1e300),
        ("lease", 366 * 86_400),
        ("scope", "worker"),
        ("on_conflict", "drop"),
        ("max_hold", 0),
        ("max_waiters", 0),
        ("max_hold", float("inf")),
        ("max_hold", 1e300),
        ("max_waiters", 1.5),
        ("max_waiters", 10**6 + 1),
        ("hold_on_retry", 1),
        ("key", ""),
        ("key", 5),
        ("key", "{"),
        ("key", "{}"),
        ("key", "{0}"),
        ("key", "{a.__class__}"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidEntry) as caught:
        Once(**{field: value})
    assert caught.value.field == f"once.{field}"


@together("value", ["yes", 1, 0, [], ()])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(InvalidEntry, match="once: expected"):
        Once.of(value)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(InvalidEntry, match=r"once\.timeout"):
        Once.of({"timeout": 5})


def test_a_field_of_a_later_version_is_passed_over_when_read_back() -> None:
    assert Once.decode({"lease": 5, "colour": "red"}) == Once(lease=5)


def test_a_copy_with_other_fields_is_checked() -> None:
    once = Once(key="{x}", lease=3)
    assert once.but(lease="5m") == Once(key="{x}", lease=300)
    assert once == Once(key="{x}", lease=3)
    with pytest.raises(InvalidEntry, match=r"once\.lease"):
        once.but(lease=0)
    with pytest.raises(AttributeError):
        once.lease = 5  # type: ignore[misc]


def test_a_callable_key_cannot_be_stored() -> None:
    with pytest.raises(InvalidEntry, match=r"once\.key.*callable"):
        Once(key=lambda x: x).encode()


def test_the_page_tells_the_defaults() -> None:
    defaults = ", ".join(f"{field.name}={field.default!r}".replace("'", '"') for field in fields(Once))
    page = document("once.md")
    assert f"`Once({defaults.replace('60.0', '60')})`" in page.read_text()


def test_the_fields_of_a_template() -> None:
    assert Once(key="a:{x}:{y[id]}:{x}").fields_of_key == ("x", "y")


@pytest.mark.parametrize("kind", [OnceSkipped, OnceRejected])
def test_the_errors_survive_pickling_and_celerys_way_through_args(kind: type[RedbeatError]) -> None:
    error = kind("taken", "feed:1", "abc")  # type: ignore[call-arg]
    for copy in (pickle.loads(pickle.dumps(error)), kind(*error.args)):
        assert (str(copy), copy.key, copy.holder) == ("taken", "feed:1", "abc")
    assert str(kind()).startswith("The task was")
