"""Occurrences of schedules: the one path that the beat and every preview take."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise

from .._base.times import YEAR
from .intervals import at, counts_from_run, every
from .rule import Question, Rule, draw

#: Number of occurrences among which the shortest gap is searched. To find one of them may take half
#: a second, if the recurrence is costly.
_SAMPLE = 17
#: Maximum number of steps of `gap_over`. Each step goes ahead by the length of the gap that is
#: searched. So the steps cover a week for a gap of ten minutes, and a year for a gap of nine hours.
_STEPS = 1010


def first_ms(rule: Rule, now_ms: int, start_ms: int | None) -> int | None:
    """Return the first occurrence of a new entry, in milliseconds since 1970.

    Parameters:
        start_ms: the entry's ``start_at``. An interval counts from the start; if the start is in
            the future, it is the first occurrence. Other rules have no occurrence before the start.

    A one-off keeps its instant even if that is past, so that an entry that is added late runs
    instead of vanishing. It has no occurrence if its instant is before the start.
    """
    if isinstance(rule, at):
        return rule.ms if start_ms is None or start_ms <= rule.ms else None
    if start_ms is None:
        return rule.next_ms(now_ms)
    if counts_from_run(rule):
        # Occurrences are whole intervals after the start. last_ms() gives the last one up to now.
        return start_ms if start_ms > now_ms else rule.next_ms(rule.last_ms(start_ms, now_ms))
    # One millisecond less, because the start itself may be an occurrence.
    return rule.next_ms(max(start_ms - 1, now_ms))


def offset_ms(name: str, nominal_ms: int, jitter_ms: int, gap_ms: int | None = None) -> int:
    """Return how long after its nominal time an occurrence is due, in milliseconds.

    The entry's name and the nominal time decide the offset, so a beat that takes over, a preview
    and a restart have the same one. All values from 0 to ``jitter_ms``, both included, are equally
    likely. The offset is below ``gap_ms``, the gap to the next occurrence, so that no occurrence is
    due after the next one.
    """
    highest = jitter_ms if gap_ms is None else min(jitter_ms, gap_ms - 1)
    if highest <= 0:
        return 0
    return draw(f"{nominal_ms}:{name}", highest + 1)


def shortest_gap_ms(rule: Rule, from_ms: int, among: int = _SAMPLE) -> int | None:
    """Return the shortest gap between occurrences, in ms; None if there are fewer than two.

    Parameters:
        among: number of occurrences after ``from_ms`` that are compared.
    """
    first_ones = islice(occurrences(rule, from_ms), among)
    return min((later - earlier for earlier, later in pairwise(first_ones)), default=None)


def occurrences(rule: Rule, ms: int) -> Iterator[int]:
    """Yield the occurrences later than an instant, as far as they are known in advance.

    They end before a `Question`, which is only the time at which to ask the schedule again.
    """
    following = rule.next_ms(ms)
    while following is not None and not isinstance(following, Question):
        yield following
        following = rule.next_ms(following)


def gap_over(rule: Rule, from_ms: int, longest: int) -> tuple[int, int] | None:
    """Return two successive occurrences within a year that are at least ``longest`` apart, if any.

    Instants and lengths are in milliseconds. The search jumps ahead by ``longest`` at each step, so
    it does not visit each occurrence. It gives up after :data:`_STEPS` steps, and at a `Question`,
    because a schedule that must be asked does not name its occurrences in advance.
    """
    # All gaps of an interval are equal.
    if isinstance(rule, every):
        return (from_ms, from_ms + rule.ms) if rule.ms >= longest else None
    # The search goes from one occurrence ``at`` to a later one ``after``.
    at = rule.next_ms(from_ms)
    until = from_ms + 1000 * YEAR
    for _ in range(_STEPS):
        if at is None or isinstance(at, Question) or at >= until:
            return None
        # First occurrence that comes at least ``longest`` after ``at``.
        after = rule.next_ms(at + longest - 1)
        if after is None or isinstance(after, Question):
            return None
        # All occurrences from ``at`` up to the one before ``after`` lie within less than
        # ``longest``. So only the gap that ends at ``after`` can be as long as ``longest``. It is
        # as long if ``after`` is the first occurrence later than ``after - longest``.
        if rule.next_ms(after - longest) == after:
            return last_ms(rule, at, after - 1), after
        at = after
    return None


def last_ms(rule: Rule, since: int, until: int) -> int:
    """Return the last occurrence in ``(since, until]``; ``since`` if there is none."""
    if isinstance(rule, every):
        return rule.last_ms(since, until)
    # Each round looks for an occurrence later than ``latest``, near the end of the range. So
    # ``latest`` is the last occurrence that is known. No occurrence lies in ``(beyond, until]``.
    latest = since
    beyond = until
    look_back = 0
    while True:
        following = rule.next_ms(latest)
        if following is None or following > until:
            return latest
        # Look for an occurrence after ``probe``. In the first round, ``probe`` is one gap before
        # ``beyond``, because most gaps are alike. Each round looks back twice as far, but never
        # further than the middle between ``latest`` and ``beyond``. So a round with a large step
        # halves what is left, as a binary search does.
        look_back = 2 * look_back or following - latest
        latest = following
        probe = max(beyond - look_back, (latest + beyond) // 2)
        later = rule.next_ms(probe)
        if later is not None and later <= until:
            latest = later
        else:
            # No occurrence lies in ``(probe, until]``.
            beyond = probe
