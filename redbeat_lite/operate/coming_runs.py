"""Runs to come, calculated as the beat will plan them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from .._base.times import to_ms
from ..entries import lifecycle
from ..entries.entry import Entry
from ..entries.freeze import Freeze
from ..entries.preview import upcoming_runs
from ..rules.clock_changes import hazard

#: How far into the future the next runs of one entry are listed.
TEN_YEARS = timedelta(days=3653)


class ComingRun(NamedTuple):
    """A run to come.

    Parameters:
        name: name of the entry.
        at: when the run is sent.
        nominal: instant of the schedule, without jitter.
        zone: time zone in which the run is shown.
        hazard: effect of a clock change on the run, in words; ``None``: there is none.
    """

    name: str
    at: datetime
    nominal: datetime
    zone: tzinfo
    hazard: str | None


def next_runs(entry: Entry, freeze: Freeze | None, limit: int) -> list[ComingRun]:
    """Return the next runs of one entry, at most ``limit``, that come within ten years.

    Parameters:
        freeze: as for :func:`runs_between`.
    """
    now = datetime.now(UTC)
    return [*islice(runs_between([entry], now, now + TEN_YEARS, freeze), limit)]


def runs_between(
    entries: Iterable[Entry],
    first: datetime,
    last: datetime,
    freeze: Freeze | None,
) -> Iterator[ComingRun]:
    """Yield the runs of entries between two instants, in order of time.

    Runs that clock changes move or merge have a ``hazard``.

    Parameters:
        entries: the entries, ordered by due time.
        freeze: freeze that holds at present. Nothing fires before its end.
    """
    now = to_ms(datetime.now(UTC) if freeze is None else freeze.until)
    # Skip the runs of each entry before ``first``, which need not be calculated.
    advance = partial(_advanced, start=to_ms(first), now=now)
    for run, entry in upcoming_runs(entries, now=now, advance=advance):
        if run.at > last:
            return
        # Entries with ``max_runs`` also yield their runs before ``first``; see _advanced().
        if run.at >= first:
            change = hazard(entry.rule, to_ms(run.nominal))
            yield ComingRun(run.name, run.at, run.nominal, entry.zone, change)


def _advanced(entry: Entry, start: int, now: int) -> Entry:
    """Return an entry with the state that it will have shortly before ``start``, in epoch ms.

    An entry that is never due is returned unchanged, and one whose next run comes at ``start`` or
    later. So is an entry with ``max_runs``, because its runs before ``start`` must be counted.

    Parameters:
        now: when late entries fire, in epoch ms.
    """
    if entry.due is None or entry.max_runs is not None or max(entry.due, now) >= start:
        return entry
    advanced = copy(entry)
    nominal = lifecycle.ahead(entry, entry.state, start - 1)
    lifecycle.set_state(advanced, replace(entry.state, nominal=nominal))
    return advanced
