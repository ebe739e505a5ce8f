"""Sentences about the effect of clock changes on runs.

Previews show a sentence for one run. The doctor shows one for all entries that a change affects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, tzinfo
from itertools import islice, pairwise
from typing import NamedTuple

from .._base.times import from_ms
from ..rules import Rule
from ..rules.clock_changes import ZonedRule, before, naive, stretches
from .entry import Entry
from .lifecycle import within
from .words import listed

#: Seconds of a day.
_DAY = 86_400

#: Wall times in a gap that a sentence names; the others are "…".
_NAMED = 3


class _Gap(NamedTuple):
    """Gap in the wall times of a zone, where its clocks are set forward.

    Parameters:
        at: instant of the clock change, in seconds since 1970.
        opens: first wall time that does not exist, naive.
        closes: first wall time that exists again, naive.
    """

    at: int
    opens: datetime
    closes: datetime


def _gaps(zone: tzinfo, after: int, until: int) -> Iterator[_Gap]:
    """Yield the gaps of a zone in ``(after, until]``, in seconds since 1970."""
    for (_, end, behind), (_, _, ahead) in pairwise(stretches(zone, after, until)):
        jump = end + 1  # the first second with the new offset
        if ahead > behind:
            yield _Gap(jump, naive(jump + behind), naive(jump + ahead))


def _swallowed(rule: ZonedRule, gap: _Gap) -> Iterator[datetime]:
    """Yield the wall times of a rule that do not exist because they lie in a gap."""
    wall = rule.walls.next_wall(before(gap.opens))
    while wall is not None and wall < gap.closes:
        yield wall
        wall = rule.walls.next_wall(wall)


def hazard(rule: Rule, ms: int) -> str | None:
    """Describe the effect of a clock change on an occurrence; return ``None`` if there is none.

    Parameters:
        ms: nominal time of the occurrence, in epoch ms.
    """
    if not isinstance(rule, ZonedRule):
        return None
    return _of_fold(rule, from_ms(ms)) or _of_gap(rule, ms // 1000)


def _of_fold(rule: ZonedRule, instant: datetime) -> str | None:
    local = instant.astimezone(rule.zone)
    # The local time of an instant never lies in a gap, so the two offsets differ only if clocks
    # show this time twice.
    if local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset():
        return None
    shown = f"{local:%H:%M} comes twice"
    # A rule with a time of day runs the first time only, unless an RDATE names the second one.
    if rule.walls.running or local.fold:
        turn = "second" if local.fold else "first"
        return f"{shown}; this is the {turn} time"
    return f"{shown}; it runs the first time"


def _of_gap(rule: ZonedRule, second: int) -> str | None:
    """Describe the runs that fell into a gap of the last day.

    Return ``None`` unless the occurrence at ``second`` (since 1970) is the first one after the gap.
    """
    gap = next(_gaps(rule.zone, second - _DAY - 1, second), None)
    if gap is None or rule.next_ms(gap.at * 1000 - 1) != second * 1000:
        return None
    names = [f"{wall:%H:%M}" for wall in islice(_swallowed(rule, gap), _NAMED + 1)]
    if not names:
        return None
    missing = ", ".join(names[:_NAMED])
    if len(names) > _NAMED:
        missing += ", …"
    effect = "no run for" if rule.walls.running else "runs in place of"
    return f"{effect} {missing}: the clocks skip {gap.opens:%H:%M} to {gap.closes:%H:%M}"


def moves(
    entries: Iterable[Entry], zone: tzinfo, after: int, until: int
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield a sentence for each clock change that moves or merges runs, with the entries' names.

    Parameters:
        zone: zone of the schedules that have none of their own.
        after, until: consider the clock changes in ``(after, until]``, in seconds since 1970.
    """
    affected: dict[tuple[str, _Gap], list[str]] = defaultdict(list)
    for entry in entries:
        rule = entry.rule(zone)
        if not isinstance(rule, ZonedRule) or rule.walls.running or entry.due is None:
            continue
        for gap in _gaps(rule.zone, after, until):
            has_run = next(_swallowed(rule, gap), None) is not None
            if has_run and within(entry, from_ms(gap.at * 1000)):
                affected[rule.zone_name, gap].append(entry.name)
    for (zone_name, gap), names in affected.items():
        closes = f"{gap.closes:%H:%M}"
        sentence = (
            f"on {gap.opens:%Y-%m-%d} the clocks of {zone_name} go from {gap.opens:%H:%M} to "
            f"{closes}: one run at {closes} replaces those of {listed(names)} in that time"
        )
        yield sentence, tuple(names)
