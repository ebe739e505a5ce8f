"""A queue from which nobody takes: its own incident, in the place of the run that is missed."""

from __future__ import annotations

from typing import Any

import pytest

from redbeat_lite import Expect, every
from tests.beat.incidents import Stage

START = Expect(start_within=30)

#: How an entry's messages come to go to the queue "slow", and settings that have to do with it.
ROUTES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "its options": ({}, {"options": {"queue": "slow"}}),
    "task_routes": ({"task_routes": {"routed": {"queue": "slow"}}}, {"task": "routed"}),
    "the default": ({"task_default_queue": "slow"}, {}),
    "its task": ({}, {"task": "own"}),
}


def _own() -> None: ...


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
@pytest.mark.parametrize(("stage", "fields"), ROUTES.values(), ids=ROUTES, indirect=["stage"])
def test_a_queue_that_nobody_takes_from_is_the_incident(stage: Stage, fields: dict[str, Any]) -> None:
    stage.app.task(_own, name="own", queue="slow", shared=False)
    stage.worker.reports("celery", "other")
    stage.schedules.add(**{"name": "e", "task": "add", "schedule": every(60), "expect": START, **fields})
    stage.turn(60, 33)
    [found] = stage.schedules.incidents()
    assert (found.kind, found.entry) == ("not_consumed", "e")
    assert found.text.endswith("has not begun within 30 s: no worker that reports takes from the queue 'slow'")
    stage.worker.reports("slow")
    stage.turn(27, 33)
    assert _open(stage) == ["missed"]


def test_it_is_over_when_a_run_begins_in_time(stage: Stage) -> None:
    stage.worker.reports("other")
    stage.schedules.add("e", "add", every(60), expect=START)
    stage.turn(60, 33, 27)
    stage.worker.tells("e", "running", 3)
    stage.turn(33)
    stage.listener.hears("not_consumed e", "-not_consumed e")


def test_a_queue_that_loses_its_worker_and_gets_one_has_one_incident_at_a_time(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), expect=START)
    stage.turn(60, 33)
    found = [_open(stage)]
    for queue in ("other", "celery"):
        stage.worker.reports(queue)
        stage.turn(27, 33)
        found.append(_open(stage))
    assert found == [["missed"], ["not_consumed"], ["missed"]]


def _open(stage: Stage) -> list[str]:
    return [each.kind for each in stage.schedules.incidents()]
