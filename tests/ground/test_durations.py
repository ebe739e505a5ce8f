"""A length of time is written in one way: as seconds, a timedelta or a text, wherever there is one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from redbeat_lite import Entry, Expect, InvalidEntry, Misfire, Once, Pipeline, PipelineTask, every
from redbeat_lite._base.times import duration_text, seconds_of
from redbeat_lite.settings import Settings
from redbeat_lite.testing import schedule_clock
from tests.support.cases import together


@together(
    "written, seconds",
    [
        (90, 90),
        (1.5, 1.5),
        (timedelta(minutes=1, seconds=30), 90),
        ("90", 90),
        ("90s", 90),
        ("1m30s", 90),
        ("1min 30s", 90),
        (" 1h30m ", 5400),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("1w2d", 777_600),
        ("", None),
        ("5x", None),
        ("5m?", None),
        ("-5m", None),
        ("٣m", None),
        ("1e3", None),
        ("nan", None),
        (float("nan"), None),
        (10**400, None),
        ("9" * 400, None),
        (True, None),
        (None, None),
        ([5], None),
    ],
)
def test_what_is_a_length_of_time(written: Any, seconds: float | None) -> None:
    assert seconds_of(written) == seconds


@together("ms", [1, 250, 999, 1000, 61_000, 5_400_000, 90_061_001, 31_536_000_000])
def test_a_text_is_read_back(ms: int) -> None:
    assert seconds_of(duration_text(ms)) == ms / 1000


def _settings(**values: Any) -> Settings:
    return Settings.from_app(Celery(broker="redis://", set_as_current=False, changes=_conf(values)))


def _conf(values: dict[str, Any]) -> dict[str, Any]:
    return {f"redbeat_lite_{name}": value for name, value in values.items()}


@together("written", [90, 90.0, timedelta(seconds=90), "90", "1m30s"])
def test_every_place_takes_every_form(written: Any) -> None:
    assert every(written) == every(90)
    entry = Entry("a", "t", written, expires=written, jitter=written)
    assert (entry.schedule.run_every, entry.expires, entry.jitter) == (timedelta(seconds=90), 90, 90)
    assert Misfire(grace=written) == Misfire.of({"policy": "coalesce", "grace": written}) == Misfire(grace=90)
    assert Once(lease=written, max_hold=written) == Once(lease=90, max_hold=90)
    assert Once(lease=written).lease_ms == 90_000
    expected = Expect(start_within=90, finish_within=90, succeed_every=90)
    assert Expect(start_within=written, finish_within=written, succeed_every=written) == expected
    settings = _settings(lease=written, expires=written, clock_slack=written, once_lease=written, stall_timeout=written)
    lengths = (settings.lease, settings.expires, settings.clock_slack, settings.once_lease, settings.stall_timeout)
    assert lengths == (90,) * 5
    clock = schedule_clock("2026-03-02", app=Celery(set_as_current=False, broker="redis://"), tz="UTC")
    clock.run(written if written != "90" else "90s")  # digits alone may be a day, as 20260302 is
    assert clock.now.timestamp() % 3600 == 90


def test_a_text_of_a_pipeline(app: Celery) -> None:
    @app.task(name="proj.step", base=PipelineTask)
    def step() -> None: ...

    definition = Pipeline(app, [("proj.step", 1)], ttl="1d", deadline="1h30m").definition
    assert (definition.ttl, definition.deadline) == (86_400, 5400)


@together("written", ["intervall", "5x", "-1s", -1, True])
def test_what_is_none_is_refused_with_how_it_is_written(written: Any) -> None:
    for refuse in (every, lambda value: Entry("a", "t", 5, jitter=value), lambda value: Misfire(grace=value)):
        with pytest.raises(InvalidEntry, match=r"1h30m|at least 0\.05"):
            refuse(written)
