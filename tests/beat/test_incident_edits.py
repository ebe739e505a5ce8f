"""Deadlines of entries that are edited, paused and resumed meanwhile."""

from __future__ import annotations

import re
from typing import Any

import pytest

from redbeat_lite import every
from tests.beat.incidents import Stage

STATE = "{redbeat-lite}:state"


def kinds(stage: Stage) -> list[str]:
    return [each.kind for each in stage.schedules.incidents()]


def raise_start(stage: Stage) -> None:
    """Allow a run that has been sent ten minutes to begin instead of half one."""
    stage.schedules.add("e", "add", every(3600), expect={"start_within": 30})
    stage.turn(3600)
    stage.schedules.update("e", expect={"start_within": 600})


def test_a_run_that_was_sent_is_allowed_what_is_allowed_by_now(stage: Stage) -> None:
    raise_start(stage)
    stage.turn(40, 550)
    assert kinds(stage) == []
    stage.turn(13)
    assert kinds(stage) == ["missed"]


def test_one_that_begins_within_that_is_in_time(stage: Stage) -> None:
    raise_start(stage)
    stage.turn(40)
    stage.worker.tells("e", "running", 50)
    stage.turn(20, 550)
    assert stage.listener.lines() == []


def owe(stage: Stage) -> None:
    """Have a success come that the next one has to follow within 150 s."""
    stage.schedules.add("e", "add", every(60), expect={"succeed_every": 150})
    stage.turn(60)
    stage.worker.tells("e", "succeeded")
    stage.turn()


def rarer(stage: Stage) -> None:
    stage.schedules.update("e", schedule=every(3600), expect={"succeed_every": 4000})
    stage.turn(147)


def rested(stage: Stage) -> None:
    stage.schedules.pause("e")
    stage.turn(147)
    stage.schedules.resume("e")


def disabled(stage: Stage) -> None:
    stage.schedules.update("e", enabled=False)
    stage.turn(147)
    stage.schedules.update("e", enabled=True)


def frozen(stage: Stage) -> None:
    stage.schedules.freeze(147)
    stage.turn(147)


def paused_for_a_time(stage: Stage) -> None:
    stage.schedules.pause("e", seconds=147)
    stage.turn(147)


def thawed(stage: Stage) -> None:
    stage.schedules.freeze(10_000)
    stage.turn(200)
    assert kinds(stage) == []
    stage.schedules.thaw()


def date_change(stage: Stage) -> None:
    """Give the last change the time of the frozen clock. It has that of the server, whose clock no test can set."""
    kept: Any = stage.client.hget(STATE, "e")
    now = round(1000 * stage.clock.now.timestamp())
    stage.client.hset(STATE, "e", re.sub(rb"\n\d+-\d+", b"\n%d-0" % now, kept))


def test_an_edit_may_ask_for_a_success_sooner(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), expect={"succeed_every": 3600})
    stage.turn(60)
    stage.worker.tells("e", "succeeded")
    stage.turn()
    stage.schedules.update("e", expect={"succeed_every": 150})
    date_change(stage)
    stage.turn(60, 60)
    assert kinds(stage) == []
    stage.turn(60, 60)
    assert kinds(stage) == ["no_success"]


@pytest.mark.parametrize("change", [rarer, rested, disabled, frozen, paused_for_a_time, thawed])
def test_a_success_is_owed_from_a_change_on_with_which_an_entry_begins_anew(stage: Stage, change: Any) -> None:
    owe(stage)
    change(stage)
    stage.turn(8)
    assert kinds(stage) == []


def test_it_is_owed_within_the_same_time_from_then_on(stage: Stage) -> None:
    owe(stage)
    rested(stage)
    date_change(stage)
    stage.turn(8, 143)
    assert kinds(stage) == []
    stage.turn(3)
    assert kinds(stage) == ["no_success"]


@pytest.mark.parametrize("holds", [frozen, paused_for_a_time])
def test_of_a_freeze_that_is_over_it_is_owed_from_its_end_on(stage: Stage, holds: Any) -> None:
    owe(stage)
    holds(stage)
    stage.turn(8, 141)
    assert kinds(stage) == []
    stage.turn(3)
    assert kinds(stage) == ["no_success"]


def test_what_is_open_of_an_entry_that_is_frozen_is_closed(stage: Stage) -> None:
    owe(stage)
    stage.turn(153)
    assert kinds(stage) == ["no_success"]
    stage.schedules.freeze(100)
    stage.turn(1)
    assert kinds(stage) == []
