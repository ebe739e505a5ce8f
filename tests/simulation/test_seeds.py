"""Seeds of the simulation: nothing breaks, each gives one trace, and what is broken on purpose is found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from redbeat_lite.storage import scripts
from tests.simulation.apps import Setup
from tests.simulation.faults import KINDS
from tests.simulation.scenario import Scenario
from tests.simulation.world import Process, World

MINUTES = float(os.environ.get("SOAK_MINUTES", "2"))

#: Seeds in the ordinary run, in parts that may run side by side.
PARTS = [range(first, first + 10) for first in range(1, 101, 10)]


def broken(seeds: range) -> list[str]:
    """What these seeds break."""
    return [f"seed {seed}: {violation}" for seed in seeds for violation in Scenario(seed).run().violations]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", PARTS, ids=str)
def test_seeds_break_no_promise(seeds: range) -> None:
    assert broken(seeds) == []


def test_all_kinds_of_faults_are_drawn() -> None:
    drawn = {kind for seeds in PARTS for seed in seeds for kind in Setup.draw(World(seed).random, KINDS).faults}
    assert drawn == set(KINDS)


@pytest.mark.timeout(300)
def test_a_seed_gives_one_trace_whatever_ran_before_it() -> None:
    first, second = Scenario(2), Scenario(3)
    first.run()
    second.run()
    again = Scenario(2)
    again.run()
    assert again.trace() == first.trace() != second.trace()


@pytest.mark.timeout(300)
def test_a_seed_does_not_depend_on_the_order_of_hashes() -> None:
    def story(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.simulation", "--seed", "2"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=200)
        return ran.stdout

    assert story("1") == story("2")


@contextmanager
def changed_script(name: str, changes: Mapping[str, str]) -> Iterator[None]:
    """A script of the package with parts of it replaced."""
    text = scripts._FILES[name]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    with patch.dict(scripts._FILES, {name: text}):
        scripts._sha.cache_clear()
        yield
    scripts._sha.cache_clear()


def first_broken(seeds: range) -> str | None:
    """The first violation of these seeds."""
    return next((violation for seed in seeds for violation in broken(range(seed, seed + 1))), None)


def test_a_server_that_is_away_when_a_part_is_gone_is_asked_at_intervals() -> None:
    """The leader learns that a part of the schedule is gone, and the server goes away in the same moment."""
    scenario = Scenario(1)
    scenario.setup = replace(scenario.setup, beats=1, lease=30.0, faults=[], stormy=40.0)
    renewal = scripts._sha("leader/renew").encode()
    observe = scenario.network.observe

    def go_away(process: Process, command: list[bytes], reply: Any) -> None:
        observe(process, command, reply)
        is_renewal = command[:2] == [b"EVALSHA", renewal] and isinstance(reply, list)
        if is_renewal and scenario.network.is_up:
            reply[0] = 2
            scenario.world.after(0.003, stop)

    def stop() -> None:
        scenario.network.is_up = False
        scenario.network.cut_all()

    def start() -> None:
        scenario.network.observe = observe
        scenario.network.is_up = True

    scenario.network.observe = go_away
    scenario.world.after(30.0, start)
    story = scenario.run()
    assert not [violation for violation in story.violations if "log lines" in violation]
    assert any("working again" in line for line in story.lines)


#: What is changed in a script so that a promise breaks: the script, and each part with what stands there instead.
MUTATIONS = {
    "a commit is made whenever it comes": (
        "schedule/commit",
        {
            "if string.find(last, ARGV[4], 1, true) == 1 then": "if false then",
            "if found and string.find(found, guards[n], 1, true) == 1 then": "if found then",
        },
    ),
    "freezes are not looked at": (
        "schedule/peek",
        {"if string.match(freezes, '^[^|]*') ~= ARGV[7] then": "if false then"},
    ),
    "edits do not compare": (
        "schedule/put",
        {"return current == expected or": "return true or"},
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_a_change_that_breaks_a_promise_is_found(mutation: tuple[str, dict[str, str]]) -> None:
    with changed_script(*mutation):
        assert first_broken(range(1, 201)) is not None


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 120)
def test_seeds_for_minutes() -> None:
    ends = time.monotonic() + MINUTES * 60
    seed = 100_000
    while time.monotonic() < ends:
        assert broken(range(seed, seed + 1)) == []
        seed += 1
