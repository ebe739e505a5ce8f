"""Celery's crontabs with a zone of their own, as schedules that can be stored."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab

from redbeat_lite import rrule
from redbeat_lite.interchange.sources import zoned_crontab
from redbeat_lite.rules import rule_of
from redbeat_lite.rules.celery_schedules import crontab_rule
from tests.support.cases import together

BERLIN = ZoneInfo("Europe/Berlin")


@together("zone", ["Europe/Berlin", "Australia/Lord_Howe"])
@together("days", [{}, {"day_of_month": "*/2"}, {"day_of_week": "sun,mon"}, {"month_of_year": "3,4,10"}])
@together("hour", ["*", "2", "1-5", "22-4", 2])
def test_celerys_crontab_with_a_zone_keeps_every_occurrence(hour: Any, days: dict[str, str], zone: str) -> None:
    where = ZoneInfo(zone)
    found = crontab(minute="0,30", hour=hour, **{"day_of_month": "1-31/2", "day_of_week": "*/2", **days})
    ours, theirs = rule_of(zoned_crontab(found, where), UTC), crontab_rule(found, where)
    for begin, end in (((3, 28), (4, 7)), ((10, 3), (10, 6)), ((10, 24), (10, 27))):
        at = other = datetime(2026, *begin, tzinfo=UTC)
        while at < datetime(2026, *end, tzinfo=UTC):
            at, other = ours.next_after(at), theirs.next_after(other)
            assert at == other


def test_hours_that_cannot_be_counted_are_those_of_the_clock() -> None:
    found = crontab(minute=0, hour="1,*/6", day_of_month="1-7", day_of_week="mon")
    assert zoned_crontab(found, BERLIN) == rrule(
        "FREQ=DAILY;BYHOUR=0,1,6,12,18;BYMONTHDAY=1,2,3,4,5,6,7;BYDAY=MO;BYMINUTE=0;BYSECOND=0", tz="Europe/Berlin"
    )
