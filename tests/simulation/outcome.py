"""What is left of a seed that was run.

It has a module of its own, because processes that run seeds cannot import what ``python -m`` runs.
"""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass

from tests.simulation.scenario import Scenario


@dataclass(frozen=True)
class Outcome:
    """What is left of a seed that was run.

    Parameters:
        simulated_us: microseconds that it lasted.
    """

    seed: int
    trace: str
    simulated_us: int
    counts: Counter[str]
    violations: list[str]


def run_seed(seed: int) -> Outcome:
    """Run one seed to its end. An error of the simulation itself is a violation, so that other seeds still run."""
    scenario = Scenario(seed)
    story = scenario.story
    try:
        scenario.run()
    except Exception:
        story.violate("simulation", traceback.format_exc())
    simulated_us = scenario.world.now_us - scenario.world.start_us
    return Outcome(seed, scenario.trace(), simulated_us, story.counts, list(map(str, story.violations)))
