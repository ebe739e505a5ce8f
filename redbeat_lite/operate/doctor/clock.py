"""The doctor's look at the clock on the wall: runs that a clock change moves or merges, and moments when all run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from typing import NamedTuple

from ...clock import wall_ms
from ...entries.entry import Entry
from ...entries.words import counted, listed
from ...instants import EPOCH, from_ms
from ...schedules import Every, next_ms
from ...schedules.clock_changes import ZonedRule
from ...schedules.zones import stretches
from .finding import Finding

#: How far ahead clock changes are looked for, in days.
DAYS = 30

#: Entries at one moment that are worth a word.
CROWD = 20

_SECOND = timedelta(seconds=1)

_MINUTE, _QUARTER, _DAY = 60_000, 900_000, 86_400_000  # in milliseconds

#: Runs of one entry that are counted in a gap: all there are in an hour, at one a second.
_MOST = 3600


class Gap(NamedTuple):
    """A clock change that leaves wall times out: ``first`` is the first one that does not exist, ``after`` the first
    that does again, both naive; ``at`` is the instant."""

    at: datetime
    first: datetime
    after: datetime


def clock_changes(zone: tzinfo, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Runs that a clock change within the next month moves, or merges with others.

    Parameters:
        zone: that of the app.
    """
    now = wall_ms() // 1000
    gaps: dict[str, list[Gap]] = {}
    moved: dict[tuple[str, Gap], list[tuple[str, int]]] = defaultdict(list)
    for entry in entries:
        rule = entry.rule(zone) if "schedule" not in entry.local else None
        if not isinstance(rule, ZonedRule) or rule.walls.running or entry.due is None:
            continue
        if rule.zone_name not in gaps:
            gaps[rule.zone_name] = [*_gaps(rule.zone, now)]
        for gap in gaps[rule.zone_name]:
            runs = _swallowed(rule, gap)
            if runs and _within(entry, gap.at):
                moved[rule.zone_name, gap].append((entry.name, runs))
    for (name, gap), hit in moved.items():
        yield _change(name, gap, hit)


def _change(zone: str, gap: Gap, hit: list[tuple[str, int]]) -> Finding:
    single = [name for name, runs in hit if runs == 1]
    merged = [name for name, runs in hit if runs > 1]
    parts = [f"{listed(single)} {'runs' if len(single) == 1 else 'run'} at {gap.after:%H:%M} instead"] if single else []
    if merged:
        parts.append(f"the runs of {listed(merged)} in that time become one, at {gap.after:%H:%M}")
    return Finding(
        "clock-change",
        "note",
        f"on {gap.first:%Y-%m-%d} the clocks of {zone} go from {gap.first:%H:%M} to {gap.after:%H:%M}: "
        + "; ".join(parts),
        "The wall times in between do not exist on that day.",
        "Nothing, if that is all right. Else choose a time that exists every day, or a zone without clock changes.",
        tuple(name for name, _ in hit),
    )


def _gaps(zone: tzinfo, now: int) -> Iterator[Gap]:
    for (_, end, before), (_, _, after) in pairwise(stretches(zone, now, now + DAYS * 86_400)):
        jump = end + 1  # the first second with the new offset
        if after > before:
            yield Gap(EPOCH + jump * _SECOND, _wall(jump + before), _wall(jump + after))


def _wall(second: int) -> datetime:
    return EPOCH.replace(tzinfo=None) + second * _SECOND


def _swallowed(rule: ZonedRule, gap: Gap) -> int:
    """How many runs of a fixed rule meet at the end of a gap; 0 if it takes none away."""
    wall, runs = rule.walls.next_wall(gap.first - _SECOND), 0
    while wall is not None and wall < gap.after and runs < _MOST:
        runs += 1
        wall = rule.walls.next_wall(wall)
    # One that stands at the end of the gap anyway is the same run.
    return runs + (wall == gap.after) if runs else 0


def _within(entry: Entry, at: datetime) -> bool:
    return (entry.start_at is None or entry.start_at <= at) and (entry.end_at is None or at <= entry.end_at)


def hot_spots(zone: tzinfo, entries: Iterable[Entry]) -> Iterator[Finding]:
    """Full hours of the next day at which many entries run, midnight above all.

    Parameters:
        zone: that of the app, in which the times are told.
    """
    now = wall_ms()
    hours = _Hours(now)
    crowds: dict[int, list[str]] = defaultdict(list)
    for entry in entries:
        if entry.due is None or entry.jitter or "schedule" in entry.local:
            continue
        for instant in _runs_at(entry, zone, hours):
            crowds[instant].append(entry.name)
    crowded = sorted((at for at in crowds if len(crowds[at]) >= CROWD), key=lambda at: (-len(crowds[at]), at))
    if not crowded:
        return
    times = [f"{len(crowds[at])} at {from_ms(at).astimezone(zone):%H:%M}" for at in crowded[:5]]
    names = tuple(dict.fromkeys(name for at in crowded for name in crowds[at]))
    yield Finding(
        "hot-spot",
        "note",
        f"{counted(len(names), 'entry runs', 'entries run')} at the same full hours, without jitter: "
        + ", ".join(times)
        + (f" and at {len(crowded) - 5} more" if len(crowded) > 5 else ""),
        "Workers, databases and whatever the tasks call get all of it at once.",
        "Give entries that need not be so exact a jitter, such as jitter=300, or minutes of their own.",
        names,
    )


class _Hours(dict[tzinfo, list[int]]):
    """The full hours of the next day by the clocks of each zone, in milliseconds since 1970."""

    def __init__(self, now: int) -> None:
        self._first = now // _QUARTER + 1

    def __missing__(self, zone: tzinfo) -> list[int]:
        # The offsets of all zones that are in use are whole quarters of an hour.
        quarters = ((self._first + number) * _QUARTER for number in range(_DAY // _QUARTER))
        self[zone] = [at for at in quarters if not from_ms(at).astimezone(zone).minute]
        return self[zone]


def _runs_at(entry: Entry, zone: tzinfo, hours: _Hours) -> Iterator[int]:
    """Full hours at which an entry runs: two questions to its rule for each hour at most.

    One that runs every minute is left out: it is no more of a load at a full hour than at any other time.
    """
    rule = entry.rule(zone)
    if isinstance(rule, ZonedRule):
        at, full = entry.due, hours[rule.zone]
    elif isinstance(rule, Every):
        at, full = entry.due, hours[zone]
    else:  # one-offs and the sun; and code of others, of which nobody knows how long it takes
        return
    for hour in full:
        if at is not None and at < hour:
            at = _first_from(rule, at, hour)
        if at is None:
            return
        if at == hour and _within(entry, from_ms(hour)):
            at = next_ms(rule, hour)
            if at is None or at - hour > _MINUTE:
                yield hour


def _first_from(rule: ZonedRule | Every, at: int, hour: int) -> int | None:
    """The first occurrence after ``at``, which is one, that is not earlier than an hour."""
    return rule.first_ms_from(at, hour) if isinstance(rule, Every) else next_ms(rule, hour - 1)
