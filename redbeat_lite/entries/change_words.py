"""Words for changes of the record: who did what to which entries, when, and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, tzinfo

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.times import from_ms
from ..rules import decode_schedule
from ..store.changes import Change
from ..store.json_values import loads
from .schedule_text import schedule_text
from .words import in_zone, local


def change_words(change: Change, zone: tzinfo, *, named: bool = False) -> str:
    """A change: ``edited by ada@laptop (cli) at 2026-11-21 10:02:11+01:00: jitter default → 60``.

    Where ``named``, it tells the entries, and not when it was.
    """
    more = (
        f" and {change.count - len(change.names)} more" if change.count > len(change.names) else ""
    )
    which = f" {', '.join(change.names)}{more}" if named and change.names else ""
    when = "" if named else f" at {in_zone(change.at, zone)}"
    what = change_details(change, zone)
    return f"{change.action}{which} by {change.actor} ({change.way}){when}" + (
        f": {what}" if what else ""
    )


def change_details(change: Change, zone: tzinfo) -> str:
    """What a change did to fields, and its note: ``jitter default → 60; for the new disk``."""
    return "; ".join(filter(None, (*_of_fields(change, zone), change.note)))


def _of_fields(change: Change, zone: tzinfo) -> Iterator[str]:
    for field, before, after in change.fields:
        if change.action == "term begun":
            if field == "term":
                yield f"term {after}"
            elif (ticked := last_sign_of_life(change)) is not None:
                yield f"the last sign of life of the one before: {in_zone(ticked, zone)}"
        elif change.action in ("frozen", "thawed"):
            yield from (
                [f"{field} {local(after, zone) if field == 'until' else after}"] if after else []
            )
        elif before is None and after is None:  # left out
            yield field
        elif field == "schedule":
            yield f"schedule {_schedule(before, zone)} → {_schedule(after, zone)}"
        else:
            yield f"{field} {before or 'default'} → {after or 'default'}"


def _schedule(stored: str | None, zone: tzinfo) -> str:
    """A stored schedule in words; as it is, where it was cut or is none."""
    try:
        return schedule_text(decode_schedule(loads(stored or "")), zone)
    except (CorruptEntry, InvalidEntry):
        return stored or "none"


def last_sign_of_life(change: Change) -> datetime | None:
    """Of the leader before the term that a change began; ``None`` where there was none."""
    for field, before, _ in change.fields:
        if field == "ticked" and before is not None:
            with suppress(ValueError, OverflowError):
                return from_ms(int(before))
    return None
