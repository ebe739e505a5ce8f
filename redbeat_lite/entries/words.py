"""Texts for sentences: lists of names, counts, instants, lengths of time, and changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, tzinfo

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.json_values import loads
from .._base.times import from_ms, in_zone
from ..rules import decode_schedule, schedule_text
from .changes import Change

#: Instant in UTC inside a text. The text was written for people before their time zone was known.
_UTC = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3,6})?\+00:00")


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return names for a sentence: the first few of them, and the number of the others."""
    names = [*names]
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def counted(number: int, one: str, many: str) -> str:
    """Return a number with its noun: ``1 entry``, ``2 entries``."""
    return f"{number} {one if number == 1 else many}"


def counted_missed(number: int) -> str:
    """Return how many occurrences were missed; not all are counted if there are very many."""
    if number >= 1000:
        return "1,000 occurrences or more"
    return counted(number, "occurrence", "occurrences")


def local(text: str, zone: tzinfo) -> str:
    """Convert the UTC instants in a text to local times of a zone."""

    def localize(match: re.Match[str]) -> str:
        """Return the local time of the instant that was found."""
        instant = match[0]
        try:
            return in_zone(datetime.fromisoformat(instant), zone)
        except (ValueError, OverflowError):
            # The error of a task may hold a date that does not exist.
            return instant

    return _UTC.sub(localize, text)


def span(seconds: float) -> str:
    """Return a length of time in one or two units, rounded down."""
    # A short time is shown with one decimal.
    if seconds < 10:
        return f"{int(seconds * 10) / 10:g} s"
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    left = int(seconds)
    parts: list[str] = []
    for unit, size in units:
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size} {unit}")
        elif parts:
            # The two units must be neighbours: a day and five minutes are "1 d".
            break
        left %= size
    return " ".join(parts)


def took(seconds: float) -> str:
    """Return a measured length of time: ``41 s``, ``70 ms``."""
    return span(seconds) if seconds >= 1 else f"{round(1000 * seconds)} ms"


# -- Sentences for the record of changes: actor, action, entries, time and reason ------------------


def change_words(change: Change, zone: tzinfo, *, named: bool = False) -> str:
    """Describe a change in a sentence.

    Example: ``edited by ada@laptop (cli) at 2026-11-21 10:02:11+01:00: jitter default → 60``

    Parameters:
        named: give the names of the entries instead of the time.
    """
    entries = f" {_names(change)}" if named and change.names else ""
    time = "" if named else f" at {in_zone(change.at, zone)}"
    sentence = f"{change.action}{entries} by {change.actor} ({change.way}){time}"
    details = change_details(change, zone)
    return f"{sentence}: {details}" if details else sentence


def _names(change: Change) -> str:
    """Return the recorded names of a change, and how many more entries it concerns."""
    names = ", ".join(change.names)
    unnamed = change.count - len(change.names)
    return f"{names} and {unnamed} more" if unnamed > 0 else names


def change_details(change: Change, zone: tzinfo) -> str:
    """Describe the changed fields, and add the note: ``jitter default → 60; for the new disk``."""
    return "; ".join(filter(None, (*_field_texts(change, zone), change.note)))


def _field_texts(change: Change, zone: tzinfo) -> Iterator[str]:
    """Yield a few words for each changed field. They depend on the kind of the change."""
    ticked = last_sign_of_life(change)
    for field, before, after in change.fields:
        if field == "ticked":
            # A new leader has begun its term, and has noted when the previous one was last active.
            if ticked is not None:
                yield f"the last sign of life of the one before: {in_zone(ticked, zone)}"
        elif change.action in ("term begun", "frozen", "paused") and after:
            # The field is the number of the new term, or the end of the freeze or of the pause.
            yield f"{field} {local(after, zone)}"
        elif before is None and after is None:
            # The record has no values of this field, so name it alone.
            yield field
        elif field == "schedule":
            yield f"schedule {_schedule(before, zone)} → {_schedule(after, zone)}"
        else:
            yield f"{field} {before or 'default'} → {after or 'default'}"


def _schedule(stored: str | None, zone: tzinfo) -> str:
    """Describe a stored schedule; return the stored text if it was cut or is no schedule."""
    try:
        return schedule_text(decode_schedule(loads(stored or "")), zone)
    except (CorruptEntry, InvalidEntry):
        return stored or "none"


def last_sign_of_life(change: Change) -> datetime | None:
    """Return the last sign of life of the previous leader, for a change that begins a new term.

    ``None`` if there was no previous leader.
    """
    for field, before, _ in change.fields:
        if field == "ticked" and before is not None:
            with suppress(ValueError, OverflowError):
                return from_ms(int(before))
    return None
