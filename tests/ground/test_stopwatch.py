"""Waits for a processor, which a bound in seconds does not count."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack

import pytest

from tests.support.processes import Process
from tests.support.stopwatch import Stopwatch, Waits

SECOND = 1_000_000_000


def test_a_wait_that_is_over_counts_once() -> None:
    waits = Waits()
    waits.note(1, (0, 0), is_ready=False, at=0.0)
    waits.note(1, (0, 0), is_ready=True, at=1.0)
    waits.note(1, (0, 0), is_ready=True, at=3.0)
    assert waits.seconds == 2
    waits.note(1, (1, 3 * SECOND), is_ready=True, at=4.0)
    assert waits.seconds == 3


def test_a_wait_that_ends_with_its_thread_counts() -> None:
    waits = Waits()
    waits.note(1, (0, SECOND), is_ready=True, at=0.0)
    waits.note(1, (0, SECOND), is_ready=True, at=1.0)
    waits.note(1, (0, SECOND), is_ready=True, at=6.0)
    waits.note(2, (0, 0), is_ready=False, at=9.0)
    assert waits.seconds == 1 + 5


def test_a_thread_that_sleeps_does_not_wait_for_a_processor() -> None:
    waits = Waits()
    for at in range(5):
        waits.note(1, (SECOND, 0), is_ready=False, at=at)
    assert waits.seconds == 0


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux alone has processes that give way to all others")
def test_the_wait_of_a_process_that_gets_no_processor_counts_before_it_is_over(owned: ExitStack) -> None:
    never_waits = "print('up', flush=True)\nwhile True: pass"
    processes = [owned.enter_context(Process([sys.executable, "-c", never_waits], {})) for _ in range(2)]
    for process in processes:
        process.says("up")
        os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
    # The other one is the first to end, so that this one gets the processor that its own end takes.
    starved, _ = processes
    os.sched_setscheduler(starved.pid, os.SCHED_IDLE, os.sched_param(0))
    with Stopwatch(starved) as watch:
        time.sleep(0.3)
    assert watch.withheld > watch.took / 2
