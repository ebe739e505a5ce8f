"""Preview of coming runs, planned by the code that the beat uses."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import takewhile
from typing import NamedTuple

from msgspec.structs import replace

from .._base import times
from .._base.public import public
from ..rules import Question
from . import lifecycle
from .entry import Entry
from .state import EntryState


@public
class Upcoming(NamedTuple):
    """Occurrence to come.

    Parameters:
        at: time at which it fires.
        name: name of the entry.
        nominal: nominal time, which the schedule says.
    """

    at: datetime
    name: str
    nominal: datetime


def walk(
    entries: Iterable[Entry],
    *,
    now: int,
    ahead: Callable[[Entry], Entry] = lambda entry: entry,
    once: bool = False,
) -> Iterator[tuple[Upcoming, Entry]]:
    """Yield the occurrences of these entries from ``now`` on, in order, maybe endlessly.

    With each occurrence comes its entry.

    A user's schedule is asked in advance. If it does not name its next occurrence, the occurrences
    of its entry end there.

    Parameters:
        entries: in the order of their due times; entries that are never due come last. An entry is
            taken from them only when its due time has come, so the first occurrences of many
            entries cost no more than those of a few.
        now: the present in epoch ms; during a freeze, its end.
        ahead: returns the entry to use in place of its argument. The due time of the returned entry
            must not be earlier than that of the argument.
        once: yield only the first occurrence of each entry.
    """
    waiting = takewhile(lambda entry: entry.due is not None, entries)
    coming = next(waiting, None)
    # Heap of (time at which it fires, due time, name, entry, state).
    queue = list[tuple[int, int, str, Entry, EntryState]]()
    while True:
        # Entries come in the order of their due times, and have no occurrence before that time. So
        # the heap needs only the entries that are due no later than its first item.
        while coming is not None and (not queue or _place(coming, now) <= queue[0][:2]):
            entry = ahead(coming)
            if entry.due is not None:
                heapq.heappush(queue, (*_place(entry, now), entry.name, entry, entry.state))
            coming = next(waiting, None)
        if not queue:
            return
        at, _, name, entry, state = heapq.heappop(queue)
        if isinstance(state.nominal, Question):
            # Ask the schedule. If it answers with another Question (a time at which to ask again),
            # yield no further occurrences of this entry.
            nominal = entry.rule.next_ms(state.nominal.after)
            if nominal is not None and not isinstance(nominal, Question):
                after = replace(state, nominal=nominal)
                heapq.heappush(queue, (max(nominal, at), nominal, name, entry, after))
            continue
        state = lifecycle.after_pause(state, at)
        # Nobody needs the number of missed occurrences, and each may take long to find.
        plan = lifecycle.plan(entry, state, at, most_counted=1)
        emitted = plan.emit[:1] if once else plan.emit
        for nominal in emitted:
            yield Upcoming(times.from_ms(at), name, times.from_ms(nominal)), entry
        if once and emitted:
            continue
        after = lifecycle.dispatched(state, plan, locked_out=0)
        due = lifecycle.due_time(entry, after)
        if due is not None:
            heapq.heappush(queue, (max(due, at), due, name, entry, after))


def _place(entry: Entry, now: int) -> tuple[int, int]:
    """Return the sort key of an entry: the time at which it fires, and its due time.

    All late entries fire now; the one with the earliest due time comes first.
    """
    assert entry.due is not None
    return max(entry.due, now), entry.due
