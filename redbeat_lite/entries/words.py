"""Words for sentences: which entries and how many, when, how long, and who changed what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

from ..instants import from_ms

if TYPE_CHECKING:  # the probe of a file loads no JSON of kombu's
    from ..storage.changes import Change

#: An instant as it is written where no zone is known.
_UTC = re.compile(r"\b\d{4}-(?:0\d|1[0-2])-(?:[012]\d|30)T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{3,6})?\+00:00")


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names for a sentence: the first few of them, and how many more."""
    names = [*names]
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def counted(number: int, one: str, many: str) -> str:
    """``1 entry``, ``2 entries``."""
    return f"{number} {one if number == 1 else many}"


def in_zone(instant: datetime, zone: tzinfo) -> str:
    """An instant in a zone, to the second, with its offset."""
    return instant.astimezone(zone).replace(microsecond=0).isoformat(sep=" ")


def local(text: str, zone: tzinfo) -> str:
    """A text whose instants in UTC are told in a zone."""
    return _UTC.sub(lambda found: in_zone(datetime.fromisoformat(found[0]), zone), text)


def span(seconds: float) -> str:
    """A length of time in one or two units, rounded down."""
    if seconds < 10:
        return f"{int(seconds * 10) / 10:g} s"
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    left = int(seconds)
    parts: list[str] = []
    for unit, size in units:
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size} {unit}")
        elif parts:
            break
        left %= size
    return " ".join(parts)


def took(seconds: float) -> str:
    """How long something took: ``41 s``, ``70 ms``."""
    return span(seconds) if seconds >= 1 else f"{round(1000 * seconds)} ms"


def change_words(change: Change, zone: tzinfo, *, named: bool = False) -> str:
    """A change: ``edited by ada@laptop (cli) at 2026-11-21 10:02:11+01:00: jitter default → 60``.

    Where ``named``, it tells the entries, and not when it was.
    """
    more = f" and {change.count - len(change.names)} more" if change.count > len(change.names) else ""
    which = f" {', '.join(change.names)}{more}" if named and change.names else ""
    when = "" if named else f" at {in_zone(change.at, zone)}"
    what = change_details(change, zone)
    return f"{change.action}{which} by {change.actor} ({change.way}){when}" + (f": {what}" if what else "")


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
            yield from [f"{field} {local(after, zone) if field == 'until' else after}"] if after else []
        elif before is None and after is None:  # left out
            yield field
        else:
            yield f"{field} {before or 'default'} → {after or 'default'}"


def last_sign_of_life(change: Change) -> datetime | None:
    """Of the leader before the term that a change began; ``None`` where there was none."""
    for field, before, _ in change.fields:
        if field == "ticked" and before is not None:
            with suppress(ValueError, OverflowError):
                return from_ms(int(before))
    return None
