"""Rules, walked through."""

from __future__ import annotations

from datetime import datetime

from redbeat_lite.rules import Rule


def occurrences(rule: Rule, after: datetime, count: int) -> list[datetime]:
    """The first so many after an instant, as far as there are any."""
    found: list[datetime] = []
    instant: datetime | None = after
    while len(found) < count and (instant := rule.next_after(instant)) is not None:
        found.append(instant)
    return found
