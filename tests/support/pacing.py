"""How many tests run at once, in which order and side by side with what, and which took longest."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Generator
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

#: Those that mostly wait come first, so that at the end nobody waits for one of them; the others fill up.
_ORDER = ("faults", "acceptance", "once", "pipeline", "operate", "cli", "interchange", "topologies", "beat", "api")

#: Where tests share nothing that takes time to make; elsewhere those of one file share processes.
_APART = ("tests/faults/", "tests/acceptance/test_", "tests/rules/", "tests/beat/test_prepared")

#: But what these have in common takes longer to make than all of their tests.
_TOGETHER = ("tests/acceptance/test_readme.py", "tests/acceptance/test_wheel.py")

_SLOWEST = 3

#: Most tests wait most of the time, so each core has enough for five at once; more gain little and keep others waiting.
_PER_CORE, _AT_MOST = 5, 25


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: by the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_PER_CORE * cores, _AT_MOST)


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        if file in _TOGETHER:
            return "the installation"
        return nodeid if file.startswith(_APART) else file


@pytest.hookimpl(optionalhook=True)  # unknown where xdist is switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scheduling | None:
    return _Scheduling(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected is there until the end: to look for garbage in it takes a third as long as to collect it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        file = item.nodeid.split("::", 1)[0]
        folder = file.split("/")[1]
        return -1 if file in _TOGETHER else (*_ORDER, folder).index(folder)

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    # Not pytest's own figures: some tests stop the clock that these are read from.
    item.user_properties.append(("began", time.clock_gettime(time.CLOCK_MONOTONIC)))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        began = dict(item.user_properties)["began"]
        assert isinstance(began, float)
        report.user_properties.append(("seconds", time.clock_gettime(time.CLOCK_MONOTONIC) - began))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Two lines: which tests took longest, and how to run one of them."""
    seconds: dict[str, float] = {}
    for report in (each for group in terminalreporter.stats.values() for each in group):
        if getattr(report, "when", "") == "teardown":
            seconds[report.nodeid] = dict(report.user_properties).get("seconds", 0.0)
    slowest = sorted(seconds, key=lambda nodeid: -seconds[nodeid])[:_SLOWEST]
    if slowest:
        terminalreporter.write_line("slowest: " + ", ".join(f"{seconds[each]:.1f} s {each}" for each in slowest))
        terminalreporter.write_line(f"one of them alone: make test ARGS='{slowest[0]}'")
