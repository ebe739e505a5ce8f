"""A process that forks while one of its threads holds a lock: the child gets through."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

from redbeat_lite.storage.lazy import lazy, of_process
from tests.once import forking
from tests.support.nursery import ROOT


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[..., None]]:
    """Runs a case of :mod:`tests.once.forking` in a process of its own."""
    command = [sys.executable, "-m", "tests.once.forking"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as player:
        assert player.stdin is not None
        assert player.stdout is not None

        def play(*words: str) -> None:
            print(*words, file=player.stdin, flush=True)
            status, said = json.loads(player.stdout.readline())
            assert status == 0, said

        yield play


@pytest.mark.parametrize(("who", "holding"), [*((who, "Importing") for who in forking.WHO), ("beat", "Kombu")])
def test_a_thread_of_ours_that_works_holds_no_lock_at_a_fork(run: Any, who: str, holding: str) -> None:
    run(who, holding)


@pytest.mark.parametrize("case", ["client", "schedules"])
def test_whoever_makes_a_client_holds_no_lock(run: Any, case: str) -> None:
    run(case)


def test_a_thread_of_ours_that_waits_holds_no_lock(run: Any) -> None:
    run("waking")


def test_a_child_has_clients_of_its_own(run: Any) -> None:
    run("inherited")


def test_work_that_hangs_delays_a_fork_for_two_seconds_and_no_other_work(run: Any) -> None:
    run("bounded")


def test_work_goes_on_side_by_side_and_begins_after_the_fork(run: Any) -> None:
    run("at_once")


def test_work_that_forks_waits_for_nobody(run: Any) -> None:
    run("itself")


def test_work_that_sleeps_lets_a_fork_through(run: Any) -> None:
    run("asleep")


def test_a_fork_that_a_signal_interrupts_holds_nobody_up(run: Any) -> None:
    run("interrupted")


def test_greenlets_are_not_waited_for() -> None:
    # Without its own fork and waitpid: it may lose the end of a child that is over before it looks.
    code = "from gevent import monkey; monkey.patch_all(os=False); from tests.once.forking import main; main('green')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr


def test_a_lazy_value_is_made_once_and_kept_by_its_object() -> None:
    class Thing:
        made = 0

        @lazy
        def value(self) -> list[int]:
            """What it holds."""
            self.made += 1
            return [self.made]

    one, other = Thing(), Thing()
    assert one.value is one.value
    assert (one.made, other.made) == (1, 0)
    assert other.value == [1]
    assert Thing.value.__doc__ == "What it holds."
    del one.__dict__["value"]
    assert one.value == [2]


def test_a_lazy_value_that_somebody_else_has_made_meanwhile_wins() -> None:
    class Thing:
        @lazy
        def value(self) -> str:
            self.__dict__["value"] = "theirs"
            return "ours"

    assert Thing().value == "theirs"


def test_threads_that_meet_share_what_is_made_of_an_app() -> None:
    meeting, app = Barrier(2, timeout=5), SimpleNamespace()

    def made(app: Any) -> object:
        meeting.wait()
        return object()

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda each: of_process(each, made), [app, app])
    assert one is other is of_process(app, made)
