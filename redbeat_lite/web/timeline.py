"""Timeline: a heat map of the coming day, and lanes with the past and coming runs of entries."""

from __future__ import annotations

from datetime import datetime
from itertools import islice, takewhile
from math import ceil, log1p
from typing import Any, NamedTuple

from .._base.clock import wall_ms
from .._base.times import from_ms, to_ms
from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.last_runs import with_sent
from ..entries.preview import walk
from .call import Call, EntryFilter, SharedParts
from .http import Response

#: Hours that the heat map shows.
_HOURS = 24

#: Count of shades for minutes in which entries run.
_SHADES = 5

#: Least count of entries in a minute for the darkest shade.
_DARKEST = 10

#: Maximum number of lanes with a filter.
_LANES = 100

#: Maximum number of lanes without a filter.
_LANES_UNFILTERED = 30

#: Maximum number of past runs in a lane.
_PAST = 20

#: Maximum number of coming runs in a lane. If there may be more, a line to the right end says so.
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
        past: place and recorded row of each past run.
        coming: count of the coming runs that are drawn.
        path: path of an SVG that draws the coming runs.
    """

    entry: Entry
    past: list[tuple[int, Any]]
    coming: int
    path: str


def timeline(call: Call) -> Response:
    """Show the heat map of all entries, and the lanes of the entries that match the filter."""
    entry_filter = call.filter
    span = call.params.get("span", "")
    if span not in _SPANS:
        span = "1d"
    data = call.read(_read, entry_filter, _SPANS[span])
    words = entry_filter.words()
    return call.page("timeline.html", span=span, spans=_SPANS, width=_WIDTH, words=words, **data)


class Window(NamedTuple):
    """Time that the lanes show, in epoch milliseconds."""

    now: int
    span: int

    @property
    def start(self) -> int:
        """First instant. A quarter of the span is past."""
        return self.now - self.span // 4

    def place(self, instant: int) -> int:
        """Return the place at which an instant is drawn, in units of a lane."""
        return _WIDTH * (instant - self.start) // self.span


def _read(site: SharedParts, entry_filter: EntryFilter, span: int) -> dict[str, Any]:
    """Read the data of the timeline's page.

    Parameters:
        entry_filter: filter of the lanes. Without one, there are fewer lanes.
        span: length of the lanes in milliseconds.
    """
    window = Window(wall_ms(), span)
    sample = entry_filter.select(site.schedules).sample()
    most = _LANES if any(entry_filter) else _LANES_UNFILTERED
    entries = [*islice(sample, most)]
    site.schedules.load_runs(entries)
    heat = _heat(site, window.now)
    lanes = [_lane(site, entry, window, sample.freezes) for entry in entries]
    return {**heat, "lanes": lanes, "marks": _marks(site, window)}


def _marks(site: SharedParts, window: Window) -> list[str]:
    """Return the times at the start, the quarters and the end of a window, as labels."""
    form = "%a %H:%M" if window.span > _SPANS["1d"] else "%H:%M"
    quarters = [from_ms(window.start + window.span * part // 4) for part in range(5)]
    return [instant.astimezone(site.zone).strftime(form) for instant in quarters]


def _heat(site: SharedParts, now: int) -> dict[str, Any]:
    """Return the data of the heat map, which begins with the present hour.

    Returns:
        ``rows``: a row for each hour. ``before`` and ``after``: count of the entries that run next
        before the first hour, such as overdue ones, and after the last.
    """
    hour_start = from_ms(now).astimezone(site.zone).replace(minute=0, second=0, microsecond=0)
    first = to_ms(hour_start)
    edges = [from_ms(first + 60_000 * minute) for minute in range(60 * _HOURS + 1)]
    # Of the counts, the first is of the time before all edges, and the last of the time after them.
    before, *counts, after = site.schedules.due_counts(edges)
    # The shade grows with the logarithm of the count, so that minutes with few entries differ, too.
    scale = _SHADES / log1p(max(*counts, _DARKEST))
    rows = []
    due_before = before
    for start in range(0, len(counts), 60):
        hour = counts[start : start + 60]
        cells = [(minute, n, ceil(scale * log1p(n))) for minute, n in enumerate(hour) if n]
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
    rows = with_sent(entry, entry.rows, site.settings.history, window.now, _PAST)
    past = [(window.place(row.nominal), row) for row in rows if row.nominal >= window.start]
    end = window.start + window.span
    runs = walk([entry], now=window.now, zone=site.zone, freezes=freezes)
    instants = (to_ms(run.at) for run, _ in islice(runs, _NEXT))
    places = [window.place(ms) for ms in takewhile(lambda ms: ms <= end, instants)]
    # SVG: "M" moves the pen, "V" and "H" draw a vertical and a horizontal line.
    path = "".join(f"M{place} 6V14" for place in places)
    if len(places) == _NEXT:
        # There may be more runs, so draw a line to the right end.
        path += f"M{places[-1]} 10H{_WIDTH}"
    return Lane(entry, past, len(places), path)
