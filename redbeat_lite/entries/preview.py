"""Preview of coming runs, planned by the code that the beat uses."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
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


class _Turn(NamedTuple):
    """Next time at which an entry may fire. Turns are sorted by this time, due time and name.

    Parameters:
        at: time at which the entry fires, in epoch ms. All late entries fire at the present.
        due: due time, in epoch ms.
    """

    at: int
    due: int
    name: str
    entry: Entry
    state: EntryState


def upcoming_runs(
    entries: Iterable[Entry],
    *,
    now: int,
    advance: Callable[[Entry], Entry] = lambda entry: entry,
    first_only: bool = False,
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
        advance: returns the entry to use in place of its argument. The due time of the returned
            entry must not be earlier than that of the argument.
        first_only: yield only the first occurrence of each entry.
    """
    remaining = iter(entries)
    taken: set[str] = set()
    # Heap of the next turn of each taken entry, and the first turn of the next entry to take.
    turns: list[_Turn] = []

    def add_turn(entry: Entry, state: EntryState, due: int | None, now: int) -> None:
        """Add the next turn of an entry, unless the entry is never due."""
        if due is not None:
            heapq.heappush(turns, _Turn(max(due, now), due, entry.name, entry, state))

    def read_next() -> None:
        """Add the first turn of the next entry to take."""
        for entry in remaining:
            # An entry that fires while they are read may come again with its new due time.
            if entry.name not in taken:
                add_turn(entry, entry.state, entry.due, now)
                return

    read_next()
    while turns:
        at, _, name, entry, state = heapq.heappop(turns)
        if name not in taken:  # This is the first turn of the entry.
            taken.add(name)
            entry = advance(entry)
            add_turn(entry, entry.state, entry.due, now)
            read_next()
        elif isinstance(state.nominal, Question):
            # Ask the schedule. If it answers with another Question (a time at which to ask again),
            # yield no further occurrences of this entry.
            answer = entry.rule.next_ms(state.nominal.after)
            if not isinstance(answer, Question):
                add_turn(entry, replace(state, nominal=answer), answer, at)
        else:
            state = lifecycle.after_pause(state, at)
            # Nobody needs the number of missed occurrences, and each may take long to find.
            plan = lifecycle.plan(entry, state, at, most_counted=1)
            emitted = plan.emit[:1] if first_only else plan.emit
            for nominal in emitted:
                yield Upcoming(times.from_ms(at), name, times.from_ms(nominal)), entry
            if not (first_only and emitted):
                state = lifecycle.dispatched(state, plan, locked_out=0)
                add_turn(entry, state, lifecycle.due_time(entry, state), at)
