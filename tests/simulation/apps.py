"""The Celery app of the simulated project, and how much of everything a seed draws."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

from celery import Celery

from tests.simulation.world import MICROS, World

#: Seconds between two runs of an entry.
PERIODS = (2, 3, 5, 7, 12)

MISFIRES = ("coalesce", "skip", "all")


@dataclass
class Setup:
    """What one seed draws before it begins."""

    beats: int
    lease: float
    stall_timeout: float
    batch_size: int
    history: int
    #: Period of each config entry in seconds.
    config: dict[str, int]
    #: Seconds in which faults happen, and seconds without any after them.
    stormy: float
    calm: float
    #: Kinds of faults that happen.
    faults: list[str]

    @classmethod
    def draw(cls, random: Random, faults: list[str]) -> Setup:
        lease = random.choice((1.0, 1.0, 2.0, 4.0, 4.0, 10.0, 30.0))
        stall_timeout = random.choice((6.0, 6.0, 6.0, 10.0, 30.0))
        config = {f"config-{number}": random.choice(PERIODS) for number in range(random.randint(1, 3))}
        return cls(
            beats=random.randint(1, 3),
            lease=lease,
            stall_timeout=stall_timeout,
            batch_size=random.choice((1, 3, 500)),
            history=random.choice((0, 1, 20)),
            config=config,
            stormy=random.uniform(15.0, 60.0),
            calm=lease + stall_timeout + 5.0 + 2 * max(PERIODS),
            faults=random.sample(faults, random.randint(0, min(4, len(faults)))),
        )

    @property
    def recovery_ms(self) -> int:
        """Milliseconds after the last fault in which runs may still be late."""
        return round(1000 * (self.lease + self.stall_timeout + 5.0))


def make_app(world: World, setup: Setup) -> Celery:
    """An app of its own for one process."""

    class App(Celery):  # type: ignore[misc]  # Celery ships no types
        def now(self) -> datetime:
            process = world.current
            ahead = 0 if process is None else process.clock_ahead
            return datetime.fromtimestamp((world.now_us + ahead) / MICROS, UTC)

    app = App("project", broker="redis://server:6379/0", set_as_current=False)
    app.conf.update(
        timezone="UTC",
        redbeat_lite_lease=setup.lease,
        redbeat_lite_stall_timeout=setup.stall_timeout,
        redbeat_lite_batch_size=setup.batch_size,
        redbeat_lite_history=setup.history,
        beat_schedule={name: _config_entry(name, period) for name, period in setup.config.items()},
    )
    app.task(name="project.run")(_run)
    return app


def _run(*_args: Any) -> None:
    """The task of all entries."""


def _config_entry(name: str, period: int) -> dict[str, Any]:
    return {"task": "project.run", "schedule": float(period), "args": [name]}
