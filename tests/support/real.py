"""The periodic tasks of public Celery projects, as entries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar

from redbeat_lite import Entry

_UTC = Celery("utc", set_as_current=False)
_FILE = Path(__file__).resolve().parents[1] / "data" / "real_schedules.json"


def real_entries() -> list[Entry]:
    """All of them, under names of their own.

    The few things that were never valid are written as their projects mean them: hours given as 9.0, a text as the
    arguments, which Celery refuses at each run, and one class of a project's own, which is an interval.
    """
    return [_entry(index, task) for index, task in enumerate(json.loads(_FILE.read_text()))]


def _entry(index: int, task: dict[str, Any]) -> Entry:
    args = task.get("args")
    name = f"{task['repo']}:{task.get('entry_name', '')}:{index}"
    return Entry(
        name[:200],
        task["task"],
        _schedule(task),
        [args] if isinstance(args, str) else args,
        task.get("kwargs"),
        task.get("options"),
    )


def _schedule(task: dict[str, Any]) -> BaseSchedule:
    if task["kind"] == "crontab":
        return crontab(**{field: _field(value) for field, value in task["fields"].items()})
    if task["kind"] == "solar":
        return solar(*task["solar"])
    return schedule(timedelta(seconds=task["seconds"] if task["kind"] == "interval" else task["fields"]["run_every"]))


def _field(value: Any) -> Any:
    return int(value) if isinstance(value, float) else value


def celerys_occurrences(found: crontab, after: datetime, until: datetime) -> Iterator[datetime]:
    """What Celery's own arithmetic says, in UTC: the occurrences after one instant, up to another one."""
    at = after
    rule = crontab(
        found._orig_minute,
        found._orig_hour,
        found._orig_day_of_week,
        found._orig_day_of_month,
        found._orig_month_of_year,
        nowfun=lambda: at,
        app=_UTC,
    )
    while True:
        last, delta, _ = rule.remaining_delta(at, tz=UTC)
        at = last + delta
        if at > until:
            return
        yield at
