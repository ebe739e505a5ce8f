"""The nursery, from which the tests have their processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import nursing
from tests.support.nursery import Nursery, nursery
from tests.support.processes import Process
from tests.support.waiting import eventually


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


def test_all_ends_are_told_while_the_kernel_still_reaps_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"]) for code in (3, 4)]
    children = {process.pid for process in processes}
    is_reaped = threading.Event()

    def reap_slowly(pid: int, options: int) -> tuple[int, int]:
        assert is_reaped.wait(60)
        return 0, 0

    ours, theirs = socket.socketpair()

    def are_told() -> bool:
        nursing._tell_ends(theirs, children)
        return not children

    with ours, theirs, monkeypatch.context() as patch:
        patch.setattr(os, "waitpid", reap_slowly)
        eventually(are_told, what="both ends")
        assert not is_reaped.is_set()
        told = ours.recv(4096).splitlines()
        is_reaped.set()
    pids = [process.pid for process in processes]
    assert sorted(told) == sorted(b"ended %d %d" % end for end in zip(pids, (3, 4), strict=True))
    for process in processes:
        process.wait()
