"""Type checkers find what is wrong in users' code, and nothing else; and an entry that was read is what was read."""

from __future__ import annotations

import copy
import pickle
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from redbeat_lite import Entry
from tests.support.cases import together

ROOT = Path(__file__).resolve().parents[2]
TYPED = ROOT / "tests" / "data" / "typed.py"
CHECKERS = {
    "mypy": ("--strict", "--no-error-summary"),
    "pyright": ("--pythonpath", sys.executable),
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_complains_of_what_is_wrong_and_of_nothing_else(checker: str) -> None:
    if find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed; pip install '.[test]'")
    if checker == "pyright" and shutil.which("node") is None:
        pytest.skip("pyright needs node, and would fetch one")
    command = [sys.executable, "-m", checker, *CHECKERS[checker], str(TYPED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    complained = {int(number) for number in re.findall(r"typed\.py:(\d+)(?::\d+ -|:) error", done.stdout)}
    wrong = {at for at, line in enumerate(TYPED.read_text().splitlines(), 1) if line.endswith("# wrong")}
    assert complained == wrong, done.stdout + done.stderr


@together(
    "name, value",
    [("enabled", False), ("name", "b"), ("kwargs", {}), ("next_run_at", None), ("enabld", False), ("calendar", None)],
)
def test_an_attribute_cannot_be_set_and_the_error_says_what_to_call(name: str, value: Any) -> None:
    entry = Entry("a", "proj.say", 30)
    for each in (entry, copy.copy(entry), pickle.loads(pickle.dumps(entry))):
        with pytest.raises(AttributeError, match=r"entry 'a' is read-only: .* schedules\.update\('a', \w+=\.\.\.\)"):
            setattr(each, name, value)
        assert each == entry


@together("method", ["save", "delete", "update"])
def test_what_other_schedulers_store_an_entry_by_says_what_to_call(method: str) -> None:
    with pytest.raises(AttributeError, match=r"schedules\.remove\('a'\)"):
        getattr(Entry("a", "proj.say", 30), method)()
