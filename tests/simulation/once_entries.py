"""Draw of the entries that have a once-lock."""

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

#: Share of short seeds in which some entries have a once-lock.
_SHARE = 1 / 3

#: Share of the entries of such a seed that have one.
_SHARE_OF_ENTRIES = 0.7

#: Share of these seeds in which the clearer (``clearing.py``) clears locks.
_SHARE_WITH_CLEARING = 0.3

#: Tasks of entries whose runs do not wait for the lock. They may take long, because
#: a run that finds the lock taken is not sent, or the worker skips it.
_TASKS = ("project.run", "project.late", "project.retried", "project.slow", *LONG, *LONG)

#: Task that the jobs call, too. Without arguments, the calls and the runs of an entry have the same key.
_CALLED_TASK = "project.queued"

#: Tasks of entries whose runs wait for the lock in the worker. They must take less time than the interval.
_SHORT_TASKS = ("project.run", "project.late")

#: Key that several entries share.
_SHARED = "shared"

#: If two runs are at least this many ms apart, the later one may take over the lock of the earlier one.
#: The first gap is that of the package. With the short one, takeovers are frequent.
_TAKEOVER_GAPS = (60_000, 3_000, 3_000)

#: An interval in seconds that is longer than the package's gap, so that takeovers happen with that gap, too.
_LONG_PERIOD = 61


@dataclass(frozen=True)
class OnceEntry:
    """The once-lock of one entry.

    Parameters:
        once: value of ``once`` of the entry.
        task: the task of the entry.
        period: interval in seconds; ``None``: the seed draws the rule, as for any entry.
    """

    once: Any
    task: str
    period: int | None = None

    @property
    def is_at_publish(self) -> bool:
        """Whether the lock is acquired at publish, rather than by the worker."""
        return self.once is True or bool(self.once.at_publish)

    @property
    def is_removable(self) -> bool:
        """Whether an edit may remove the lock from the entry.

        The called task has a lock of its own. If that kept a run from being sent, the run would count as sent.
        """
        return self.task != _CALLED_TASK


@dataclass(frozen=True)
class OnceEntries:
    """The entries of a seed that have a once-lock, by name.

    Parameters:
        takeover_gap: one of ``_TAKEOVER_GAPS``.
        clears: whether the clearer clears locks.
    """

    of: Mapping[str, OnceEntry] = field(default_factory=dict)
    takeover_gap: int = _TAKEOVER_GAPS[0]
    clears: bool = False

    def fields(self, name: str) -> dict[str, Any]:
        """Return the field ``once`` of an entry; no field if the entry has no once-lock."""
        return {"once": self.of[name].once} if name in self.of else {}

    def task(self, name: str, drawn: str) -> str:
        """Return the task of an entry; ``drawn`` if the entry has no once-lock."""
        return self.of[name].task if name in self.of else drawn


def with_once(random: Random, setup: Setup, names: tuple[str, ...]) -> Setup:
    """Return a setup in which some entries have once-locks, or in most seeds the same setup.

    Parameters:
        names: names of the entries that the user may add.
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
