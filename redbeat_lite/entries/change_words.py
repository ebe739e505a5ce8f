"""Sentences for the record of changes: actor, action, entries, time and reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, tzinfo

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.times import from_ms, in_zone
from ..rules import decode_schedule, schedule_text
from ..store.changes import Change
from ..store.json_values import loads
from .words import local


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
    names = ", ".join(change.names)
    unnamed = change.count - len(change.names)
    return f"{names} and {unnamed} more" if unnamed > 0 else names


def change_details(change: Change, zone: tzinfo) -> str:
    """Describe the changed fields, and add the note: ``jitter default → 60; for the new disk``."""
    return "; ".join(filter(None, (*_of_fields(change, zone), change.note)))


def _of_fields(change: Change, zone: tzinfo) -> Iterator[str]:
    for field, before, after in change.fields:
        if change.action == "term begun":
            if field == "term":
                yield f"term {after}"
                continue
            ticked = last_sign_of_life(change)
            if ticked is not None:
                yield f"the last sign of life of the one before: {in_zone(ticked, zone)}"
        elif change.action in ("frozen", "thawed"):
            if after:
                text = local(after, zone) if field == "until" else after
                yield f"{field} {text}"
        elif before is None and after is None:
            # The record leaves out the values of this field.
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
