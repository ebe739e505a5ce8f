"""What a backfill sends, and which ranges are its affair: pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import tzinfo

from ..errors import InvalidEntry
from ..instants import MAX_MS, to_ms
from ..schedules import At, Every, Question, next_ms
from ..storage.stored_backfill import Backfill, Ranges
from .entry import Entry
from .state import EntryState

#: Messages of one step at most: they take four milliseconds, or twenty where each is made in full.
_MOST = 50

#: Seconds whose messages go out together, where a rate says how many.
_STEP = 0.1


def times(backfill: Backfill, entry: Entry, state: EntryState, zone: tzinfo) -> Iterator[int]:
    """The nominal times that are still to be sent, epoch ms: those of the entry's rule as it is; raises InvalidEntry
    where nobody can tell before the time has come."""
    rule, first, end = entry.rule(zone), backfill.cursor or to_ms(backfill.start), to_ms(backfill.end)
    if backfill.start == backfill.end:
        rule = At(backfill.end)
    else:
        first, end = max(first, entry.start_ms or first), min(end, MAX_MS if entry.end_ms is None else entry.end_ms)
    phase = next((each for each in (state.nominal, state.last, entry.start_ms) if each is not None), first)

    def since(ms: int) -> int:
        """An interval counts from one of its own instants."""
        return ms - (ms - phase) % rule.ms if isinstance(rule, Every) and not rule.on_grid else ms

    at: int | None = since(first - 1)
    while at is not None and (at := next_ms(rule, at)) is not None and at <= end:
        if isinstance(at, Question):
            raise InvalidEntry("schedule", "one that tells its past occurrences", entry.schedule, entry=entry.name)
        place = bisect_right(backfill.skip, at, key=lambda span: span[0])
        over = backfill.skip[place - 1][1] if place else at - 1
        if over < at:
            yield at
        else:
            at = since(over)


def room(backfill: Backfill, entry: Entry) -> int:
    """How many messages may go out in one step."""
    most = 1 if entry.once is not None and entry.once.at_publish else _MOST  # all of them have the one key
    if backfill.max_active is None:
        return min(most, max(1, round(backfill.rate * _STEP)))
    return min(most, backfill.max_active - len(backfill.active))


def went_out(backfill: Backfill, sent: Sequence[int], *, is_all: bool) -> Backfill:
    """The backfill after these nominal times were sent; ``is_all``: nothing is left."""
    return replace(
        backfill,
        cursor=sent[-1] + 1 if sent else backfill.cursor,
        sent=backfill.sent + len(sent),
        active=() if backfill.max_active is None else (*backfill.active, *sent),
        ended="done" if is_all else backfill.ended,
        attempts=0,
    )


def covered(backfill: Backfill) -> Ranges:
    """What this one has sent, and those before it."""
    return merged([*backfill.skip, (to_ms(backfill.start), backfill.cursor - 1)]) if backfill.sent else backfill.skip


def merged(ranges: Ranges) -> Ranges:
    """These ranges, without what they have in common: a look for a time goes to the last one that begins before it."""
    found: list[Sequence[int]] = []
    for first, last in sorted(ranges, key=lambda span: span[0]):
        if found and first <= found[-1][1] + 1:
            first, last = found[-1][0], max(found.pop()[1], last)
        found.append((first, last))
    return found
