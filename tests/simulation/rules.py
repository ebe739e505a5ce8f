"""Schedules of entries, each as the package takes it and as the history has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from celery.schedules import crontab

from redbeat_lite import at, cron
from tests.simulation.zones import RULES
from tests.support.audit import Record


@dataclass(frozen=True)
class Rule:
    """One schedule.

    Parameters:
        text: for the story of a seed.
        schedule: what the package takes.
        record: the same rule in the form of the history.
    """

    text: str
    schedule: Any = field(repr=False)
    record: Record = field(repr=False)

    @property
    def period_ms(self) -> int | None:
        """Milliseconds from one run to the next, if this is an interval."""
        every: int | None = self.record.get("every")
        return every


def interval(seconds: int) -> Rule:
    """A rule that runs again and again after so many seconds."""
    return Rule(f"every {seconds} s", float(seconds), {"every": seconds * 1000})


def instant(epoch_ms: int) -> Rule:
    """A rule that runs once."""
    when = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return Rule(f"at {when:%Y-%m-%d %H:%M:%S}", at(when), {"at": [epoch_ms]})


def daily(random: Random, zone: str, around: datetime, *, is_default_zone: bool = False) -> Rule:
    """A rule for times of the day in a zone whose clocks change, with its nominal times for some weeks.

    Parameters:
        around: the nominal times of weeks before and after this instant are known.
        is_default_zone: whether the app is in this zone, so that the schedule need not name it.
    """
    rule = random.choice(RULES)
    minute, hour, weekday = rule.fields
    text = f"{minute} {hour} * * {weekday}"
    if is_default_zone and random.random() < 0.5:
        schedule: Any = crontab(minute, hour, weekday)
    else:
        schedule = cron(text, tz=zone)
    midnight = around.replace(hour=0, minute=0, second=0, microsecond=0)
    times = rule.nominal_times(zone, midnight - timedelta(days=30), midnight + timedelta(days=120))
    return Rule(f"{text} in {zone}", schedule, {"at": times})
