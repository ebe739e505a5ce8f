"""Expectations about the runs of an entry, and the policy for runs that fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from math import ulp
from typing import Any, Literal

from ._base.errors import InvalidEntry, check_field_names
from ._base.public import public
from ._base.times import YEAR, Duration, length_of

#: Most failures in a row that an expectation or a policy may wait for.
_MOST_FAILURES = 1000


@public
# Not with slots, because the cached properties need a dict.
@dataclass(frozen=True)
class Expect:
    """Expectations about an entry's runs. If one is not met, an incident is opened.

    Lengths of time are seconds, a timedelta or a text such as ``"1h30m"``, more than 0 and at most
    a year. ``None`` expects nothing.

    Parameters:
        start_within: latest begin of a run, counted from its due time.
        finish_within: latest end of a run, counted from its due time; not less than
            ``start_within``.
        succeed_every: longest time between two successes; more than the time between any two runs.
        failures: number of failures in a row that are an incident; 1 to 1,000.

    Raises:
        InvalidEntry: a field is wrong.
    """

    start_within: Duration | None = None
    finish_within: Duration | None = None
    succeed_every: Duration | None = None
    failures: int = 1

    def __post_init__(self) -> None:
        bounds = f"more than 0 and at most a year ({YEAR} s), or None"
        least = ulp(0)  # the smallest number above 0
        for name in ("start_within", "finish_within", "succeed_every"):
            length = getattr(self, name)
            if length is not None:
                seconds = length_of(f"expect.{name}", length, bounds, least, YEAR)
                object.__setattr__(self, name, seconds)
        start: Any = self.start_within
        finish: Any = self.finish_within
        if start is not None and finish is not None and finish < start:
            expected = f"not less than start_within ({start:g} s)"
            raise InvalidEntry("expect.finish_within", expected, finish)
        _check_times("expect.failures", self.failures)

    @classmethod
    def of(cls, value: object) -> Expect | Literal[False] | None:
        """Return the value of ``expect=``; a mapping is converted into an expectation.

        Raises:
            InvalidEntry: it is neither ``None``, ``False``, an expectation nor a mapping of its
                fields; or a field is wrong.
        """
        if value is None or value is False or isinstance(value, Expect):
            return value
        if not isinstance(value, Mapping):
            expected = "None, False, an Expect or a mapping of its fields"
            raise InvalidEntry("expect", expected, value)
        return cls(**check_field_names("expect", value, [field.name for field in fields(cls)]))

    @classmethod
    def decode(cls, stored: Any) -> Expect | Literal[False] | None:
        """Return the expectation of a stored form; fields of a later version are ignored.

        Raises:
            InvalidEntry: the stored form is wrong.
        """
        if isinstance(stored, Mapping):
            names = [field.name for field in fields(cls)]
            stored = {name: stored[name] for name in names if name in stored}
        return cls.of(stored)

    def encode(self) -> dict[str, Any]:
        """Return the stored form: a dict of the fields that do not have their default."""
        stored = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                stored[field.name] = value
        return stored

    # The lengths of time in milliseconds.
    start_ms = cached_property[int | None](lambda self: _ms(self.start_within))
    finish_ms = cached_property[int | None](lambda self: _ms(self.finish_within))
    success_ms = cached_property[int | None](lambda self: _ms(self.succeed_every))


@public
@dataclass(frozen=True)
class Pause:
    """Policy of ``on_failure`` that pauses an entry whose runs fail.

    Parameters:
        after: number of runs in a row that have failed, were rejected or have lost their worker; 1
            to 1,000.

    Raises:
        InvalidEntry: ``after`` is wrong.
    """

    after: int

    def __post_init__(self) -> None:
        _check_times("on_failure.after", self.after)

    @classmethod
    def of(cls, value: object) -> Pause | None:
        """Return the value of ``on_failure=``; a text is converted into a policy.

        Raises:
            InvalidEntry: it is neither ``None``, a policy nor the text of one.
        """
        if value is None or isinstance(value, Pause):
            return value
        match = re.fullmatch("pause:([0-9]{1,9})", value) if isinstance(value, str) else None
        if match is None:
            raise InvalidEntry("on_failure", 'None, Pause(after=3) or "pause:3"', value)
        return cls(int(match[1]))

    def __str__(self) -> str:
        return f"pause:{self.after}"


def _check_times(field: str, times: object) -> None:
    if type(times) is not int or not 1 <= times <= _MOST_FAILURES:
        raise InvalidEntry(field, f"a whole number from 1 to {_MOST_FAILURES}", times)


def _ms(seconds: Duration | None) -> int | None:
    # __post_init__ has converted the duration into seconds.
    return None if seconds is None else round(1000 * seconds)  # type: ignore[arg-type]
