"""The page of the Python API is the public API: all of it, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module

from celery import Celery

from redbeat_lite import Entry
from tests.support.cases import together
from tests.support.pages import document

PAGE = document("api.md")
TEXT = PAGE.read_text()
TARGETS = re.findall(r"^\.\. (?:auto\w+|data):: ([\w.]+)", TEXT, re.MULTILINE)
MODULES = ("redbeat_lite", "redbeat_lite.operate", "redbeat_lite.testing", "redbeat_lite.web")

#: In ``__all__`` for other parts of the package.
_BESIDE = {"redbeat_lite.__version__", "redbeat_lite.web.RIGHTS"}

#: Of an entry that was read, for the package itself.
_INTERNAL = {"rule", "zone", "rows", "calendar_name", "start_ms", "end_ms", "jitter_ms"}


@together("module", MODULES)
def test_every_public_name_is_on_the_page(module: str) -> None:
    names = {f"{module}.{name}" for name in import_module(module).__all__} - _BESIDE
    assert names - {*TARGETS} == set()


@together("target", TARGETS)
def test_what_is_on_the_page_goes_by_that_name(target: str) -> None:
    module, _, name = target.rpartition(".")
    found = getattr(import_module(module), name)
    if name != "Duration" and not module.startswith(("redbeat_lite.web", "redbeat_lite.pipeline")):
        assert (found.__module__, found.__qualname__) == (module, name)
        assert "_" not in module.removeprefix("redbeat_lite")


def test_every_attribute_of_an_entry_that_was_read_is_on_the_page() -> None:
    shown = re.search(r"autoclass:: redbeat_lite\.Entry\n   :members: ([^:]*?)\n\n", TEXT)
    assert shown is not None
    named = {name for name, value in vars(Entry).items() if isinstance(value, property)}
    assert named - _INTERNAL - {*re.split(r",\s+", shown[1].strip())} == set()


def test_the_table_of_calls_names_all_and_no_others() -> None:
    table = "".join(re.findall(r"^\|.*$", TEXT.partition("## Schedules")[2].partition("\n## ")[0], re.M))
    told = {*re.findall(r"`(\w+)[(`]", table)} - {"Selected"}
    shown = re.search(r"autoclass:: redbeat_lite\.Schedules\n   :members: ([^:]*?)\n   :", TEXT)
    assert shown is not None
    assert {"add", "due_counts", "record_of"} <= told
    assert told - {"len", "iter", *re.split(r",\s+", shown[1].strip())} == set()


def test_every_member_that_is_named_has_a_docstring() -> None:
    listed = re.findall(
        r"^\.\. autoclass:: ([\w.]+)(?:\(\))?\n   :members: ([^:`]*?)\n(?:   :|\n|\.\.|```)", TEXT, re.M
    )
    bare = []
    for target, members in listed:
        module, _, name = target.rpartition(".")
        cls = getattr(import_module(module), name)
        bare += [f"{target}.{each}" for each in re.split(r",\s+", members.strip()) if not _documented(cls, each)]
    assert len(listed) > 10
    assert bare == []


def _documented(cls: type, member: str) -> bool:
    found = getattr(cls, member, None)
    return found is None if member == "last_change" else bool(getattr(found, "__doc__", None))


def test_its_examples_work(make_app: Callable[..., Celery]) -> None:
    app = make_app(result_expires=None)
    known: dict[str, object] = {"app": app}
    examples = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(examples) == TEXT.count("```python")
    for number, example in enumerate(examples, 1):
        exec(compile(example, f"example {number} of {PAGE.name}", "exec"), known)
