"""What a seed draws of entries that start pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from celery import Celery

from redbeat_lite import Pipeline
from tests.simulation.bodies import STEPS
from tests.simulation.rules import Rule, interval
from tests.simulation.work import Work

Overlap = Literal["allow", "skip", "wait"]

#: What a run does while another run of its entry has not ended.
OVERLAPS: tuple[Overlap, ...] = ("allow", "skip", "wait")

#: The share of seeds with jobs whose schedule starts pipelines, too.
_SHARE = 0.75

#: Seconds between two runs: less than a run takes, about as much, and more.
_PERIODS = (2, 3, 5, 7)


@dataclass(frozen=True)
class PipelineEntry:
    """An entry that starts a run of a pipeline at each of its occurrences.

    Parameters:
        is_config: whether it is in the configuration; else somebody adds it.
        stages: number of steps of each stage.
        steps: name, task and priority of each step.
        at_once, deadline, revoke_siblings: of the pipeline.
        expires: ``expires`` of the entry: ``"interval"``, or ``None``: a start never expires.
    """

    name: str
    overlap: Overlap
    is_config: bool
    rule: Rule
    stages: list[int]
    steps: Sequence[tuple[str, str, int]]
    at_once: int | None
    deadline: float | None
    expires: str | None
    revoke_siblings: bool = False

    @classmethod
    def draw(cls, random: Random, overlap: Overlap) -> PipelineEntry:
        stages = [random.randint(1, 2) for _ in range(random.randint(1, 3))]
        return cls(
            name=f"pipeline-{overlap}",
            overlap=overlap,
            is_config=random.random() < 0.5,
            rule=interval(random.choice(_PERIODS)),
            stages=stages,
            steps=draw_steps(random, stages),
            at_once=random.choice((None, None, 1)),
            deadline=random.choice((None, None, None, 10.0)),
            expires=random.choice(("interval", None)),
        )

    def fields(self, app: Celery) -> dict[str, Any]:
        """Return the fields of the entry for an app in which the tasks are registered."""
        pipeline = Pipeline(
            app,
            self.steps,
            revoke_siblings=self.revoke_siblings,
            overlap=self.overlap,
            at_once=self.at_once,
            deadline=self.deadline,
        )
        return {"task": pipeline, "schedule": self.rule.schedule, "expires": self.expires}


def draw_steps(random: Random, stages: Sequence[int]) -> list[tuple[str, str, int]]:
    """Draw name, task and priority of the steps of a pipeline that has so many of them in each stage."""
    return [
        (f"step-{stage}-{number}", random.choice(list(STEPS)), len(stages) - stage)
        for stage, size in enumerate(stages)
        for number in range(size)
    ]


def draw_pipelines(random: Random, work: Work) -> dict[str, PipelineEntry]:
    """Draw the entries that start pipelines, by name; most seeds have none."""
    if not work.has_jobs or random.random() > _SHARE:
        return {}
    overlaps = random.sample(OVERLAPS, random.choice((1, 2, 2, 3)))
    entries = [PipelineEntry.draw(random, overlap) for overlap in overlaps]
    # The last draw, so that what was drawn before it stays what it was.
    entries = [replace(entry, revoke_siblings=random.random() < 0.5) for entry in entries]
    return {entry.name: entry for entry in entries}


def configure(app: Celery, pipelines: Mapping[str, PipelineEntry]) -> None:
    """Put those of the configuration into it; the tasks must be registered before."""
    added = {name: entry.fields(app) for name, entry in pipelines.items() if entry.is_config}
    app.conf.beat_schedule = {**app.conf.beat_schedule, **added}
