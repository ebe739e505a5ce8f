"""The Celery app of the simulated project, and how much of everything a seed draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from celery import Celery

from tests.simulation.once_entries import OnceEntries
from tests.simulation.pipeline_entries import PipelineEntry
from tests.simulation.rules import Rule, daily, interval
from tests.simulation.versions import Deploy
from tests.simulation.work import WORKER_FAULTS, Work
from tests.simulation.world import EPOCH_US, MICROS, World
from tests.simulation.zones import CLOCK_CHANGES

#: Seconds between two runs of an entry, where a seed lasts for minutes.
PERIODS = (2, 3, 5, 7)

#: The same, where little is due, so that a beat waits for long.
SPARSE_PERIODS = (25, 60, 150)

#: The same, where it lasts for days.
LONG_PERIODS = (3 * 3600, 12 * 3600, 86_400, 3 * 86_400)

#: The share of seeds in which little is due.
_SPARSE_SHARE = 0.1

#: The share of these in which beats stop hearing of changes. Where much is due, that makes no difference.
_DEAF_SHARE = 0.5

#: The share of seeds that last for days.
_LONG_SHARE = 0.1

#: Seconds of the faults: most seeds are short, because many short stories show more than few long ones.
_STORM = (6.0, 18.0)
_LONG_STORM = (20.0, 50.0)

#: The share of seeds with a long storm.
_LONG_STORM_SHARE = 0.2

#: Leases and stall timeouts in seconds, and how often each is drawn. Long ones make the calm long.
_LEASES = {1.0: 4, 2.0: 4, 4.0: 3, 10.0: 1, 30.0: 1}
_STALL_TIMEOUTS = {6.0: 10, 10.0: 2, 30.0: 1}

#: The share of seeds whose calm lasts on when all have recovered.
_LINGERING_SHARE = 0.25

#: The share of seeds whose entries have jitter, and its seconds: less than any period.
_JITTER_SHARE = 0.2
_JITTERS = (0.05, 1.5)

#: Most faults of different kinds in one seed.
_MOST_KINDS = 5


#: Faults by which the holder of a lock notices in time that its lease has run out.
_STRICT_FAULTS = {
    "cut",
    "deaf",
    "kill",
    "stop",
    "kill holder",
    "kill worker",
    "deliver twice",
    "lose acknowledgements",
    "broker away",
    "broker slow",
    "broker refuses",
    "clock",
    "request lost",
    "reply lost",
}


@dataclass(frozen=True)
class Setup:
    """What one seed draws before it begins.

    Parameters:
        config: the rule of each config entry.
        stormy, calm: seconds in which faults happen, and seconds without any after them. Where a seed lasts
            for days, this is the time in which something runs; what lies between passes at once.
        edits_in_calm: whether the user goes on while it is calm.
        lingers: whether the calm lasts on when all have recovered.
        faults: kinds of faults that happen.
        periods: seconds that intervals may have.
        zone: the time zone of the app. Other zones than UTC are those of seeds that last for days.
        start_us: where the clocks begin, epoch microseconds.
        change_us: when the clocks of the zone change, epoch microseconds.
        pipelines: entries that start pipelines, by name.
        jitter: seconds by which the runs of all other entries are put off at most.
        once: entries that have a once-lock.
        deploys: deploys of other configurations.
        kept: the rule of each further config entry, on which the keeper (``keepers.py``) calls methods.
        left_out: single faults and calls that do not happen, by their names in the story.
    """

    beats: int
    holders: int
    lease: float
    stall_timeout: float
    batch_size: int
    history: int
    config: dict[str, Rule]
    stormy: float
    calm: float
    edits_in_calm: bool
    lingers: bool
    faults: Sequence[str]
    periods: tuple[int, ...]
    work: Work
    #: The task of each config entry.
    tasks: Mapping[str, str]
    zone: str = "UTC"
    start_us: int = EPOCH_US
    change_us: int = 0
    pipelines: Mapping[str, PipelineEntry] = field(default_factory=dict, repr=False)
    jitter: float = 0.0
    once: OnceEntries = field(default_factory=OnceEntries, repr=False)
    deploys: Sequence[Deploy] = field(default=(), repr=False)
    kept: Mapping[str, Rule] = field(default_factory=dict, repr=False)
    left_out: frozenset[str] = field(default=frozenset(), repr=False)

    @classmethod
    def draw(cls, random: Random, faults: Sequence[str]) -> Setup:
        lease = _draw_weighted(random, _LEASES)
        stall_timeout = _draw_weighted(random, _STALL_TIMEOUTS)
        is_sparse = random.random() < _SPARSE_SHARE
        periods = SPARSE_PERIODS if is_sparse else PERIODS
        config = {f"config-{number}": interval(random.choice(periods)) for number in range(random.randint(1, 3))}
        work = Work.draw(random)
        if is_sparse:
            work = work.without_workers()
        kinds = [kind for kind in faults if work.can_meet(kind)]
        drawn = random.sample(kinds, random.randint(0, min(_MOST_KINDS, len(kinds))))
        if drawn and work.workers:
            drawn.append(random.choice(WORKER_FAULTS))
        if is_sparse and random.random() < _DEAF_SHARE:
            drawn.append("deaf")
        setup = cls(
            beats=random.choice((1, 1, 2, 2, 3)),
            holders=random.choice((0, 2)),
            lease=lease,
            stall_timeout=stall_timeout,
            batch_size=random.choice((1, 3, 500)),
            history=random.choice((0, 1, 20)),
            config=config,
            stormy=random.uniform(*(_LONG_STORM if random.random() < _LONG_STORM_SHARE else _STORM)),
            calm=lease + stall_timeout + 5.0 + (150.0 if is_sparse else max(PERIODS) + 3.0),
            edits_in_calm=random.random() < (0.6 if is_sparse else 0.2),
            lingers=is_sparse or random.random() < _LINGERING_SHARE,
            faults=tuple(dict.fromkeys(drawn)),
            periods=periods,
            work=work,
            tasks={name: work.draw_task(random) for name in config},
        )
        return setup._lasting_days(random) if random.random() < _LONG_SHARE else setup

    def _lasting_days(self, random: Random) -> Setup:
        """The same, but around a clock change, with rules of hours and days."""
        zone, change = random.choice(CLOCK_CHANGES)
        start = change - timedelta(hours=random.choice((random.uniform(1, 12), random.uniform(12, 100))))
        start_us = round(start.timestamp()) * MICROS
        return replace(
            self,
            holders=0,
            lease=min(self.lease, 4.0),
            stall_timeout=min(self.stall_timeout, 10.0),
            config={name: self._draw_long_rule(random, zone, start) for name in self.config},
            stormy=random.uniform(30.0, 90.0),
            calm=90.0,
            lingers=True,
            periods=LONG_PERIODS,
            faults=tuple(kind for kind in self.faults if self.work.without_workers().can_meet(kind)),
            work=self.work.without_workers(),
            tasks=dict.fromkeys(self.tasks, "project.run"),
            zone=zone,
            start_us=start_us,
            change_us=round(change.timestamp()) * MICROS,
        )

    def _draw_long_rule(self, random: Random, zone: str, start: datetime) -> Rule:
        if random.random() < 0.25:
            return interval(random.choice(LONG_PERIODS))
        return daily(random, zone, start, is_default_zone=True)

    @property
    def is_long(self) -> bool:
        """Whether it lasts for days."""
        return self.zone != "UTC"

    @property
    def is_strict(self) -> bool:
        """Whether the holder of a lock notices in time that its lease has run out."""
        return set(self.faults) <= _STRICT_FAULTS

    @property
    def start(self) -> datetime:
        """Where the clocks begin."""
        return datetime.fromtimestamp(self.start_us / MICROS, UTC)

    @property
    def recovery_ms(self) -> int:
        """Milliseconds after the last fault in which runs may still be late."""
        return round(1000 * (self.lease + self.stall_timeout + 5.0))


def draw_jitter(random: Random) -> float:
    """Draw how long the runs of all entries are put off at most, in seconds; most seeds put off none."""
    return random.uniform(*_JITTERS) if random.random() < _JITTER_SHARE else 0.0


def _draw_weighted(random: Random, weights: Mapping[float, int]) -> float:
    return random.choices(list(weights), list(weights.values()))[0]


class App(Celery):  # type: ignore[misc]  # Celery ships no types
    """A Celery app in the time of a world."""

    world: World

    def now(self) -> datetime:
        process = self.world.current
        ahead = 0 if process is None else process.clock_ahead
        return datetime.fromtimestamp((self.world.now_us + ahead) / MICROS, self.timezone)

    def type_checker(self, fun: Any, bound: bool = False) -> Any:
        """Check no arguments: the bodies take any."""
        del fun, bound
        return staticmethod(_take_any)


def _take_any(*_args: Any, **_options: Any) -> None:
    """Take the arguments of any task."""


def make_app(world: World, setup: Setup) -> Celery:
    """An app of its own for one process."""
    broker = "broker" if setup.work.is_broker_apart else "server"
    app = App("project", broker=f"redis://{broker}:6379/0", set_as_current=False)
    app.world = world
    app.conf.update(
        timezone=setup.zone,
        result_expires=None,  # Otherwise Celery adds an entry of its own.
        # A thread that waits for a free connection of kombu's pool would wait in real time: found by seed 89005590.
        broker_pool_limit=1000,
        # Else a worker that publishes over a half open connection waits for ever.
        broker_transport_options={"socket_timeout": 5.0, "socket_connect_timeout": 5.0},
        redbeat_lite_url="redis://server:6379/0",
        redbeat_lite_dispatch=setup.work.dispatch,
        redbeat_lite_lease=setup.lease,
        redbeat_lite_once_lease=setup.work.once_lease,
        redbeat_lite_stall_timeout=setup.stall_timeout,
        redbeat_lite_batch_size=setup.batch_size,
        redbeat_lite_history=setup.history,
        beat_schedule={name: _config_entry(setup, name) for name in setup.config},
    )
    return app


def _config_entry(setup: Setup, name: str) -> dict[str, Any]:
    schedule = setup.config[name].schedule
    fields = {"task": setup.tasks[name], "schedule": schedule, "args": [name], "jitter": setup.jitter}
    return fields | setup.once.fields(name)
