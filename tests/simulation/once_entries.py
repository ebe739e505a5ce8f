"""What a seed draws of entries with a once-lock, and what is stored with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from redbeat_lite import Once
from tests.simulation.bodies import LONG
from tests.simulation.rules import Rule, interval
from tests.simulation.work import Work

if TYPE_CHECKING:
    from tests.simulation.apps import Setup

#: The share of seeds in which some entries have a once-lock, and the share of their entries that have one.
_SHARE = 1 / 3
_SHARE_OF_ENTRIES = 0.7

#: The share of these seeds in which somebody clears locks.
_SHARE_WITH_CLEARING = 0.3

#: Tasks of entries whose lock is taken at publish: no more than one message of each waits, so they may take long.
_TASKS = ("project.run", "project.late", "project.retried", "project.slow", *LONG, *LONG)

#: The task that somebody calls, too: where an entry passes no arguments either, both have the same key.
_CALLED_TASK = "project.queued"

#: Tasks of entries whose runs wait in line, so they must take less time than goes by between two of them.
_SHORT_TASKS = ("project.run", "project.late")

#: The key that several entries have.
_SHARED = "shared"

#: Milliseconds between two runs from which on the later one may take over a lock: as in the package, and few.
_TAKEOVER_GAPS = (60_000, 3_000, 3_000)

#: Seconds of an interval that some entries get for which the package's own gap is short enough.
_LONG_PERIOD = 61


@dataclass(frozen=True)
class OnceEntry:
    """The once-lock of one entry.

    Parameters:
        once: what the entry says.
        task: the task of the entry.
        period: seconds of its interval; ``None``: what the seed draws for any entry.
    """

    once: Any
    task: str
    period: int | None = None

    @property
    def is_at_publish(self) -> bool:
        """Whether the lock is taken before the message is sent."""
        return self.once is True or bool(self.once.at_publish)

    @property
    def may_be_taken_away(self) -> bool:
        """Whether the task needs no lock without it. Else a run that its own lock keeps away counts as sent."""
        return self.task != _CALLED_TASK


@dataclass(frozen=True)
class OnceEntries:
    """The entries of a seed that have a once-lock, by name.

    Parameters:
        takeover_gap: milliseconds between two runs from which on the later one may take over the lock.
        clears: whether somebody clears locks.
    """

    of: Mapping[str, OnceEntry] = field(default_factory=dict)
    takeover_gap: int = _TAKEOVER_GAPS[0]
    clears: bool = False

    def fields(self, name: str) -> dict[str, Any]:
        """Return what an entry of this name says of its once-lock."""
        return {"once": self.of[name].once} if name in self.of else {}

    def task(self, name: str, drawn: str) -> str:
        """Return the task of an entry, for which this one was drawn."""
        return self.of[name].task if name in self.of else drawn


def with_once(random: Random, setup: Setup, names: tuple[str, ...]) -> Setup:
    """Return the same setup, but with once-locks for some entries, in a part of the seeds.

    Parameters:
        names: of the entries that somebody may add.
    """
    if setup.is_long or random.random() > _SHARE:
        return setup
    entries = dict(_draw_entries(random, setup.work, (*setup.config, *names)))
    once = OnceEntries(entries, random.choice(_TAKEOVER_GAPS), random.random() < _SHARE_WITH_CLEARING)
    config = {name: _rule(entries.get(name), rule) for name, rule in setup.config.items()}
    tasks = {name: once.task(name, task) for name, task in setup.tasks.items()}
    # The record of runs says which runs are left out, so it must have room for one of an entry at least.
    return replace(setup, once=once, config=config, tasks=tasks, history=max(1, setup.history))


def _draw_entries(random: Random, work: Work, names: tuple[str, ...]) -> Iterator[tuple[str, OnceEntry]]:
    for name in names:
        kind = random.choice(("own", "own", "own", "shared", "shared", "called", "wait", "skip"))
        is_drawn = random.random() < _SHARE_OF_ENTRIES
        period = _LONG_PERIOD if random.random() < 0.1 else None
        task = {"called": _CALLED_TASK, "wait": random.choice(_SHORT_TASKS)}.get(kind, random.choice(_TASKS))
        conflict = random.choice(("skip", "skip", "raise"))
        holds_on_retry = random.random() < 0.7
        shared = Once(
            scope="queue", key=_SHARED, on_conflict=conflict, hold_on_retry=holds_on_retry, lease=work.once_lease
        )
        once: dict[str, Any] = {
            "own": True,
            "shared": shared,
            "called": True,
            "wait": Once(scope=random.choice(("run", "queue")), on_conflict="wait", lease=2.0),
            "skip": Once(scope="run", lease=2.0),
        }
        if is_drawn:
            yield name, OnceEntry(once[kind], task if work.workers else "project.run", period)


def _rule(entry: OnceEntry | None, drawn: Rule) -> Rule:
    return drawn if entry is None or entry.period is None else interval(entry.period)
