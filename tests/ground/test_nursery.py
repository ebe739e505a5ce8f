"""The nursery, from which the tests have their processes."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.nursery import Nursery, nursery
from tests.support.processes import Process


class BrokenOff(Exception):
    """As pytest's timeout raises one wherever a test is."""


def test_after_a_start_that_was_broken_off_the_next_one_gives_the_process_that_it_started(
    owned: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(self: Nursery, timeout: float | None) -> None:
        raise BrokenOff

    with monkeypatch.context() as patch, (tmp_path / "out").open("wb") as out:
        patch.setattr(Nursery, "_hear", break_off)
        with pytest.raises(BrokenOff):
            nursery().start([sys.executable, "-c", "pass"], stdout=out)
    process = owned.enter_context(Process([sys.executable, "-c", "import os; print(os.getpid())"], {}))
    process.says(rf"^{process.pid}$")
    assert process.wait() == 0
