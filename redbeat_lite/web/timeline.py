"""Timeline: a heat map of the coming day, and lanes with the past and coming runs of entries."""

from __future__ import annotations

from datetime import datetime
from itertools import islice, takewhile
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

#: Name of a span -> length of the lanes in milliseconds. A quarter of it is past.
_SPANS = {"1h": 3_600_000, "6h": 21_600_000, "1d": 86_400_000, "7d": 604_800_000}

#: Width of a lane in units of its drawing.
_WIDTH = 1000


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
    """The past and coming runs of an entry.

    Parameters:
        entry: the entry.
        past: each past run, as its place along the lane and its recorded row.
        coming: places of the coming runs along the lane.
    """

    entry: Entry
    past: list[tuple[int, Any]]
    coming: list[int]


class Window(NamedTuple):
    """Time that the lanes show, in epoch milliseconds."""

    now: int
    span: int

    @property
    def start(self) -> int:
        """First instant. A quarter of the span is past."""
        return self.now - self.span // 4

    def quarters(self) -> list[int]:
        """Return the start of each quarter of the span, and the end."""
        return [self.start + self.span * part // 4 for part in range(5)]

    def place(self, instant: int) -> int:
        """Return how far along its lane an instant is drawn, from 0 to ``_WIDTH``."""
        return _WIDTH * (instant - self.start) // self.span


def timeline(site: SharedParts, params: Params) -> View:
    """Show the heat map of all entries, and the lanes of the entries that match the filter.

    Without a filter, there are fewer lanes.
    """
    selected = filtered(site, params)
    span = params.get("span", "")
    if span not in _SPANS:
        span = "1d"
    window = Window(wall_ms(), _SPANS[span])
    sample = selected.sample()
    most = _LANES_UNFILTERED if selected.selection.is_all else _LANES
    entries = [*islice(sample, most)]
    # This sets ``entry.rows``, the recorded runs, of all these entries in one round trip.
    site.schedules.load_runs(entries)
    return View(
        "timeline.html",
        {
            **_heat(site, window.now),
            "lanes": [_lane(site, entry, window, sample.freezes) for entry in entries],
            "quarters": [from_ms(start).astimezone(site.zone) for start in window.quarters()],
            "width": _WIDTH,
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
    site: SharedParts,
    entry: Entry,
    window: Window,
    freezes: Freezes,
) -> Lane:
    """Return the lane of one entry, with its past and coming runs at their places in the window."""
    # with_sent() adds, as waiting, the runs that were sent and have no record yet.
    rows = with_sent(entry, entry.rows, site.settings.history, now=window.now, limit=_PAST)
    past = [(window.place(row.nominal), row) for row in rows if row.nominal >= window.start]
    end = window.start + window.span
    runs = walk([entry], now=window.now, freezes=freezes)
    instants = (to_ms(run.at) for run, _ in islice(runs, _NEXT))
    coming = [window.place(ms) for ms in takewhile(lambda ms: ms <= end, instants)]
    return Lane(entry, past, coming)
