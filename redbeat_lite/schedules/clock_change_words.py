"""What a clock change does to an occurrence, in words: for previews and for warnings. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from ..instants import EPOCH, from_ms
from .clock_changes import ZonedRule
from .rule import Rule
from .wall_times import before
from .zones import jump_between, offset_at

_DAY = 86_400
#: Wall times of a gap that are named one by one.
_NAMED = 3


def hazard(rule: Rule, ms: int) -> str | None:
    """How the clocks meddle with an occurrence; ``None`` where they do not.

    Parameters:
        rule: of the schedule; only one that goes by the clock on a wall is meddled with.
        ms: the nominal time of one of its occurrences, in milliseconds since 1970.
    """
    if not isinstance(rule, ZonedRule):
        return None
    second = ms // 1000
    return _of_fold(rule, from_ms(ms)) or _of_gap(rule, second)


def _of_fold(rule: ZonedRule, instant: datetime) -> str | None:
    local = instant.astimezone(rule.zone)
    # A real local time is never in a gap, so that the two differ only where it is shown twice.
    if local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset():
        return None
    shown = f"{local:%H:%M} comes twice"
    if rule.walls.running:
        return f"{shown}; this is the {'second' if local.fold else 'first'} time"
    return f"{shown}; it runs the first time"


def _of_gap(rule: ZonedRule, second: int) -> str | None:
    """What the last day's jump forward swallowed, if this is the first occurrence since."""
    zone, start = rule.zone, second - _DAY
    before_it, after_it = offset_at(zone, start), offset_at(zone, second)
    if after_it <= before_it:
        return None
    jump = jump_between(zone, start, second)
    first = rule.next_ms(jump * 1000 - 1)
    if first is None or first // 1000 != second:
        return None
    opens, closes = _naive(jump + before_it), _naive(jump + after_it)
    swallowed = _walls(rule, opens, closes)
    if not swallowed:
        return None
    names = ", ".join(swallowed[:_NAMED]) + (", …" if len(swallowed) > _NAMED else "")
    skipped = f"the clocks skip {opens:%H:%M} to {closes:%H:%M}"
    if rule.walls.running:
        return f"no run for {names}: {skipped}"
    return f"runs in place of {names}: {skipped}"


def _naive(second: int) -> datetime:
    return EPOCH.replace(tzinfo=None) + timedelta(seconds=second)


def _walls(rule: ZonedRule, opens: datetime, closes: datetime) -> list[str]:
    """The first wall times of the rule from ``opens`` on, before ``closes``; one more than are named."""
    found: list[str] = []
    wall = rule.walls.next_wall(before(opens))
    while wall is not None and wall < closes and len(found) <= _NAMED:
        found.append(f"{wall:%H:%M}")
        wall = rule.walls.next_wall(wall)
    return found
