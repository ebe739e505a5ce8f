"""Entries that code gives to the scheduler by Celery's own methods are config entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.beat import EmbeddedService
from celery.signals import beat_init

from redbeat_lite import InvalidEntry, Scheduler, Schedules
from redbeat_lite.beat import leadership
from tests.support.in_process import MakeApp
from tests.support.waiting import eventually

MINUTE = {"task": "t", "schedule": 60.0}


class AddsAtSetup(Scheduler):
    def setup_schedule(self) -> None:
        super().setup_schedule()
        self.update_from_dict({"from dict": MINUTE})
        self.add(name="added", **MINUTE)


class Merges(Scheduler):
    """As Celery's own scheduler does it."""

    def setup_schedule(self) -> None:
        self.install_default_entries(self.data)
        self.merge_inplace(self.app.conf.beat_schedule)


MakeOne = Callable[..., Scheduler]


@pytest.fixture
def make_one() -> Iterator[MakeOne]:
    beats: list[Scheduler] = []

    def make(kind: type[Scheduler], app: Celery) -> Scheduler:
        beats.append(kind(app))
        return beats[-1]

    yield make
    for beat in beats:
        beat.close()


def test_those_that_a_subclass_adds_are_stored_beside_beat_schedule(make_app: MakeApp, make_one: MakeOne) -> None:
    app = make_app(beat_schedule={"conf": MINUTE}, redbeat_lite_misfire="all", redbeat_lite_expires=30)
    make_one(AddsAtSetup, app).run_due()
    schedules = Schedules(app)
    assert set(schedules) == {"conf", "from dict", "added"}
    for entry in schedules.values():
        assert (entry.owner, entry.misfire.policy, entry.expires) == ("proj", "all", 30.0)


def test_those_that_are_added_while_it_leads_are_noticed_at_the_next_turn(make_app: MakeApp, make_one: MakeOne) -> None:
    app = make_app(beat_schedule={"conf": MINUTE})
    beat, schedules = make_one(Scheduler, app), Schedules(app)
    beat.run_due()
    beat.add(name="conf", **{**MINUTE, "schedule": 5.0})
    added = beat.add(name="late", **MINUTE)
    assert (added.name, added.task) == ("late", "t")
    beat.run_due()
    assert {name: entry.schedule.run_every for name, entry in schedules.items()} == {
        "conf": timedelta(seconds=5),
        "late": timedelta(seconds=60),
    }
    beat.merge_inplace({})
    beat.run_due()
    assert [entry.schedule.run_every for entry in schedules.values()] == [timedelta(seconds=60)]
    assert set(schedules) == {"conf"}


def test_those_of_a_beat_init_handler_and_of_a_beat_that_waits_are_noticed(make_app: MakeApp) -> None:
    def handler(sender: Any, **_: Any) -> None:
        sender.scheduler.add(name="by signal", **MINUTE)

    app = make_app()
    schedules = Schedules(app)
    embedded = EmbeddedService(app, scheduler_cls=Scheduler, thread=True)
    beat_init.connect(handler)
    try:
        embedded.start()
        eventually(lambda: "by signal" in schedules, what="the entry of the handler")
        embedded.service.scheduler.add(name="while it waits", **MINUTE)
        eventually(lambda: "while it waits" in schedules, what="the entry that came later")
    finally:
        beat_init.disconnect(handler)
        embedded.stop()


def test_a_stand_by_of_the_same_code_finds_no_difference(
    make_app: MakeApp, make_one: MakeOne, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leadership, "_SETTLING", 0)
    app = make_app(beat_schedule={"conf": MINUTE})
    make_one(AddsAtSetup, app).run_due()
    make_one(AddsAtSetup, app).run_due()
    assert "not stored as here" not in caplog.text
    make_one(Scheduler, app).run_due()
    assert "2 entries of beat_schedule are not stored as here" in caplog.text


@pytest.mark.parametrize("kind", [Scheduler, Merges])
def test_celerys_own_cleanup_is_there_once_as_before(make_app: MakeApp, make_one: MakeOne, kind: type) -> None:
    app = make_app(result_expires=3600, result_backend="cache+memory://", beat_schedule={"conf": MINUTE})
    app.backend.supports_autoexpire = False
    make_one(kind, app).run_due()
    schedules = Schedules(app)
    assert set(schedules) == {"conf", "celery.backend_cleanup"}
    assert schedules["celery.backend_cleanup"].options == {"expires": 12 * 3600}


def test_a_wrong_one_is_refused_at_once(make_app: MakeApp, make_one: MakeOne) -> None:
    beat = make_one(Scheduler, make_app())
    with pytest.raises(InvalidEntry, match=r"entry 'odd': scheduel: expected a known field"):
        beat.add(name="odd", task="t", scheduel=60)
