"""What is public says so itself: by its module, in tracebacks, pickles and help()."""

from __future__ import annotations

import pickle

import pytest

import redbeat_lite
from redbeat_lite import Entry

CLASSES = [name for name in redbeat_lite.__all__ if isinstance(getattr(redbeat_lite, name), type)]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_known_by_its_public_name(name: str) -> None:
    public = getattr(redbeat_lite, name)
    assert (public.__module__, public.__qualname__) == ("redbeat_lite", name)
    assert pickle.loads(pickle.dumps(public)) is public


def test_a_pickled_entry_names_nothing_that_may_move() -> None:
    pickled = pickle.dumps(Entry("a", "t", 5))
    assert b"redbeat_lite.entries" not in pickled
    assert pickle.loads(pickled) == Entry("a", "t", 5)
