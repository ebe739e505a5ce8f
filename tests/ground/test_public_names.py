"""What is public says so itself: by its module, in tracebacks, pickles and help()."""

from __future__ import annotations

import pickle
import pkgutil
from importlib import import_module
from typing import get_type_hints

import redbeat_lite
from redbeat_lite import Entry
from tests.support.cases import together

CLASSES = [name for name in redbeat_lite.__all__ if isinstance(getattr(redbeat_lite, name), type)]


@together("name", CLASSES)
def test_a_class_is_known_by_its_public_name(name: str) -> None:
    public = getattr(redbeat_lite, name)
    assert (public.__module__, public.__qualname__) == ("redbeat_lite", name)
    assert pickle.loads(pickle.dumps(public)) is public


@together("name", CLASSES)
def test_its_type_hints_are_found_all_the_same(name: str) -> None:
    """By whoever makes objects of them, and for a class of the user's that is derived from one."""
    derived = type("Derived", (getattr(redbeat_lite, name),), {"__module__": __name__})
    get_type_hints(derived)


def test_an_entry_is_pickled_by_its_public_name() -> None:
    pickled = pickle.dumps(Entry("a", "t", 5))
    assert b"redbeat_lite.entries" not in pickled
    assert pickle.loads(pickled) == Entry("a", "t", 5)


@together("room", ["", ".pipeline", ".operate", ".web"])
def test_no_module_hides_what_its_package_hands_on(room: str) -> None:
    """An import of a module sets its name in the package, where a name that is handed on lazily is looked for last."""
    package = import_module(f"redbeat_lite{room}")
    assert {each.name for each in pkgutil.iter_modules(package.__path__)} & {*package.__all__} == set()
