"""The history of tests with workers, and its audit: a plugin of pytest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.history import PATH_VARIABLE, HistoryLog


@pytest.fixture(scope="session")
def history_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of the history. Workers outlive tests, so all tests of a run have the same file."""
    path = tmp_path_factory.mktemp("history") / "log"
    patch = pytest.MonkeyPatch()
    patch.setenv(PATH_VARIABLE, str(path))
    yield path
    patch.undo()


@pytest.fixture
def history(history_path: Path) -> Iterator[HistoryLog]:
    """The history of one test, which is audited at its end."""
    log = HistoryLog(history_path)
    log.clear()
    yield log
    log.audit()
