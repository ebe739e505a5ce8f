"""The page of times: how many entries run next in each minute of a day, and the runs of some entries around now."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import ceil, log1p
from typing import Any

from ..clock import wall_ms
from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.last_runs import with_sent
from ..entries.preview import upcoming
from ..instants import from_ms, to_ms
from ..storage.patience import briefly
from .bulk import in_words, selected
from .messages import Response
from .site import Call, Site

#: Hours of the heat, and its shades beside none; as few entries as this never have the darkest.
_HOURS, _SHADES, _MANY = 24, 5, 10

#: Entries with a lane: of a filter, or else; runs of each, past and to come, at most.
_LANES, _UNASKED, _PAST, _NEXT = 100, 30, 20, 20

#: Milliseconds that lanes span, of which a quarter is past; how wide one is.
_SPANS = {"1h": 3_600_000, "6h": 21_600_000, "1d": 86_400_000, "7d": 604_800_000}
_WIDTH = 1000


def page(call: Call) -> Response:
    """The heat, and the lanes of the entries that a filter leaves."""
    wanted = call.texts("q", "tag", "task")
    span = call.given.get("span", "")
    span = span if span in _SPANS else "1d"
    found = call.site.shared.read(("timeline", wanted, span), lambda: _found(call.site, wanted, _SPANS[span]))
    words = in_words(call.site, *wanted)
    return call.page("timeline.html", span=span, spans=_SPANS, width=_WIDTH, words=words, **found)


def _found(site: Site, wanted: tuple[str, ...], span: int) -> dict[str, Any]:
    now, most = wall_ms(), _LANES if any(wanted) else _UNASKED
    sample = selected(site, *wanted).sample()
    entries = [*islice(sample, most)]
    start, form = now - span // 4, "%a %H:%M" if span > _SPANS["1d"] else "%H:%M"
    marks = [from_ms(start + span * part // 4).astimezone(site.zone).strftime(form) for part in range(5)]
    heat = _heat(site, now, entries)
    return {**heat, "lanes": _lanes(site, entries, sample.freezes, now, start, span), "marks": marks}


def _heat(site: Site, now: int, entries: Sequence[Entry]) -> dict[str, Any]:
    """Rows of an hour: when it begins, cells of minutes with entries, how many those are, and all due before it.
    With it, the last runs of these entries are read."""
    first = to_ms(from_ms(now).astimezone(site.zone).replace(minute=0, second=0, microsecond=0))
    edges = [from_ms(first + 60_000 * minute) for minute in range(60 * _HOURS + 1)]
    before, *counts, after = site.schedules.due_counts(edges, entries)
    scale, rows, due = _SHADES / log1p(max(*counts, _MANY)), [], before
    for hour in range(0, len(counts), 60):
        minutes = enumerate(counts[hour : hour + 60])
        cells = [(minute, number, ceil(scale * log1p(number))) for minute, number in minutes if number]
        total = sum(number for _, number, _ in cells)
        rows.append((edges[hour].astimezone(site.zone), cells, total, due))
        due += total
    return {"before": before, "rows": rows, "after": after}


def _lanes(
    site: Site, entries: Sequence[Entry], freezes: Freezes, now: int, start: int, span: int
) -> list[tuple[Any, ...]]:
    """Each entry, with its past runs and where they are, and where those to come are, as the path of an SVG has it."""
    how = {"zone": site.zone, "walk_on": briefly(), "freezes": freezes}
    lanes = []
    for entry in entries:
        rows = with_sent(entry, entry.rows, site.settings.history, now, _PAST)
        past = [(_at(row.nominal, start, span), row) for row in rows if row.nominal >= start]
        coming = upcoming([entry], now=now, until=start + span, limit=_NEXT, **how)
        places = [_at(to_ms(run.at), start, span) for run in coming]
        path = "".join(f"M{place} 6V14" for place in places)
        lanes.append((entry, past, len(places), path + (f"M{places[-1]} 10H{_WIDTH}" if len(places) == _NEXT else "")))
    return lanes


def _at(instant: int, start: int, span: int) -> int:
    return _WIDTH * (instant - start) // span
