"""Instants as Redis keeps them: whole milliseconds since 1970 in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from .errors import InvalidEntry

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The range of ``datetime``: the years 1 to 9999.
MIN_MS = -62_135_596_800_000
MAX_MS = 253_402_300_799_999
#: Seconds of a year: durations are bounded in years, so that an instant plus a duration stays within that range.
YEAR = 365 * 86_400
_MS = timedelta(milliseconds=1)


def to_ms(dt: datetime) -> int:
    """Milliseconds since 1970 of an aware datetime.

    Rounds *up*: a stored instant is never before the real one, so nothing due at it can fire early. At the ends of time
    it is the first or the last one that there is in UTC.

    Raises:
        InvalidEntry: the datetime is naive.
    """
    return min(max(-((EPOCH - aware("instant", dt)) // _MS), MIN_MS), MAX_MS)


def from_ms(ms: int) -> datetime:
    """The aware UTC datetime of milliseconds since 1970.

    Raises:
        OverflowError: outside the years 1 to 9999.
    """
    return EPOCH + ms * _MS


def iso(ms: int) -> str:
    """What ``from_ms(ms).isoformat()`` says; sooner, as the instants of many entries lie in one second."""
    second, rest = divmod(ms, 1000)
    return f"{_second(second)}.{rest:03d}000+00:00" if rest else f"{_second(second)}+00:00"


@lru_cache(maxsize=4096)
def _second(instant: int) -> str:
    return datetime.fromtimestamp(instant, UTC).isoformat().removesuffix("+00:00")


def delay_ms(options: Mapping[str, Any], now: int) -> int:
    """For how many milliseconds a message may not run yet.

    Parameters:
        options: of its publishing, as ``apply_async`` takes them. An ``eta`` without a zone is UTC, as in a worker.
        now: epoch milliseconds.
    """
    if options.get("countdown"):
        return int(1000 * options["countdown"])
    eta = options.get("eta")
    return max(0, told_ms(eta) - now) if isinstance(eta, str | datetime) else 0


def told_ms(when: datetime | str) -> int:
    """Epoch milliseconds of an instant in a message, or for one. Without a zone it is UTC, as a worker reads it."""
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    return to_ms(when if when.tzinfo is not None else when.replace(tzinfo=UTC))


def aware(field: str, value: object) -> datetime:
    """``value`` itself if it is an aware datetime.

    Parameters:
        field: the name to put in the error.

    Raises:
        InvalidEntry: not a datetime, or a naive one: it would mean another instant on each machine.
    """
    if not isinstance(value, datetime):
        raise InvalidEntry(field, "an aware datetime", value)
    if value.utcoffset() is None:
        raise InvalidEntry(field, "an aware datetime", value, hint="add tzinfo, for example tzinfo=datetime.UTC")
    return value
