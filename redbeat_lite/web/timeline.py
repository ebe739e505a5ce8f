"""Timeline: the entries that run next in each minute of a day, and the runs of some around now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from math import ceil, log1p
from typing import Any, NamedTuple

from .._base.clock import wall_ms
from .._base.times import from_ms, to_ms
from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.last_runs import with_sent
from ..entries.preview import upcoming
from ..rules.misfire import WalkOn
from ..store.time_limits import brief_walk
from .call import Call, EntryFilter, SharedParts
from .http import Response

#: Hours that the heat map shows.
_HOURS = 24

#: Shades of a minute that has entries.
_SHADES = 5

#: Entries in a minute that have the darkest shade, if no other minute has more.
_DARKEST = 10

#: Most lanes of entries that a filter leaves.
_LANES = 100

#: Most lanes without a filter.
_LANES_UNFILTERED = 30

#: Most past runs of a lane.
_PAST = 20

#: Most runs to come of a lane.
_NEXT = 20

#: Spans of the lanes in milliseconds. A quarter of a span is past.
_SPANS = {"1h": 3_600_000, "6h": 21_600_000, "1d": 86_400_000, "7d": 604_800_000}

#: Width of a lane in units of its drawing.
_WIDTH = 1000


class HeatRow(NamedTuple):
    """An hour of the heat map.

    Parameters:
        start: its beginning.
        cells: minute, number of entries and shade, of the minutes that have entries.
        total: the entries of the hour.
        due_before: the entries of all hours before it, which the list of entries leaves out.
    """

    start: datetime
    cells: list[tuple[int, int, int]]
    total: int
    due_before: int


class Lane(NamedTuple):
    """The runs of an entry around now.

    Parameters:
        entry: whose runs they are.
        past: the place and the recorded row of each past run.
        coming: the number of runs to come that are drawn.
        path: the path of an SVG that draws them.
    """

    entry: Entry
    past: list[tuple[int, Any]]
    coming: int
    path: str


def timeline(call: Call) -> Response:
    """Show the heat map of all entries, and the lanes of those that the filter leaves."""
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
        """First instant; a quarter of the span is past."""
        return self.now - self.span // 4

    @property
    def end(self) -> int:
        """Last instant."""
        return self.start + self.span

    def place(self, instant: int) -> int:
        """Return where an instant is drawn."""
        return _WIDTH * (instant - self.start) // self.span


def _read(site: SharedParts, entry_filter: EntryFilter, span: int) -> dict[str, Any]:
    """Read the data of the timeline's page."""
    window = Window(wall_ms(), span)
    sample = entry_filter.select(site.schedules).sample()
    most = _LANES if any(entry_filter) else _LANES_UNFILTERED
    entries = [*islice(sample, most)]
    # The lanes need the last runs, which are read with the heat map.
    heat = _heat(site, window.now, entries)
    # One second for the previews of all lanes together.
    walk_on = brief_walk()
    lanes = [_lane(site, entry, window, sample.freezes, walk_on) for entry in entries]
    return {**heat, "lanes": lanes, "marks": _marks(site, window)}


def _marks(site: SharedParts, window: Window) -> list[str]:
    """Return the times at the quarters of a window."""
    form = "%a %H:%M" if window.span > _SPANS["1d"] else "%H:%M"
    quarters = [from_ms(window.start + window.span * part // 4) for part in range(5)]
    return [instant.astimezone(site.zone).strftime(form) for instant in quarters]


def _heat(site: SharedParts, now: int, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the heat map; the same round trip reads the last runs of these entries."""
    hour_start = from_ms(now).astimezone(site.zone).replace(minute=0, second=0, microsecond=0)
    first = to_ms(hour_start)
    edges = [from_ms(first + 60_000 * minute) for minute in range(60 * _HOURS + 1)]
    before, *counts, after = site.schedules.due_counts(edges, entries)
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
    walk_on: WalkOn,
) -> Lane:
    """Return the lane of one entry: its past runs, and its runs to come as an SVG path."""
    rows = with_sent(entry, entry.rows, site.settings.history, window.now, _PAST)
    past = [(window.place(row.nominal), row) for row in rows if row.nominal >= window.start]
    runs = upcoming(
        [entry],
        now=window.now,
        until=window.end,
        limit=_NEXT,
        zone=site.zone,
        walk_on=walk_on,
        freezes=freezes,
    )
    places = [window.place(to_ms(run.at)) for run in runs]
    path = "".join(f"M{place} 6V14" for place in places)
    if len(places) == _NEXT:
        # A line to the right end says that there are more.
        path += f"M{places[-1]} 10H{_WIDTH}"
    return Lane(entry, past, len(places), path)
