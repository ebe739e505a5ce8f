"""Time zones that a rule may name.

A zone is stored by its name and looked up again in each process. New zone data on a machine changes
future occurrences there, and nothing else.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from difflib import get_close_matches
from zoneinfo import ZoneInfo, available_timezones

from .._base.errors import InvalidEntry

#: Fixed offset from UTC, such as ``+05:30``.
_FIXED = re.compile(r"[+-]([01]\d|2[0-3]):[0-5]\d", re.ASCII)
#: Zones that exist as files, but differ between machines, or count leap seconds.
_NOT_PORTABLE = re.compile(r"localtime|posixrules|Factory|posix/.*|right/.*")


def zone_of(value: object) -> tzinfo:
    """Return the zone of a name or a tzinfo.

    Parameters:
        value: an IANA name (``"Europe/Berlin"``), an offset (``"+05:30"``), a ``ZoneInfo``, a
            ``datetime.timezone`` or any tzinfo that carries its IANA name (pytz).

    Raises:
        InvalidEntry: the zone is unknown here, or it has no name that another machine understands.
    """
    if isinstance(value, str):
        return _named(value)
    # An offset with seconds is refused below, because it has no text that `zone_of` accepts.
    if isinstance(value, timezone) and not value.utcoffset(None) % timedelta(minutes=1):
        return value
    if isinstance(value, tzinfo):
        # A ZoneInfo has its name as ``key``, a zone of pytz as ``zone``.
        name = getattr(value, "key", None) or getattr(value, "zone", None)
        if isinstance(name, str):
            return value if isinstance(value, ZoneInfo) else _named(name)
    raise InvalidEntry("tz", "the name of a time zone", value, hint='for example "Europe/Berlin"')


def zone_name(zone: tzinfo) -> str:
    """Return the text that `zone_of` turns back into ``zone``."""
    if isinstance(zone, timezone):
        # Its name may be any text, so write its offset: str() of a timezone without a name is
        # "UTC+05:30", and zone_of() reads "+05:30".
        return str(timezone(zone.utcoffset(None))).removeprefix("UTC") or "UTC"
    return str(getattr(zone, "key", None) or getattr(zone, "zone", None) or zone)


def portable(zone: tzinfo) -> tzinfo:
    """Convert a zone with a name, such as one of pytz, to a ZoneInfo.

    The zones of pytz have wrong offsets when ``replace(tzinfo=...)`` sets them. A fixed offset, and
    a zone that `zone_of` refuses, are returned unchanged.
    """
    try:
        return zone_of(zone)
    except InvalidEntry:
        return zone


def _named(name: str) -> tzinfo:
    """Return the zone of a name or of a fixed offset such as ``+02:00``."""
    if _FIXED.fullmatch(name):
        instant = datetime.fromisoformat(f"2000-01-01T00:00{name}")  # any instant with the offset
        return instant.tzinfo  # type: ignore[return-value]  # it is aware
    # A longer name cannot be a zone: no zone has a name of over 64 characters.
    if len(name) > 64 or _NOT_PORTABLE.fullmatch(name):
        raise InvalidEntry("tz", "the name of a time zone", name)
    try:
        return ZoneInfo(name)
    # An unknown name raises KeyError, a name such as "../x" raises ValueError, and a folder such as
    # "Europe" raises OSError.
    except (KeyError, ValueError, OSError):
        raise InvalidEntry("tz", "the name of a time zone", name, hint=_nearest(name)) from None


def _nearest(name: str) -> str:
    """Return a hint with the zone whose name or city is most similar, or with an example."""
    if re.search(r"[+-]\d", name):
        return 'an offset is written "+01:00"'
    names = available_timezones()
    by_city = {zone.lower().rsplit("/", 1)[-1]: zone for zone in names}
    by_name = by_city | {zone.lower(): zone for zone in names}
    written = name.strip().lower().replace(" ", "_")
    # A lower cutoff would find a name for "PST", which is as near to "MST" as to any other zone.
    near = get_close_matches(written, by_name, n=1, cutoff=0.8)
    return f"did you mean {by_name[near[0]]}?" if near else 'for example "Europe/Berlin"'
