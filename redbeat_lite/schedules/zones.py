"""Time zones: which ones a rule may name, and where their clocks jump.

A zone is stored by its name and looked up again in each process: new zone data on a machine changes future
occurrences there and nothing else.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from difflib import get_close_matches
from zoneinfo import ZoneInfo, available_timezones

from ..errors import InvalidEntry
from ..instants import EPOCH

_FIXED = re.compile(r"([+-])(\d\d):(\d\d)", re.ASCII)
# These exist as files, but mean another thing on each machine, or count leap seconds.
_NOT_PORTABLE = re.compile(r"localtime|posixrules|Factory|posix/.*|right/.*")
_SECOND = timedelta(seconds=1)
#: Local clocks are compared once in this many seconds; no zone ever jumped there and back within a day.
_STRIDE = 86_400


def zone_of(value: object, field: str = "tz") -> tzinfo:
    """The zone that a name or a tzinfo stands for.

    Parameters:
        value: an IANA name (``"Europe/Berlin"``), an offset (``"+05:30"``), a ``ZoneInfo``, a ``datetime.timezone``
            or any tzinfo that carries its IANA name (pytz).

    Raises:
        InvalidEntry: unknown here, or without a name that another machine would understand.
    """
    if isinstance(value, str):
        return _named(value, field)
    if isinstance(value, timezone) and not value.utcoffset(None) % timedelta(minutes=1):
        return value
    if isinstance(value, tzinfo):
        name = getattr(value, "key", None) or getattr(value, "zone", None)
        if isinstance(name, str):
            return value if isinstance(value, ZoneInfo) else _named(name, field)
    raise InvalidEntry(field, "the name of a time zone", value, hint='for example "Europe/Berlin"')


def zone_name(zone: tzinfo) -> str:
    """The text that `zone_of` turns back into ``zone``."""
    if isinstance(zone, timezone):
        # Without a name of its own it has that of its offset, "UTC+05:30".
        return str(timezone(zone.utcoffset(None))).removeprefix("UTC") or "UTC"
    return str(getattr(zone, "key", None) or getattr(zone, "zone", None) or zone)


def portable(zone: tzinfo) -> tzinfo:
    """``zone`` as a ZoneInfo where it carries a name (pytz answers wall-clock questions its own way), else itself."""
    try:
        return zone_of(zone)
    except InvalidEntry:
        return zone


def is_hashable(zone: tzinfo) -> bool:
    """Return whether a cache may have ``zone`` in its key. Zones of dateutil have no hash."""
    return isinstance(zone, (ZoneInfo, timezone))


def _named(name: str, field: str) -> tzinfo:
    if fixed := _FIXED.fullmatch(name):
        sign, hours, minutes = fixed.groups()
        if int(hours) < 24 and int(minutes) < 60:
            return timezone(int(sign + "1") * timedelta(hours=int(hours), minutes=int(minutes)))
    if len(name) > 64 or _NOT_PORTABLE.fullmatch(name):
        raise InvalidEntry(field, "the name of a time zone", name)
    try:
        return ZoneInfo(name)
    # ZoneInfoNotFoundError is a KeyError; names such as "../x" are ValueErrors, folders ("Europe") OSErrors.
    except (KeyError, ValueError, OSError):
        raise InvalidEntry(field, "the name of a time zone", name, hint=_nearest(name)) from None


def _nearest(name: str) -> str:
    if re.search(r"[+-]\d", name):
        return 'an offset is written "+01:00"'
    known = {zone.lower(): zone for zone in available_timezones() if not _NOT_PORTABLE.fullmatch(zone)}
    by_city = {low.rsplit("/", 1)[-1]: zone for low, zone in known.items()}
    wanted = name.strip().lower().replace(" ", "_")
    # Of the few that are nearly spelt so: "PST" is as far from "MST" as it is from any other.
    found = known.get(wanted) or by_city.get(wanted)
    near = [found] if found else [known[low] for low in get_close_matches(wanted, known, cutoff=0.8)]
    return f"did you mean {' or '.join(near)}?" if near else 'for example "Europe/Berlin"'


def offset_at(zone: tzinfo, second: int) -> int:
    """Seconds that ``zone`` is ahead of UTC at an instant, both as whole seconds since 1970."""
    local = (EPOCH + second * _SECOND).astimezone(zone)
    return int(local.utcoffset().total_seconds())  # type: ignore[union-attr]  # aware by construction


def jump_between(zone: tzinfo, before: int, after: int) -> int:
    """The first second in ``(before, after]`` with the offset of ``after``; the two must differ."""
    target, seconds = offset_at(zone, after), range(before + 1, after + 1)
    return seconds[bisect_left(seconds, True, key=lambda second: offset_at(zone, second) == target)]


def stretches(zone: tzinfo, after: int, until: int) -> Iterator[tuple[int, int, int]]:
    """Cut the seconds ``(after, until]`` where the clocks jump: ``(after, until, offset)`` of each piece."""
    start, here = after, after + 1
    offset = offset_at(zone, here) if after < until else 0
    while here < until:
        there = min(here + _STRIDE, until)
        if (changed := offset_at(zone, there)) != offset:
            jump = jump_between(zone, here, there)
            yield start, jump - 1, offset
            start, offset = jump - 1, changed
        here = there
    if start < until:
        yield start, until, offset


def wall_at(zone: tzinfo, instant: datetime) -> datetime:
    """The naive local time of an aware instant."""
    return instant.astimezone(zone).replace(tzinfo=None)
