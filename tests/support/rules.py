"""Rules, walked through."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from redbeat_lite import Entry
from redbeat_lite._base.times import from_ms
from redbeat_lite.entries.lifecycle import pulled_back
from redbeat_lite.entries.state import EntryState
from redbeat_lite.rules import Rule

#: Stands in for an app, of which an entry needs the time zone, and a planner the tasks.
UTC_APP: Any = SimpleNamespace(timezone=UTC, tasks={})


def occurrences(rule: Rule, after: datetime, count: int) -> list[datetime]:
    """The first so many after an instant, as far as there are any."""
    found: list[datetime] = []
    instant: datetime | None = after
    while len(found) < count and (instant := rule.next_after(instant)) is not None:
        found.append(instant)
    return found


def pull_back(schedule: Any, nominal: int, now: int, *, last: int | None = None, start: int | None = None) -> int:
    """The nominal time for which an entry waits after the clock was set back to ``now``."""
    start_at = None if start is None else from_ms(start)
    entry = Entry("nightly", "t", schedule, start_at=start_at, app=UTC_APP)
    state = EntryState(version=1, generation="g", nominal=nominal, last=last)
    return pulled_back(entry, state, now).nominal or 0
