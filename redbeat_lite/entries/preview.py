"""What will fire: the beat's own plan, played ahead without a beat."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, tzinfo
from itertools import islice, takewhile
from typing import Any, NamedTuple

from .._base import times
from .._base.public import public
from ..rules import Question
from ..rules.misfire import WalkOn, by_count
from . import lifecycle
from .entry import Entry
from .freezes import Freezes
from .state import EntryState

_NONE = Freezes()


@public
class Upcoming(NamedTuple):
    """One occurrence to come: when it fires, of which entry, and the nominal time the schedule
    says.
    """

    at: datetime
    name: str
    nominal: datetime


def upcoming(
    entries: Iterable[Entry], *, now: int, until: int, limit: int, **how: Any
) -> list[Upcoming]:
    """The occurrences of these entries from ``now`` to ``until`` (epoch milliseconds), in order, at
    most ``limit``.

    The entries come as for :func:`walk`.
    """
    last = times.from_ms(until)
    entries = takewhile(lambda entry: entry.due is not None and entry.due <= until, entries)
    return [*islice(takewhile(lambda each: each.at <= last, walk(entries, now=now, **how)), limit)]


def walk(
    entries: Iterable[Entry],
    *,
    now: int,
    zone: tzinfo,
    walk_on: WalkOn = by_count,
    freezes: Freezes = _NONE,
    ahead: Callable[[Entry], Entry] | None = None,
    once: bool = False,
) -> Iterator[Upcoming]:
    """All occurrences of these entries from ``now`` (epoch milliseconds) on, in order; they need
    not end.

    Those of an entry whose schedule has to be asked when the time has come end there. The run that
    makes up for missed ones is left out where it takes longer to find than somebody waits for it.

    Parameters:
        entries: in the order of their due times, those that are never due last. They are taken one
            by one when their time has come, so that the first occurrences of many cost no more than
            those of a few.
        walk_on: how far to look for missed occurrences one by one; one that is over for all leaves
            the others out.
        freezes: what they hold comes at their ends.
        ahead: makes of an entry the one to walk in its place, which is not due sooner.
        once: whether the first occurrence of each is all that is wanted.
    """
    waiting = takewhile(lambda entry: entry.due is not None, entries)
    coming, queue = next(waiting, None), list[tuple[int, int, str, Entry, EntryState]]()
    while True:
        # No occurrence of an entry, nor of one that is due after it, comes before its due time:
        # whatever holds it up.
        while coming is not None and (not queue or _place(coming, now) <= queue[0][:2]):
            entry = coming if ahead is None else ahead(coming)
            if entry.due is not None:
                heapq.heappush(queue, (*_place(entry, now), entry.name, entry, entry.known_state))
            coming = next(waiting, None)
        if not queue:
            return
        at, _, name, entry, state = heapq.heappop(queue)
        if isinstance(state.nominal, Question):
            continue
        held = freezes.until(at, entry)
        if held is not None:
            heapq.heappush(queue, (held, held, name, entry, state))
            continue
        plan = lifecycle.plan(entry, state, at, zone, walk_on)
        if not plan.emit and not walk_on(()):
            # Where there are more to walk through, there is no time for it: the entry goes on after
            # them, but for one that its jitter may still hold back. What comes next after all of
            # them were looked at is later than that.
            plan = plan._replace(
                next=lifecycle.following(entry, plan.next, at - entry.jitter_ms, zone, walk_on)
            )
        for nominal in plan.emit[:1] if once else plan.emit:
            yield Upcoming(times.from_ms(at), name, times.from_ms(nominal))
        after = lifecycle.dispatched(state, plan, 0)
        due = lifecycle.due_time(entry, after, zone)
        if due is not None and not (once and plan.emit):
            heapq.heappush(queue, (max(due, at), due, name, entry, after))


def _place(entry: Entry, now: int) -> tuple[int, int]:
    """When an entry comes first, of several that are late the one that is so for longest."""
    assert entry.due is not None
    return max(entry.due, now), entry.due
