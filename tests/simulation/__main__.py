"""``python -m tests.simulation``: run seeds, and tell what happened."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter

from tests.simulation.scenario import Scenario
from tests.simulation.shrink import Shrinking, words
from tests.simulation.world import MICROS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Run seeds of the simulation.")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one seed and print its story")
    parser.add_argument("--shrink", action="store_true", help="print the shortest story of the first seed that fails")
    options = parser.parse_args()
    if options.seed is not None:
        return _run_one(options.seed, shrinks=options.shrink)
    return _run_many(options.first, options.seeds, shrinks=options.shrink)


def _run_one(seed: int, *, shrinks: bool) -> int:
    scenario = Scenario(seed)
    story = scenario.run()
    if shrinks and story.violations:
        _print_shortest(scenario)
        return 1
    print("\n".join(story.lines))
    print(f"seed {seed}: trace {scenario.trace()}, {len(story.violations)} violations")
    return 1 if story.violations else 0


def _run_many(first: int, seeds: int, *, shrinks: bool) -> int:
    began = time.monotonic()
    counts: Counter[str] = Counter()
    simulated = 0
    failed = []
    traces = hashlib.sha256()
    for seed in range(first, first + seeds):
        scenario = Scenario(seed)
        story = scenario.run()
        counts += story.counts
        traces.update(f"{seed} {scenario.trace()}\n".encode())
        simulated += scenario.world.now_us - scenario.world.start_us
        if not story.violations:
            continue
        failed.append(seed)
        print(f"seed {seed}: {len(story.violations)} violations", flush=True)
        for violation in story.violations[:5]:
            print(f"    {violation}", flush=True)
        if shrinks:
            _print_shortest(scenario)
            return 1
    days = simulated / MICROS / 86_400
    print(f"{seeds} seeds from {first}, {days:.2f} simulated days, {time.monotonic() - began:.1f} s")
    for name, count in sorted(counts.items()):
        print(f"    {count:8} {name}")
    print(f"trace of all: {traces.hexdigest()[:16]}")
    print(f"{len(failed)} seeds failed: {' '.join(map(str, failed))}")
    return 1 if failed else 0


def _print_shortest(scenario: Scenario) -> None:
    shrinking = Shrinking(scenario)
    shortest = shrinking.shrink()
    print(f"The shortest story of {shrinking.runs + 1} runs:")
    print("\n".join(words(shortest)))


if __name__ == "__main__":
    sys.exit(main())
