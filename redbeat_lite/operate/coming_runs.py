"""Runs to come, as the beat itself will plan them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import NamedTuple

from .._base.times import to_ms
from ..entries import lifecycle
from ..entries.clock_change_words import hazard
from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.preview import walk
from ..rules.misfire import WalkOn
from ..store.time_limits import brief_walk

#: Time to look ahead for the runs of one entry.
TEN_YEARS = timedelta(days=3653)


class ComingRun(NamedTuple):
    """A run to come.

    Parameters:
        name: of its entry.
        at: when it is sent.
        nominal: the instant of the schedule.
        zone: the zone to show it in.
        hazard: effect of a clock change on the run, in words.
    """

    name: str
    at: datetime
    nominal: datetime
    zone: tzinfo
    hazard: str | None


def next_runs(entry: Entry, zone: tzinfo, freezes: Freezes, limit: int) -> list[ComingRun]:
    """Return the next runs of one entry within ten years."""
    now = datetime.now(UTC)
    runs = runs_between([entry], now, now + TEN_YEARS, zone, freezes)
    return [*islice(runs, limit)]


def runs_between(
    entries: Iterable[Entry],
    first: datetime,
    last: datetime,
    zone: tzinfo,
    freezes: Freezes,
    shown_zone: tzinfo | None = None,
) -> Iterator[ComingRun]:
    """Yield the runs of entries between two instants, in order.

    Parameters:
        entries: in the order of their due times.
        zone: of the app.
        shown_zone: the zone to show all runs in; by default the zone of each entry.
    """
    start = to_ms(first)
    walk_on = brief_walk()
    moved: dict[str, Entry] = {}

    def move(entry: Entry) -> Entry:
        moved[entry.name] = _moved(entry, start, zone, walk_on)
        return moved[entry.name]

    now = to_ms(datetime.now(UTC))
    runs = walk(entries, now=now, zone=zone, walk_on=walk_on, freezes=freezes, ahead=move)
    for run in runs:
        if run.at > last:
            return
        if run.at >= first:
            entry = moved[run.name]
            change = hazard(entry.rule(zone), to_ms(run.nominal))
            own_zone = entry.zone(zone)
            yield ComingRun(run.name, run.at, run.nominal, shown_zone or own_zone, change)


def _moved(entry: Entry, start: int, zone: tzinfo, walk_on: WalkOn) -> Entry:
    """Return the entry as it will be shortly before ``start`` (epoch ms).

    This spares the walk through all runs before. An entry that counts its runs needs that walk.
    """
    if entry.due is None or entry.max_runs is not None:
        return entry
    state = entry.known_state
    before = start - entry.jitter_ms - 1
    if state.nominal is None or state.nominal >= before:
        return entry
    nominal = lifecycle.ahead(entry, state, before, zone, walk_on)
    twin = copy(entry)
    twin.state = replace(state, nominal=nominal)
    twin.due = lifecycle.due_time(twin, twin.state, zone)
    return twin
