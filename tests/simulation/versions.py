"""What a seed draws of deploys: the configurations that follow the first one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.rules import Rule, interval

if TYPE_CHECKING:
    from tests.simulation.apps import Setup

#: The share of seeds of minutes that have deploys.
_SHARE = 0.2

#: How likely an entry is changed by a deploy, and how likely it goes.
_CHANGED = 0.35
_GONE = 0.25

#: How likely a deploy brings a new entry, and how likely one that had gone.
_NEW = 0.6
_BACK = 0.3

#: Seconds within which a deploy replaces all beats: a draw of one of these.
_ROLL_OUTS = (0.5, 5.0, 15.0)


@dataclass(frozen=True)
class Version:
    """One configuration.

    Parameters:
        config: the rule of each entry.
        tasks: the task of each entry.
    """

    config: Mapping[str, Rule]
    tasks: Mapping[str, str]

    def draw_next(self, random: Random, setup: Setup, numbers: Iterator[int], gone: Sequence[str]) -> Version:
        """Draw the configuration after this one.

        Parameters:
            numbers: of new entries.
            gone: names that earlier configurations have had.
        """
        config, tasks = {}, {}

        def put(name: str) -> None:
            config[name] = interval(random.choice(setup.periods))
            tasks[name] = setup.work.draw_task(random)

        for name, rule in self.config.items():
            draw = random.random()
            if draw < _CHANGED:
                put(name)
            elif draw >= _CHANGED + _GONE:
                config[name], tasks[name] = rule, self.tasks[name]
        for name in gone:
            if random.random() < _BACK:
                put(name)
        if random.random() < _NEW:
            put(f"config-{next(numbers)}")
        return Version(config, tasks)


@dataclass(frozen=True)
class Deploy:
    """One deploy.

    Parameters:
        at: when it begins, as a share of the storm.
        seconds: within which all beats are replaced.
    """

    at: float
    seconds: float
    version: Version = field(repr=False)


def draw_deploys(random: Random, setup: Setup) -> tuple[Deploy, ...]:
    """Draw the deploys of a seed; most seeds have none."""
    if random.random() >= _SHARE or setup.is_long:
        return ()
    return draw_some(random, setup)


def draw_some(random: Random, setup: Setup) -> tuple[Deploy, ...]:
    """Draw deploys, whatever the seed has."""
    return tuple(_draw(random, setup, random.choice((1, 1, 2, 3))))


def _draw(random: Random, setup: Setup, count: int) -> Iterator[Deploy]:
    version = Version(setup.config, setup.tasks)
    numbers = iter(range(len(setup.config), 100))
    names = list(setup.config)
    for at in sorted(random.uniform(0.1, 1.0) for _ in range(count)):
        version = version.draw_next(random, setup, numbers, [name for name in names if name not in version.config])
        names += [name for name in version.config if name not in names]
        yield Deploy(at, random.choice(_ROLL_OUTS), version)
