from __future__ import annotations

from typing import Any

from .base import RuleSchedule


class RRule(RuleSchedule):
    text: str
    tz_name: str | None
    start: Any

    @classmethod
    def stored(cls, text: str, tz: Any, start: Any) -> RRule:
        raise ValueError

    def in_zone(self, zone: Any) -> Any: ...


def rrule(text: str, *, tz: Any = None, start: Any = None) -> RRule:
    raise NotImplementedError
