"""``python -m tests.simulation``: run seeds, and tell what happened."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.scenario import Scenario
from tests.simulation.world import EPOCH_US, MICROS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Run seeds of the simulation.")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one seed and print its story")
    options = parser.parse_args()
    if options.seed is not None:
        return _run_one(options.seed)
    return _run_many(options.first, options.seeds)


def _run_one(seed: int) -> int:
    scenario = Scenario(seed)
    story = scenario.run()
    print("\n".join(story.lines))
    print(f"seed {seed}: trace {scenario.trace()}, {len(story.violations)} violations")
    return 1 if story.violations else 0


def _run_many(first: int, seeds: int) -> int:
    began = time.monotonic()
    counts: Counter[str] = Counter()
    simulated = 0
    failed = []
    for seed in range(first, first + seeds):
        scenario = Scenario(seed)
        story = scenario.run()
        counts += story.counts
        simulated += scenario.world.now_us - EPOCH_US
        if story.violations:
            failed.append(seed)
            print(f"seed {seed}: {len(story.violations)} violations")
            for violation in story.violations[:5]:
                print(f"    {violation}")
    days = simulated / MICROS / 86_400
    print(f"{seeds} seeds from {first}, {days:.2f} simulated days, {time.monotonic() - began:.1f} s")
    for name, count in sorted(counts.items()):
        print(f"    {count:8} {name}")
    print(f"{len(failed)} seeds failed: {' '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
