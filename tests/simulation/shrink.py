"""Makes a failing seed as small as it gets: fewer faults and calls, fewer entries and beats, less time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from tests.simulation.apps import Setup
from tests.simulation.scenario import Scenario

#: Most runs of one seed.
MOST_RUNS = 400

#: Shares of the storm that are tried.
_SHARES = (0.25, 0.5, 0.75, 0.9)

#: Seconds of a storm that is short enough.
_SHORT = 2.0


class Shrinking:
    """Looks for the smallest setup with which a seed breaks the same promise.

    Parameters:
        scenario: has been run and has broken a promise.
        most_runs: how often the seed may be run in all.
    """

    def __init__(self, scenario: Scenario, most_runs: int = MOST_RUNS) -> None:
        self.smallest = scenario
        self.law = scenario.story.violations[0].law
        self.runs = 0
        self._most_runs = most_runs

    def shrink(self) -> Scenario:
        """Return the smallest failing scenario that was found."""
        size = 0
        while size != size_of(self.smallest) and self.runs < self._most_runs:
            size = size_of(self.smallest)
            self._simplify()
            self._leave_out()
        return self.smallest

    def _fails(self, setup: Setup) -> bool:
        """Run the seed with this setup; keep the scenario if it breaks the same promise."""
        if self.runs >= self._most_runs:
            return False
        self.runs += 1
        scenario = Scenario(self.smallest.seed, setup)
        story = scenario.run()
        if not any(violation.law == self.law for violation in story.violations):
            return False
        self.smallest = scenario
        return True

    def _simplify(self) -> None:
        """Take parts of the setup away, one after the other, as long as one can be missed."""
        while any(self._fails(setup) for setup in simpler(self.smallest.setup)):
            pass

    def _leave_out(self) -> None:
        """Leave out single faults and calls: halves of them first, then smaller and smaller parts."""
        size = ceil(len(self._happened) / 2)
        while size:
            if not any(self._fails_without(part) for part in _parts(self._happened, size)):
                size = 0 if size == 1 else ceil(size / 2)
            size = min(size, len(self._happened))

    @property
    def _happened(self) -> list[str]:
        return self.smallest.story.happened

    def _fails_without(self, names: Sequence[str]) -> bool:
        setup = self.smallest.setup
        return self._fails(replace(setup, left_out=setup.left_out.union(names)))


def size_of(scenario: Scenario) -> int:
    """How much there is to read in the story of a scenario."""
    setup = scenario.setup
    entries = len(setup.config) + len(setup.pipelines)
    parts = setup.beats + setup.holders + entries + len(setup.deploys) + len(setup.faults) + setup.edits_in_calm
    return round(setup.stormy) + 10 * parts + len(scenario.story.happened)


def simpler(setup: Setup) -> Iterator[Setup]:
    """Setups that lack one part of this one."""
    for kind in setup.faults:
        yield replace(setup, faults=tuple(other for other in setup.faults if other != kind))
    if setup.holders:
        yield replace(setup, holders=0)
    for beats in range(1, setup.beats):
        yield replace(setup, beats=beats)
    if setup.edits_in_calm:
        yield replace(setup, edits_in_calm=False)
    for left_out in setup.deploys:
        yield replace(setup, deploys=tuple(deploy for deploy in setup.deploys if deploy is not left_out))
    for name in setup.config:
        yield replace(setup, config={other: rule for other, rule in setup.config.items() if other != name})
    for name in setup.pipelines:
        yield replace(setup, pipelines={other: entry for other, entry in setup.pipelines.items() if other != name})
    for share in _SHARES:
        if setup.stormy * share >= _SHORT:
            yield replace(setup, stormy=setup.stormy * share)


def _parts(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (names[start : start + size] for start in range(0, len(names), size))


def words(scenario: Scenario) -> list[str]:
    """What happened in a scenario, in words: without the runs of entries that its violations do not name."""
    setup, story = scenario.setup, scenario.story
    faults = ", ".join(setup.faults) or "none"
    config = ", ".join(f"{name} {rule.text}" for name, rule in setup.config.items()) or "no entries"
    head = [
        f"Seed {scenario.seed} breaks: {', '.join(dict.fromkeys(violation.law for violation in story.violations))}.",
        f"{setup.beats} beats, lease {setup.lease:g} s, stall timeout {setup.stall_timeout:g} s,"
        f" batches of {setup.batch_size}, history of {setup.history}, zone {setup.zone}.",
        f"The configuration has {config}.",
        f"Faults of these kinds: {faults}. {len(story.happened)} faults and calls are left:",
    ]
    about = " ".join(violation.what for violation in story.violations)
    return head + [line for line in story.lines[1:] if _is_told(line, about)]


def _is_told(line: str, about: str) -> bool:
    _, is_run, rest = line.partition(" sends ")
    return not is_run or rest.partition(" of ")[0] in about
