"""Which entries are meant by a pattern, a tag or a task."""

from __future__ import annotations

from typing import Any

import pytest

from redbeat_lite import Entry, InvalidEntry
from redbeat_lite.entries.selection import Selection, is_pattern
from tests.support.cases import together

NIGHTLY = Entry("billing-nightly", "shop.tasks.bill", 60, tags=["billing", "tenant:42"])


@together(
    ("given", "is_meant"),
    [
        ((), True),
        (("billing-*",), True),
        (("nightly",), False),
        (("*", "billing"), True),
        (("*", "bill"), False),
        (("*", None, "shop.tasks.*"), True),
        (("*", None, "shop"), False),
        (("billing-*", "tenant:42", "shop.*"), True),
        (("billing-*", "tenant:7", "shop.*"), False),
    ],
)
def test_all_that_is_given_has_to_hold(given: tuple[Any, ...], is_meant: bool) -> None:
    assert Selection.of(*given).covers(NIGHTLY) is is_meant


@together("name", ["a", "a*", "[a]", "?", "a[*", "]["])
def test_one_entry_is_meant_by_its_name_whatever_is_in_it(name: str) -> None:
    one = Selection.one(name)
    assert [one.covers(Entry(other, "t", 60)) for other in (name, f"{name}x", "aa", "a")] == [
        *(True, False, False),
        name == "a",
    ]


def test_what_is_meant_is_told() -> None:
    assert [str(Selection.of(*given)) for given in ((), ("a*",), ("*", "x"), ("a", "x", "t.*"), ("*", None, "t"))] == [
        *("*", "a*", "tag x", "a, tag x, task t.*", "task t")
    ]
    assert [Selection().is_all, Selection.of("a").is_all, is_pattern("a*"), is_pattern("a")] == [
        True,
        False,
        True,
        False,
    ]


@together(
    ("given", "said"),
    [
        (("",), "name: expected a name or a pattern"),
        ((7,), "got 7"),
        (("*", "a,b"), "tag"),
        (("*", ["a", "b"]), "tag"),
        (("*", []), "tag"),
        (("*", None, 3), "task"),
    ],
)
def test_a_wrong_selection_says_what_is_wrong(given: tuple[Any, ...], said: str) -> None:
    with pytest.raises(InvalidEntry, match=said):
        Selection.of(*given)
