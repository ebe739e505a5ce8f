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
    """Next time at which an entry may fire. Turns are sorted by their places, and then by names.

    Parameters:
        place: as :func:`_place` returns it.
    """

    place: tuple[int, int]
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
    following = next(remaining, None)
    taken: set[str] = set()
    # Heap of the next turn of each entry that was taken.
    turns: list[_Turn] = []
    while True:
        # Entries come in the order of their due times, and have no occurrence before that time. So
        # take only the entries that come before the first turn.
        while following is not None and _comes_first(following.due, turns, now):
            # If an entry fires while the entries are read, it may come again with its new due time.
            if following.name not in taken:
                taken.add(following.name)
                entry = advance(following)
                _add_turn(turns, entry, entry.state, entry.due, now)
            following = next(remaining, None)
        if not turns:
            return
        turn = heapq.heappop(turns)
        at, _ = turn.place
        entry = turn.entry
        if isinstance(turn.state.nominal, Question):
            # Ask the schedule. If it answers with another Question (a time at which to ask again),
            # yield no further occurrences of this entry.
            answer = entry.rule.next_ms(turn.state.nominal.after)
            if not isinstance(answer, Question):
                _add_turn(turns, entry, replace(turn.state, nominal=answer), answer, at)
            continue
        state = lifecycle.after_pause(turn.state, at)
        # Nobody needs the number of missed occurrences, and each may take long to find.
        plan = lifecycle.plan(entry, state, at, most_counted=1)
        emitted = plan.emit[:1] if first_only else plan.emit
        for nominal in emitted:
            yield Upcoming(times.from_ms(at), entry.name, times.from_ms(nominal)), entry
        if first_only and emitted:
            continue
        state = lifecycle.dispatched(state, plan, locked_out=0)
        _add_turn(turns, entry, state, lifecycle.due_time(entry, state), at)


def _comes_first(due: int | None, turns: list[_Turn], now: int) -> bool:
    """Return whether an entry with this due time comes no later than the first turn."""
    return due is not None and (not turns or _place(due, now) <= turns[0].place)


def _add_turn(
    turns: list[_Turn], entry: Entry, state: EntryState, due: int | None, now: int
) -> None:
    """Add the next turn of an entry to the heap, unless the entry is never due."""
    if due is not None:
        heapq.heappush(turns, _Turn(_place(due, now), entry.name, entry, state))


def _place(due: int, now: int) -> tuple[int, int]:
    """Return where an entry comes in the order of turns: when it fires, and when it is due.

    All late entries fire now; the one with the earliest due time comes first.
    """
    return max(due, now), due
