"""Mutations can still be applied to the package as it is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutations import MUTATIONS
from tests.mutations.__main__ import PROMISES, ROOT, failed_tests
from tests.mutations.mutation import DoesNotApplyError, Mutation


def test_every_mutation_applies_and_leaves_python_that_can_be_read() -> None:
    for mutation in MUTATIONS:
        text = mutation.mutated(ROOT)
        if mutation.file.endswith(".py"):
            ast.parse(text, mutation.file)


def test_every_mutation_has_a_name_of_its_own_and_tests_that_exist() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)
    for mutation in MUTATIONS:
        assert mutation.room, mutation.name
        assert has_promise(mutation), f"{mutation.name}: {mutation.promise}"
        for path in (*mutation.acceptance, *mutation.room):
            assert (ROOT / path).is_file(), f"{mutation.name}: {path}"


def has_promise(mutation: Mutation) -> bool:
    """Whether the test that should notice a mutation exists."""
    file, _, test = mutation.promise.partition("::")
    function = test.rpartition("::")[2]
    return f"def {function}(" in (ROOT / PROMISES / file).read_text()


@pytest.mark.parametrize(("old", "count"), [("no such text", 0), ("a", 2)], ids=["is not there", "is there twice"])
def test_a_mutation_whose_old_text(old: str, count: int, tmp_path: Path) -> None:
    (tmp_path / "redbeat_lite").mkdir()
    (tmp_path / "redbeat_lite" / "file.py").write_text("a = 1\na = 2\n")
    mutation = Mutation(name="fault", file="file.py", old=old, new="b", promise="test_file.py::test_fault")
    with pytest.raises(DoesNotApplyError, match=f"fault: file.py holds the old text {count} times"):
        mutation.mutated(tmp_path)


def test_the_names_of_failed_tests_are_read_from_the_summary() -> None:
    summary = "FAILED tests/a.py::test_b[two words] - assert 1 == 2\nERROR tests/a.py::test_c\n1 passed\n"
    assert failed_tests(summary) == ["tests/a.py::test_b[two words]", "tests/a.py::test_c"]
