"""Nominal times of daily rules around clock changes, as the walk of the simulation finds them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.simulation.zones import CLOCK_CHANGES, DailyRule, walk


def times(rule: DailyRule, zone: str, first: str, last: str) -> list[str]:
    """The nominal times between two days, by the local clock."""
    since, until = (datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=ZoneInfo(zone)) for day in (first, last))
    found = rule.nominal_times(zone, since.astimezone(UTC), until.astimezone(UTC))
    local = [datetime.fromtimestamp(ms / 1000, ZoneInfo(zone)) for ms in found]
    return [f"{instant:%d %H:%M %z}" for instant in local]


def test_a_fixed_time_in_a_gap_comes_right_after_it() -> None:
    assert times(DailyRule((30,), (2,)), "Europe/Berlin", "2026-03-28", "2026-03-31") == [
        "28 02:30 +0100",
        "29 03:00 +0200",
        "30 02:30 +0200",
    ]


def test_several_fixed_times_in_a_gap_come_once() -> None:
    assert times(DailyRule((0, 20, 40), (2,)), "Europe/Berlin", "2026-03-29", "2026-03-30") == ["29 03:00 +0200"]


def test_a_fixed_time_in_a_fold_comes_at_its_first_passing() -> None:
    assert times(DailyRule((30,), (2,)), "Europe/Berlin", "2026-10-25", "2026-10-27") == [
        "25 02:30 +0200",
        "26 02:30 +0100",
    ]


def test_a_running_rule_comes_whenever_the_clock_shows_it() -> None:
    hourly = DailyRule((15,))
    assert len(times(hourly, "Europe/Berlin", "2026-03-29", "2026-03-30")) == 23
    assert len(times(hourly, "Europe/Berlin", "2026-10-25", "2026-10-26")) == 25
    assert times(DailyRule((0,), step=2), "Europe/Berlin", "2026-03-29", "2026-03-30")[:2] == [
        "29 00:00 +0100",
        "29 04:00 +0200",
    ]


def test_sundays_are_those_of_the_local_clock() -> None:
    rule = DailyRule((30,), (2,), sundays=True)
    assert times(rule, "Australia/Lord_Howe", "2026-03-28", "2026-04-13") == [
        "29 02:30 +1100",
        "05 02:30 +1030",
        "12 02:30 +1030",
    ]


@pytest.mark.parametrize(("zone", "change"), CLOCK_CHANGES)
def test_the_clock_does_change_at_these_instants(zone: str, change: datetime) -> None:
    before, after = (
        moment.shows for moment in walk(zone, change - timedelta(minutes=5), change + timedelta(minutes=5))
    )
    assert after - before != timedelta(minutes=5)
