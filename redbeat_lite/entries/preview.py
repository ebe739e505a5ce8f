"""What will fire: the beat's own plan, played ahead without a beat."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from datetime import datetime, tzinfo
from itertools import islice, takewhile
from typing import Any, NamedTuple

from .. import instants
from ..public import public
from ..schedules import Question
from ..schedules.missed import WalkOn, by_count
from . import lifecycle
from .entry import Entry
from .freezes import Freezes
from .state import EntryState

_NONE = Freezes()


@public
class Upcoming(NamedTuple):
    """One occurrence to come: when it fires, of which entry, and the nominal time the schedule says."""

    at: datetime
    name: str
    nominal: datetime


def upcoming(entries: Iterable[Entry], *, now: int, until: int, limit: int, **how: Any) -> list[Upcoming]:
    """The occurrences of these entries from ``now`` to ``until`` (epoch milliseconds), in order, at most ``limit``.

    Parameters:
        how: as for :func:`walk`.
    """
    last = instants.from_ms(until)
    entries = (entry for entry in entries if entry.due is not None and entry.due <= until)
    return [*islice(takewhile(lambda each: each.at <= last, walk(entries, now=now, **how)), limit)]


def walk(
    entries: Iterable[Entry], *, now: int, zone: tzinfo, walk_on: WalkOn = by_count, freezes: Freezes = _NONE
) -> Iterator[Upcoming]:
    """All occurrences of these entries from ``now`` (epoch milliseconds) on, in order; they need not end.

    Those of an entry whose schedule has to be asked when the time has come end there. The run that makes up for missed
    ones is left out where it takes longer to find than somebody waits for it.

    Parameters:
        walk_on: how far to look for missed occurrences one by one; one that is over for all leaves the others out.
        freezes: what they hold comes at their ends.
    """
    queue: list[tuple[int, str, Entry, EntryState]] = [
        (max(entry.due, now), entry.name, entry, entry.known_state)
        for entry in entries
        if entry.due is not None and "schedule" not in entry.local
    ]
    heapq.heapify(queue)
    while queue:
        at, name, entry, state = heapq.heappop(queue)
        if isinstance(state.nominal, Question):
            continue
        plan, held = freezes.decide(entry, state, at, zone) or (lifecycle.plan(entry, state, at, zone, walk_on), None)
        if held is None and not plan.emit and plan.next is not None and plan.next <= at and not walk_on(()):
            plan = plan._replace(next=lifecycle.following(entry, plan.next, at, zone, walk_on))
        for nominal in plan.emit:
            yield Upcoming(instants.from_ms(at), name, instants.from_ms(nominal))
        after = lifecycle.dispatched(state, plan, 0)
        due = held or lifecycle.due_time(entry, after, zone)
        if due is not None:
            heapq.heappush(queue, (max(due, at), name, entry, after))
