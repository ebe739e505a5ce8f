"""What must become of the runs of an entry, and what follows where they fail, as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from math import ulp
from typing import Any, Literal

from .durations import Duration, length_of
from .errors import InvalidEntry, known_only
from .instants import YEAR
from .public import public

#: Most failures in a row that an expectation or a policy may pass over.
_MOST_FAILURES = 1000


@public
@dataclass(frozen=True)  # without slots, for what is worked out once
class Expect:
    """What must become of an entry's runs; where it does not, an incident is opened.

    Lengths of time are seconds, a timedelta or a text such as ``"1h30m"``, more than 0 and at most a year; ``None``:
    not expected.

    Parameters:
        start_within: a run begins so long after its due time at the latest.
        finish_within: it has ended so long after its due time; not less than ``start_within``.
        succeed_every: after a success the next one comes within this; more than the time between any two runs.
        failures: 1 to 1,000; so many failures in a row are an incident.

    Raises:
        InvalidEntry: a field is wrong.
    """

    start_within: Duration | None = None
    finish_within: Duration | None = None
    succeed_every: Duration | None = None
    failures: int = 1

    def __post_init__(self) -> None:
        bounds, least = f"more than 0 and at most a year ({YEAR} s), or None", ulp(0)  # the first that is more than 0
        for name in ("start_within", "finish_within", "succeed_every"):
            if (length := getattr(self, name)) is not None:
                object.__setattr__(self, name, length_of(f"expect.{name}", length, bounds, least, YEAR))
        start, finish = self.start_within, self.finish_within
        if start is not None and finish is not None and finish < start:  # type: ignore[operator]  # both are seconds
            raise InvalidEntry("expect.finish_within", f"not less than start_within ({start:g} s)", finish)
        _check_times("expect.failures", self.failures)

    @classmethod
    def of(cls, value: object) -> Expect | Literal[False] | None:
        """Read what a user wrote as ``expect=``: ``None``, ``False``, an expectation, or a mapping of its fields.

        Raises:
            InvalidEntry: it is something else, or a field of it is wrong.
        """
        if value is None or value is False or isinstance(value, Expect):
            return value
        if not isinstance(value, Mapping):
            raise InvalidEntry("expect", "None, False, an Expect or a mapping of its fields", value)
        return cls(**known_only("expect", value, [field.name for field in fields(cls)]))

    @classmethod
    def decode(cls, stored: Any) -> Expect | Literal[False] | None:
        """What :meth:`encode` made; fields of a later version are passed over.

        Raises:
            InvalidEntry: it is something else.
        """
        if isinstance(stored, Mapping):
            stored = {field.name: stored[field.name] for field in fields(cls) if field.name in stored}
        return cls.of(stored)

    def encode(self) -> dict[str, Any]:
        """JSON: the fields that do not have their default."""
        given = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in given.items() if value != default}

    # The three in milliseconds.
    start_ms = cached_property[int | None](lambda self: _ms(self.start_within))
    finish_ms = cached_property[int | None](lambda self: _ms(self.finish_within))
    success_ms = cached_property[int | None](lambda self: _ms(self.succeed_every))


@public
@dataclass(frozen=True)
class Pause:
    """What ``on_failure`` does: an entry whose runs fail is paused.

    Parameters:
        after: 1 to 1,000; so many runs in a row that failed, were rejected or lost their worker.

    Raises:
        InvalidEntry: ``after`` is wrong.
    """

    after: int

    def __post_init__(self) -> None:
        _check_times("on_failure.after", self.after)

    @classmethod
    def of(cls, value: object) -> Pause | None:
        """Read what a user wrote as ``on_failure=``: ``None``, a policy, or its text.

        Raises:
            InvalidEntry: it is something else.
        """
        if value is None or isinstance(value, Pause):
            return value
        after = re.fullmatch("pause:([0-9]{1,9})", value) if isinstance(value, str) else None
        if after is None:
            raise InvalidEntry("on_failure", 'None, Pause(after=3) or "pause:3"', value)
        return cls(int(after[1]))

    def __str__(self) -> str:
        return f"pause:{self.after}"


def _check_times(field: str, times: object) -> None:
    if type(times) is not int or not 1 <= times <= _MOST_FAILURES:
        raise InvalidEntry(field, f"a whole number from 1 to {_MOST_FAILURES}", times)


def _ms(seconds: Duration | None) -> int | None:
    return None if seconds is None else round(1000 * seconds)  # type: ignore[arg-type]  # made seconds at first
