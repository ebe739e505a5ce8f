"""What a seed draws for the broker, the workers and the jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tests.simulation.bodies import KINDS

#: Kinds of faults that only a broker of its own has.
BROKER_FAULTS = ("broker away", "broker slow", "broker refuses")

#: Kinds of faults that only workers meet.
WORKER_FAULTS = ("kill worker", "freeze worker", "deliver twice", "lose acknowledgements")


#: The task whose calls wait in line for one another, and how often an entry has it.
_IN_LINE = "project.line"
_IN_LINE_SHARE = 0.3

#: Seconds until a slot is free again, at most: a body ends at its time limit, and a new child process starts.
_LONGEST_TURN = 2.5


@dataclass(frozen=True)
class Work:
    """The broker and the workers of one seed.

    Parameters:
        dispatch: the setting of this name.
        is_broker_apart: whether the broker is a server of its own.
        workers: number of workers; without any, messages are only noted.
        slots: number of tasks that one worker runs at a time.
        prefetch: number of messages that a worker takes beyond its slots.
        forks: whether tasks run in child processes; else in threads of the worker.
        visibility: seconds after which the broker delivers a message again that nobody has acknowledged.
        once_lease: seconds for which a run is taken for alive without a renewal.
        has_jobs: whether somebody starts pipelines.
    """

    dispatch: str
    is_broker_apart: bool
    workers: int
    slots: int
    prefetch: int
    forks: bool
    visibility: float
    once_lease: float
    has_jobs: bool

    @classmethod
    def draw(cls, random: Random) -> Work:
        workers = random.choice((0, 0, 1, 2))
        return cls(
            dispatch=random.choice(("auto", "auto", "batch", "plain")),
            is_broker_apart=random.random() < 0.4,
            workers=workers,
            slots=random.choice((2, 2, 3)),
            prefetch=random.randint(0, 3),
            forks=random.random() < 0.6,
            visibility=random.choice((6.0, 15.0)),
            once_lease=random.choice((2.0, 5.0, 10.0)),
            has_jobs=workers > 0 and random.random() < 0.6,
        )

    @property
    def is_one_step(self) -> bool:
        """Whether messages are sent in one step with the schedule."""
        return self.dispatch != "plain" and not self.is_broker_apart

    def draw_task(self, random: Random) -> str:
        """Draw the task of an entry."""
        if not self.workers:
            return "project.run"
        return _IN_LINE if random.random() < _IN_LINE_SHARE else random.choice(list(KINDS))

    def without_workers(self) -> Work:
        """The same, but messages are only noted."""
        return replace(self, workers=0, has_jobs=False)

    def can_meet(self, fault: str) -> bool:
        """Whether a kind of fault can happen here."""
        if fault in BROKER_FAULTS:
            return self.is_broker_apart
        return fault not in WORKER_FAULTS or self.workers > 0

    @property
    def recovery(self) -> float:
        """Seconds that the workers may take, at most, to end the jobs of the storm."""
        return self.visibility + 60.0 if self.workers else 0.0

    def seconds_for(self, messages: int) -> float:
        """Seconds that the workers may take, at most, to run what so many messages ask for."""
        slots = max(1, self.workers * self.slots)
        return messages * _LONGEST_TURN / slots


#: No workers, and messages that go out in one step with the schedule.
ALONE = Work(
    dispatch="auto",
    is_broker_apart=False,
    workers=0,
    slots=2,
    prefetch=0,
    forks=False,
    visibility=6.0,
    once_lease=10.0,
    has_jobs=False,
)
