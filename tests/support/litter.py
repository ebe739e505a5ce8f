"""What a run leaves in the checkout: nothing, or the run has failed.

Looked at once, by the process that waits for all others, so that no file counts which some test is about to remove.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.nursery import ROOT

#: Where tools keep what is theirs.
_OF_TOOLS = ("__pycache__", "build", "dist", "htmlcov", ".egg-info")

#: What people write meanwhile.
_SOURCES = (".py", ".pyi", ".lua", ".md", ".cfg", ".toml", ".yml", ".yaml", ".json", ".txt", ".patch")

_before, _left = pytest.StashKey[set[str]](), pytest.StashKey[list[str]]()


def files() -> set[str]:
    """Every file of the checkout that no tool made for itself; what begins with a dot is a tool's."""
    found = set()
    for directory, names, here in os.walk(ROOT):
        names[:] = [name for name in names if not name.startswith(".") and not name.endswith(_OF_TOOLS)]
        found |= {os.path.relpath(os.path.join(directory, name), ROOT) for name in here if not name.startswith(".")}
    return found


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # which those have that xdist starts
        session.config.stash[_before] = files()


def pytest_sessionfinish(session: pytest.Session) -> None:
    stash = session.config.stash
    if _before in stash:
        stash[_left] = sorted(each for each in files() - stash[_before] if not each.endswith(_SOURCES))
        if stash[_left] and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if left := config.stash.get(_left, []):
        terminalreporter.write_line(f"left in the checkout: {', '.join(left)}", red=True)
