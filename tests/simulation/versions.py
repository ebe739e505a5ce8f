"""Draw of deploys: the configurations of a seed that follow the first one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.rules import Rule, interval

if TYPE_CHECKING:
    from tests.simulation.apps import Setup

#: Share of short seeds that have deploys.
_SHARE = 0.15

#: The same for short seeds with a keeper (``keepers.py``).
_SHARE_OF_KEPT = 0.5

#: Probabilities that a deploy changes an entry, and that it removes it.
_SHARES = (0.35, 0.25)

#: The same for entries of the keeper.
_KEPT_SHARES = (0.2, 0.4)

#: Probability that a deploy adds a new entry.
_NEW = 0.6

#: Probability that a deploy adds an entry again that was removed.
_BACK = 0.3

#: Probability that a deploy makes an entry invalid.
_INVALID = 0.08

#: Seconds within which a deploy replaces all beats. Each deploy draws one of these.
_ROLL_OUTS = (0.5, 5.0, 15.0)


@dataclass(frozen=True)
class Version:
    """One configuration.

    Parameters:
        config: the rule of each entry.
        tasks: the task of each entry.
        invalid: names of entries that a beat has to refuse.
    """

    config: Mapping[str, Rule]
    tasks: Mapping[str, str]
    invalid: tuple[str, ...] = ()

    @classmethod
    def first(cls, setup: Setup) -> Version:
        """Return the first configuration of a seed."""
        return cls({**setup.config, **setup.kept}, {**dict.fromkeys(setup.kept, "project.run"), **setup.tasks})

    def draw_next(self, random: Random, setup: Setup, numbers: Iterator[int], gone: Sequence[str]) -> Version:
        """Draw the configuration after this one.

        Parameters:
            numbers: numbers for the names of new entries.
            gone: names of earlier configurations that this one has not.
        """
        config, tasks, invalid = {}, {}, []

        def put(name: str) -> None:
            config[name] = interval(random.choice(setup.periods))
            tasks[name] = setup.work.draw_task(random)

        for name, rule in self.config.items():
            draw = random.random()
            change_share, removal_share = _KEPT_SHARES if name in setup.kept else _SHARES
            if random.random() < _INVALID:
                invalid.append(name)
            elif draw < change_share:
                put(name)
            elif draw >= change_share + removal_share:
                config[name] = rule
                tasks[name] = self.tasks[name]
            # Otherwise the deploy removes the entry.
        for name in gone:
            if random.random() < _BACK:
                put(name)
        if random.random() < _NEW:
            put(f"config-{next(numbers)}")
        return Version(config, tasks, tuple(invalid))


@dataclass(frozen=True)
class Deploy:
    """One deploy.

    Parameters:
        at: when it begins, as a share of the storm.
        seconds: seconds within which all beats are replaced.
        version: the new configuration.
    """

    at: float
    seconds: float
    version: Version = field(repr=False)


def draw_deploys(random: Random, setup: Setup) -> tuple[Deploy, ...]:
    """Draw the deploys of a seed; most seeds have none."""
    if random.random() >= (_SHARE_OF_KEPT if setup.kept else _SHARE) or setup.is_long:
        return ()
    return draw_one_to_three(random, setup)


def draw_one_to_three(random: Random, setup: Setup) -> tuple[Deploy, ...]:
    """Draw one to three deploys."""
    return tuple(_draw(random, setup, random.choice((1, 1, 2, 3))))


def _draw(random: Random, setup: Setup, count: int) -> Iterator[Deploy]:
    version = Version.first(setup)
    numbers = iter(range(len(setup.config), 100))
    names = list(version.config)
    for at in sorted(random.uniform(0.1, 1.0) for _ in range(count)):
        version = version.draw_next(random, setup, numbers, _without(names, version))
        names += [name for name in version.config if name not in names]
        yield Deploy(at, random.choice(_ROLL_OUTS), version)


def _without(names: Sequence[str], version: Version) -> list[str]:
    """Return the names that a configuration does not have."""
    return [name for name in names if name not in version.config]
