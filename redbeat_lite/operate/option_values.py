"""Instants and spans as people type them, on the command line and on the page."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any

from .._base.errors import InvalidEntry
from .._base.fields import INSTANT
from .._base.times import seconds_of

#: Longest distance of an instant from now, such as ``2h``: about a hundred years.
_LONGEST = timedelta(days=36_500)


def parse_instant(field: str, text: str, zone: tzinfo) -> datetime:
    """Return the instant that a text names, in ``zone`` if it has no offset.

    Raises:
        InvalidEntry: the text is no instant.
    """
    with suppress(ValueError):
        instant = datetime.fromisoformat(text)
        if instant.tzinfo is None:
            return instant.replace(tzinfo=zone)
    return INSTANT.read(field, text)  # type: ignore[no-any-return]


def parse_time_of_day(text: str, zone: tzinfo, now: datetime) -> datetime | None:
    """Return the last instant at which it was this time of day; ``None`` for any other text.

    Raises:
        ValueError: the text looks like a time of day, but is none, such as ``25:00``.
    """
    # A date has no colon among its first three characters.
    if ":" not in text[:3]:
        return None
    parsed = time.fromisoformat(text)
    zone = parsed.tzinfo or zone
    instant = datetime.combine(now.astimezone(zone), parsed, zone)
    return instant if instant <= now else instant - timedelta(days=1)


def past_instant(field: str, text: str, zone: tzinfo) -> datetime:
    """Return the instant that a text names: an instant, a time of day, or a length of time ago.

    Raises:
        InvalidEntry: the text is none of these.
    """
    with suppress(ValueError):
        instant = parse_time_of_day(text, zone, datetime.now(UTC))
        if instant is not None:
            return instant
    length = parse_length(text)
    if length is not None:
        return datetime.now(UTC) - length
    also = "a time of day such as 03:00, or how long ago"
    return _instant_or(field, text, zone, also)


def coming_instant(field: str, text: str, zone: tzinfo) -> datetime:
    """Return the instant that a text names: an instant, or a length of time from now.

    Raises:
        InvalidEntry: the text is none of these.
    """
    length = parse_length(text)
    if length is not None:
        return datetime.now(UTC) + length
    return _instant_or(field, text, zone, "how long from now")


def parse_length(text: str) -> timedelta | None:
    """Return a length of time, at most ``_LONGEST``; ``None`` for any other text."""
    # A number without a unit is no length, because 20261201 is a day.
    seconds = None if text.isdecimal() else seconds_of(text)
    if seconds is None:
        return None
    return timedelta(seconds=min(seconds, _LONGEST.total_seconds()))


def _instant_or(field: str, text: str, zone: tzinfo, also: str) -> datetime:
    """Return the instant that a text names, or raise InvalidEntry.

    Parameters:
        also: the other form of text that the caller allows, for the error.
    """
    try:
        return parse_instant(field, text, zone)
    except InvalidEntry as exc:
        expected = f'{exc.expected}, or {also}, such as "1h30m"'
        raise InvalidEntry(field, expected, text, hint=exc.hint) from None


def parse_span(
    fields: tuple[str, str],
    since: str | None,
    until: str | None,
    zone: tzinfo,
) -> tuple[datetime | None, datetime | None]:
    """Return the start and the end of a span of time, read by :func:`past_instant`.

    If the end is a time of day and lies before the start, it is that time on the next day.

    Parameters:
        fields: names of the two options, for errors.
        since, until: the texts; ``None``: no start, or no end.

    Raises:
        InvalidEntry: a text is no instant, or the end lies before the start.
    """
    first = None if since is None else past_instant(fields[0], since, zone)
    last = None if until is None else past_instant(fields[1], until, zone)
    if first is None or last is None or first <= last:
        return first, last
    with suppress(ValueError):
        next_day = last + timedelta(days=1)
        is_time_of_day = parse_time_of_day(str(until), zone, last) is not None
        if is_time_of_day and first <= next_day:
            return first, next_day
    start = f"{first.astimezone(zone):%Y-%m-%d %H:%M:%S}"
    raise InvalidEntry(fields[1], f"an instant after --{fields[0]}, {start}", until)


def start_arguments(options: dict[str, Any], zone: tzinfo) -> dict[str, Any]:
    """Return the arguments of a backfill's ``start()`` for the options of a command.

    Raises:
        InvalidEntry: an option is wrong.
    """
    most = options["max_active"]
    if most != "none" and not re.fullmatch("[0-9]{1,9}", most):
        raise InvalidEntry("max_active", 'a whole number, or "none"', most)
    start, end = parse_span(("from", "to"), options["start"], options["end"], zone)
    max_active = None if most == "none" else int(most)
    return {**options, "start": start, "end": end, "max_active": max_active}
