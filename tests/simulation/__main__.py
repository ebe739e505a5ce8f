"""``python -m tests.simulation``: run seeds, and tell what happened."""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.simulation.outcome import Outcome, run_seed
from tests.simulation.scenario import Scenario
from tests.simulation.shrink import Shrinking, words
from tests.simulation.world import MICROS

#: Seeds between two lines that say how far a run has come.
_PROGRESS = 100

#: Seeds that a process takes at a time.
_CHUNK = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Run seeds of the simulation.")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first seed; a run that was stopped goes on from here")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run seeds")
    parser.add_argument("--seed", type=int, help="run this one seed and print its story")
    parser.add_argument("--shrink", action="store_true", help="print the shortest story of the first seed that fails")
    options = parser.parse_args()
    if options.seed is not None:
        return _run_one(options.seed, shrinks=options.shrink)
    return _run_many(range(options.first, options.first + options.seeds), options.jobs, shrinks=options.shrink)


def _run_one(seed: int, *, shrinks: bool) -> int:
    scenario = Scenario(seed)
    story = scenario.run()
    if shrinks and story.violations:
        _print_shortest(seed)
        return 1
    print("\n".join(story.lines))
    print(f"seed {seed}: trace {scenario.trace()}, {len(story.violations)} violations")
    return 1 if story.violations else 0


def _outcomes(seeds: range, jobs: int) -> Iterator[Outcome]:
    """Run all seeds; return what became of them in their order."""
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run_seed, seeds, _CHUNK)


def _run_many(seeds: range, jobs: int, *, shrinks: bool) -> int:
    began = time.monotonic()
    counts: Counter[str] = Counter()
    simulated_us = 0
    failed = []
    traces = hashlib.sha256()
    for outcome in _outcomes(seeds, jobs):
        counts += outcome.counts
        traces.update(f"{outcome.seed} {outcome.trace}\n".encode())
        simulated_us += outcome.simulated_us
        if outcome.violations:
            failed.append(outcome.seed)
            _print_failure(outcome)
            if shrinks:
                _print_shortest(outcome.seed)
                return 1
        if outcome.seed % _PROGRESS == 0:
            seconds = time.monotonic() - began
            print(f"up to seed {outcome.seed}: {len(failed)} failed, {seconds:.0f} s", flush=True)
    days = simulated_us / MICROS / 86_400
    print(f"{len(seeds)} seeds from {seeds.start}, {days:.2f} simulated days, {time.monotonic() - began:.1f} s")
    for name, count in sorted(counts.items()):
        print(f"    {count:8} {name}")
    print(f"trace of all: {traces.hexdigest()[:16]}")
    print(f"{len(failed)} seeds failed: {' '.join(map(str, failed))}")
    return 1 if failed else 0


def _print_failure(outcome: Outcome) -> None:
    print(f"seed {outcome.seed}: {len(outcome.violations)} violations")
    for violation in outcome.violations[:5]:
        print(f"    {violation}", flush=True)


def _print_shortest(seed: int) -> None:
    scenario = Scenario(seed)
    scenario.run()
    shrinking = Shrinking(scenario)
    shortest = shrinking.shrink()
    print(f"The shortest story of {shrinking.runs + 1} runs:")
    print("\n".join(words(shortest)))


if __name__ == "__main__":
    sys.exit(main())
