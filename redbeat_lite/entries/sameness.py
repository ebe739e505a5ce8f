"""Whether an edit makes another rule of an entry's schedule: told by its runs, and never by ``==``.

Celery's schedules are equal where their clocks are, those of a user as their class pleases. And a schedule that cannot
be stored leaves nothing to compare but what was noted of its runs when it was first seen, and the one it waits for,
which :mod:`redbeat_lite.entries.lifecycle` looks at.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from datetime import UTC, tzinfo

from ..errors import InvalidEntry
from ..instants import from_ms, to_ms
from ..schedules import SpreadSchedule, encode_schedule, rule_of
from .entry import Entry, told

#: Runs that are noted of a schedule that cannot be stored.
_NOTED = 3


def same_runs(before: Entry, after: Entry, now: int, zone: tzinfo) -> bool:
    """Whether the next runs of both are the same at ``now`` (epoch ms), whatever else they say.

    ``before`` is as it was stored; of a schedule that could not be, what was noted of it counts, if it is to come yet.
    """
    if before.start_at != after.start_at:
        return False
    if "schedule" in before.local:
        return _agrees(before.runs, after, now)
    try:
        return before.rule(zone) == after.rule(zone)
    except InvalidEntry:  # what was stored is no rule
        return False


def keep_resolved(before: Entry, after: Entry) -> None:
    """Leave a spread schedule that is written as it was resolved as it was."""
    if isinstance(after.schedule, SpreadSchedule) and told(after.schedule) == told(before.schedule):
        after._put(schedule=before.schedule)


def noted(entry: Entry, now: int) -> tuple[int, ...]:
    """What to note of the runs of an entry: an instant and the runs that follow it, all in epoch milliseconds.

    Empty for a schedule that can be stored, or that cannot tell its runs.
    """
    with suppress(InvalidEntry):
        encode_schedule(entry.schedule)
        return ()
    try:
        runs = _runs(entry, now)
        # One that answers differently each time, by chance or by a clock of its own, would never agree.
        return (now, *runs) if runs == _runs(entry, now) else ()
    except Exception:  # noqa: BLE001 - a schedule may raise anything; then there is nothing to note
        return ()


def _agrees(runs: tuple[int, ...], entry: Entry, now: int) -> bool:
    """Whether the schedule says what was noted of the time to come, or nobody can tell."""
    past = max(1, bisect_right(runs, now))  # with the instant from which they were noted
    left = [*runs[past:]]
    try:
        found = _runs(entry, runs[past - 1]) if runs else []
        # Fewer were noted only where no other followed.
        return left == (found if len(runs) <= _NOTED else found[: len(left)])
    except Exception:  # noqa: BLE001 - a schedule may raise anything, and need not answer for the past
        return True


def _runs(entry: Entry, base: int) -> list[int]:
    # In UTC whatever the app's zone, whose change makes no other schedule; and asked anew, not remembered.
    rule, instant, runs = rule_of(entry.schedule, UTC), from_ms(base), list[int]()
    while len(runs) < _NOTED and (following := rule.next_after(instant)) is not None and following > instant:
        runs.append(to_ms(following))
        instant = from_ms(runs[-1])
    return runs
