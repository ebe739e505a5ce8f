"""What clock changes do to runs, in words: to one for previews, to those of many entries for the
doctor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, tzinfo
from itertools import islice, pairwise
from typing import NamedTuple

from .._base.times import from_ms
from ..rules import Rule
from ..rules.clock_changes import ZonedRule, naive, stretches
from ..rules.wall_times import before
from .entry import Entry
from .lifecycle import within
from .words import listed

_DAY = 86_400
#: Wall times of a gap that are named one by one.
_NAMED = 3


class _Gap(NamedTuple):
    """A clock change that leaves wall times out: ``opens`` is the first one that does not exist,
    ``closes`` the first that does again, both naive; ``at`` is the instant in seconds since 1970.
    """

    at: int
    opens: datetime
    closes: datetime


def _gaps(zone: tzinfo, after: int, until: int) -> Iterator[_Gap]:
    """The gaps of a zone in ``(after, until]``, in seconds since 1970."""
    for (_, end, behind), (_, _, ahead) in pairwise(stretches(zone, after, until)):
        jump = end + 1  # the first second with the new offset
        if ahead > behind:
            yield _Gap(jump, naive(jump + behind), naive(jump + ahead))


def _swallowed(rule: ZonedRule, gap: _Gap) -> Iterator[datetime]:
    """The wall times of a rule that do not exist because of a gap."""
    wall = rule.walls.next_wall(before(gap.opens))
    while wall is not None and wall < gap.closes:
        yield wall
        wall = rule.walls.next_wall(wall)


def hazard(rule: Rule, ms: int) -> str | None:
    """How the clocks meddle with an occurrence, by its nominal time (epoch ms); ``None`` where they
    do not.
    """
    if not isinstance(rule, ZonedRule):
        return None
    return _of_fold(rule, from_ms(ms)) or _of_gap(rule, ms // 1000)


def _of_fold(rule: ZonedRule, instant: datetime) -> str | None:
    local = instant.astimezone(rule.zone)
    # A real local time is never in a gap, so that the two differ only where it is shown twice.
    if local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset():
        return None
    shown = f"{local:%H:%M} comes twice"
    # One with a time of day has only what an RDATE added in the second.
    if rule.walls.running or local.fold:
        return f"{shown}; this is the {'second' if local.fold else 'first'} time"
    return f"{shown}; it runs the first time"


def _of_gap(rule: ZonedRule, second: int) -> str | None:
    """What the last day's jump forward swallowed, if this is the first occurrence since."""
    gap = next(_gaps(rule.zone, second - _DAY - 1, second), None)
    if gap is None or rule.next_ms(gap.at * 1000 - 1) != second * 1000:
        return None
    names = [f"{wall:%H:%M}" for wall in islice(_swallowed(rule, gap), _NAMED + 1)]
    if not names:
        return None
    told = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    does = "no run for" if rule.walls.running else "runs in place of"
    return f"{does} {told}: the clocks skip {gap.opens:%H:%M} to {gap.closes:%H:%M}"


def moves(
    entries: Iterable[Entry], zone: tzinfo, after: int, until: int
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The runs that clock changes move, or merge with others: a sentence for each change, and the
    entries' names.

    Parameters:
        zone: where a schedule carries none.
        after, until: the clock changes in ``(after, until]``, in seconds since 1970.
    """
    gaps: dict[str, list[_Gap]] = {}
    hit: dict[tuple[str, _Gap], dict[str, bool]] = defaultdict(dict)
    for entry in entries:
        rule = entry.rule(zone)
        if not isinstance(rule, ZonedRule) or rule.walls.running or entry.due is None:
            continue
        if rule.zone_name not in gaps:
            gaps[rule.zone_name] = [*_gaps(rule.zone, after, until)]
        for gap in gaps[rule.zone_name]:
            runs = len([*islice(_swallowed(rule, gap), 2)])
            if runs and within(entry, from_ms(gap.at * 1000)):
                # One that stands at the end of the gap anyway is the same run.
                joined = rule.walls.next_wall(before(gap.closes)) == gap.closes
                hit[rule.zone_name, gap][entry.name] = runs > 1 or joined
    for (name, gap), merges in hit.items():
        yield _sentence(name, gap, merges), tuple(merges)


def _sentence(zone: str, gap: _Gap, merges: dict[str, bool]) -> str:
    """What a gap does to entries: to those whose name has a True it makes one of several runs."""
    single, merged = (
        [name for name in merges if merges[name] is wanted] for wanted in (False, True)
    )
    opens, closes = f"{gap.opens:%H:%M}", f"{gap.closes:%H:%M}"
    parts = (
        [f"{listed(single)} {'runs' if len(single) == 1 else 'run'} at {closes} instead"]
        if single
        else []
    )
    if merged:
        parts.append(f"the runs of {listed(merged)} in that time become one, at {closes}")
    return (
        f"on {gap.opens:%Y-%m-%d} the clocks of {zone} go from {opens} to {closes}: "
        f"{'; '.join(parts)}"
    )
