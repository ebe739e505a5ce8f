"""Timeline: a heat map of the coming day, and lanes with the past and coming runs of entries."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from math import ceil, log1p
from typing import Any, NamedTuple

from .._base.clock import wall_ms
from .._base.times import from_ms, to_ms
from ..api.run_history import with_sent
from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.preview import walk
from .call import Params, SharedParts, View, filtered, selection_words

#: Hours that the heat map shows.
_HOURS = 24

#: Count of shades for minutes in which entries run.
_SHADES = 5

#: Least count of entries in a minute for the darkest shade.
_DARKEST = 10

#: Maximum number of lanes that are shown if a filter is set.
_LANES = 100

#: Maximum number of lanes that are shown if no filter is set.
_LANES_UNFILTERED = 30

#: Maximum number of past runs in a lane.
_PAST = 20

#: Maximum number of coming runs in a lane. If more may follow, a line is drawn from the last of
#: them to the right end of the lane.
_NEXT = 20

#: Name of a span -> length of the lanes in seconds. A quarter of it is past.
_SPANS = {"1h": 3_600, "6h": 21_600, "1d": 86_400, "7d": 604_800}


class HeatRow(NamedTuple):
    """An hour of the heat map.

    Parameters:
        start: start of the hour.
        cells: minute, count of entries and shade, for each minute in which entries run next.
        total: count of entries that run next in this hour.
        due_before: count of entries that run next before this hour. It is the offset of the hour in
            the list of entries.
    """

    start: datetime
    cells: list[tuple[int, int, int]]
    total: int
    due_before: int


class Lane(NamedTuple):
    """The past and coming runs of an entry. A place is a time in seconds since the lane begins.

    Parameters:
        entry: the entry.
        past: each past run, as its place and its recorded row.
        coming: places of the coming runs.
    """

    entry: Entry
    past: list[tuple[int, Any]]
    coming: list[int]


def timeline(site: SharedParts, params: Params) -> View:
    """Show the heat map of all entries, and the lanes of the entries that match the filter.

    Without a filter, there are fewer lanes.
    """
    selected = filtered(site, params)
    span = params.get("span", "")
    if span not in _SPANS:
        span = "1d"
    now = wall_ms()
    length = _SPANS[span]
    start = now // 1000 - length // 4
    sample = selected.sample()
    most = _LANES_UNFILTERED if selected.selection.is_all else _LANES
    entries = [*islice(sample, most)]
    # This sets ``entry.rows``, the recorded runs, of all these entries in one round trip.
    site.schedules.load_runs(entries)
    lanes = [_lane(site, entry, start, length, now, sample.freezes) for entry in entries]
    return View(
        "timeline.html",
        {
            **_heat(site, now),
            "lanes": lanes,
            "quarters": [
                datetime.fromtimestamp(start + length // 4 * part, site.zone) for part in range(5)
            ],
            "length": length,
            "most": _NEXT,
            "span": span,
            "spans": _SPANS,
            "words": selection_words(selected.selection),
        },
    )


def _heat(site: SharedParts, now: int) -> dict[str, Any]:
    """Return the data of the heat map, which begins with the present hour.

    Returns:
        ``rows``: a row for each hour. ``before``: count of the entries whose next run is before the
        first hour, such as overdue ones. ``after``: count of those whose next run is after the last
        hour.
    """
    hour_start = from_ms(now).astimezone(site.zone).replace(minute=0, second=0, microsecond=0)
    first = to_ms(hour_start)
    edges = [from_ms(first + 60_000 * minute) for minute in range(60 * _HOURS + 1)]
    # ``before`` counts the entries that are due before the first edge. ``after`` counts the entries
    # that are due after the last edge. ``counts`` has a count for each minute between.
    before, *counts, after = site.schedules.due_counts(edges)
    # The shade grows with the logarithm of the count, so that minutes with few entries differ, too.
    # At least ``_DARKEST`` entries in a minute are needed for the darkest shade.
    scale = _SHADES / log1p(max(*counts, _DARKEST))
    rows = []
    due_before = before
    for start in range(0, len(counts), 60):
        hour = counts[start : start + 60]
        cells = [
            (minute, count, ceil(scale * log1p(count)))
            for minute, count in enumerate(hour)
            if count
        ]
        rows.append(HeatRow(edges[start].astimezone(site.zone), cells, sum(hour), due_before))
        due_before += sum(hour)
    return {"before": before, "rows": rows, "after": after}


def _lane(
    site: SharedParts, entry: Entry, start: int, length: int, now: int, freezes: Freezes
) -> Lane:
    """Return the lane of one entry, with its past and coming runs at their places.

    Parameters:
        start: start of the lane, in epoch seconds.
        length: length of the lane, in seconds.
        now: epoch milliseconds.
    """
    # with_sent() adds, as waiting, the runs that were sent and have no record yet.
    rows = with_sent(entry, entry.rows, site.settings.history, now=now, limit=_PAST)
    past = [(row.nominal // 1000 - start, row) for row in rows]
    coming = []
    for run, _ in islice(walk([entry], now=now, freezes=freezes), _NEXT):
        place = int(run.at.timestamp()) - start
        if place > length:
            break
        coming.append(place)
    return Lane(entry, [(place, row) for place, row in past if place >= 0], coming)
