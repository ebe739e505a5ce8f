"""Base classes of rules of time, and of schedules that Celery can use as well."""

from __future__ import annotations

import copyreg
from copy import copy
from datetime import datetime, timedelta, tzinfo
from hashlib import blake2b
from typing import Any, Self

from celery.schedules import BaseSchedule, schedstate

from .._base.errors import InvalidEntry
from .._base.times import EPOCH, from_ms
from .zones import zone_name

_MS = timedelta(milliseconds=1)
#: Default values of the options of schedules. A form does not contain them.
_DEFAULTS = (None, False, "last")
#: Time that a plain Celery beat waits for an occurrence that will never come.
NEVER = timedelta(days=365)


class Rule:
    """Source of occurrences. It knows no clock, and equal rules have the same occurrences.

    A rule has no occurrence unless its class defines :meth:`next_ms`.
    """

    __slots__ = ()

    def next_ms(self, ms: int) -> int | None:
        """Return the first occurrence later than an instant, in milliseconds since 1970, if any.

        Some schedules do not know their next occurrence in advance. For these, the result is a
        `Question`, which is an integer, too: the instant at which to ask the schedule again.
        """
        return None

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first occurrence later than ``instant`` in UTC; None if there are no more."""
        following = self.next_ms((instant - EPOCH) // _MS)
        return None if following is None else from_ms(following)


class Question(int):
    """Time at which to ask a schedule whether it is due, in milliseconds since 1970.

    It stands in place of the next occurrence of a schedule that does not know it in advance.

    Parameters:
        at: time at which the schedule is asked.
        after: the question is about the first occurrence after this instant.
    """

    after: int

    def __new__(cls, at: int, after: int) -> Question:
        question = super().__new__(cls, at)
        question.after = after
        return question

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]  # int has one argument
        return int(self), self.after


class RuleSchedule(Rule, BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """Rule that is a Celery schedule too, so that it also runs under a plain ``celery beat``."""

    #: Names of the fields in the stored form, each with the name of the attribute that holds its
    #: value. The first field has the rule, and is named as the class of the schedule.
    #: The other fields are options.
    fields: tuple[tuple[str, str], ...]

    def form(self) -> dict[str, Any]:
        """Return the form of the schedule: its rule, and the options that differ from defaults."""
        form: dict[str, Any] = {}
        for field, attribute in self.fields:
            value = getattr(self, attribute)
            if isinstance(value, datetime):
                value = value.isoformat()
            # None, False and "last" are only defaults, so leave them out.
            if value not in _DEFAULTS:
                form[field] = value
        return form

    def __repr__(self) -> str:
        """Return the call that makes an equal schedule."""
        (kind, rule), *options = self.form().items()
        arguments = [repr(rule), *(f"{name}={value!r}" for name, value in options)]
        return f"{kind}({', '.join(arguments)})"

    def __eq__(self, other: object) -> bool:
        """Equal if a user would write the same for both, in capital letters or small ones."""
        if not isinstance(other, BaseSchedule | timedelta):
            return NotImplemented
        # Celery's own comparison would ignore align, and call an interval equal to a timedelta.
        return type(other) is type(self) and repr(self).lower() == repr(other).lower()

    def __hash__(self) -> int:
        return hash(repr(self).lower())

    def in_zone(self, zone: tzinfo) -> Rule:
        """Return the rule in its own zone, or in ``zone`` if it has none."""
        return self

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return the time to the first occurrence after a run; negative if it is overdue."""
        following = self.next_after(self.maybe_make_aware(last_run_at))
        return NEVER if following is None else following - self.maybe_make_aware(self.now())

    def is_due(self, last_run_at: datetime) -> Any:
        """Answer Celery's question: whether to run now, and in how many seconds to ask again."""
        remaining = self.remaining_estimate(last_run_at)
        if remaining > timedelta(0):
            return schedstate(is_due=False, next=remaining.total_seconds())
        # After this run, the next one is the first occurrence after the present time.
        return schedstate(is_due=True, next=self.remaining_estimate(self.now()).total_seconds())

    def __reduce__(self) -> tuple[Any, ...]:
        # Leave out the app, which often cannot be pickled, and values that Celery takes from it.
        state = {**vars(self), "_app": None}
        state.pop("utc_enabled", None)
        state.pop("tz", None)
        return copyreg.__newobj__, (type(self),), state  # type: ignore[attr-defined]


class WallSchedule(RuleSchedule):
    """Schedule by the clock on a wall. Subclasses define `in_zone`, which makes the rule for a
    zone.
    """

    #: Zone in which the schedule is written; None for the zone of the app.
    zone: tzinfo | None = None

    def next_ms(self, ms: int) -> int | None:
        return self.in_zone(self.tz).next_ms(ms)

    @property
    def tz_name(self) -> str | None:
        """Name of the own zone; None for the zone of the app."""
        return None if self.zone is None else zone_name(self.zone)

    @property
    def tz(self) -> tzinfo:
        """Zone in which the schedule runs: its own, or the zone of the app."""
        return self.zone or self.app.timezone


class SpreadSchedule(RuleSchedule):
    """Schedule whose times may depend on the name of its entry; then ``spread`` is true.

    ``resolved`` is the value that the name has decided, or None before an entry has the schedule.
    It is not stored, because it follows from the schedule and the name. Two schedules that differ
    in it alone are equal.
    """

    spread = False
    resolved: Any = None

    def of(self, name: str) -> Self:
        """Return this schedule for one entry, whose name decides on the spread."""
        if not self.spread:
            return self
        twin = copy(self)
        twin.resolved = self._resolve(name)
        return twin

    def describe_resolved(self) -> str:
        """Return the value that the name has decided, in a few words."""
        return str(self.resolved)

    def _resolve(self, name: str) -> object:
        """Return the value that is computed from the name of an entry; ``None`` if none is."""
        return None

    def _require_resolved(self) -> Any:
        """Return the value that the name has decided; raise InvalidEntry if there is none yet."""
        if self.resolved is None:
            hint = "when it runs goes by the entry's name: ask Entry(name, task, schedule).schedule"
            raise InvalidEntry("schedule", "the schedule of an entry", self, hint=hint)
        return self.resolved


def resolved_text(schedule: BaseSchedule) -> str | None:
    """Describe the times of a spread schedule for its entry; ``None`` for another schedule."""
    if isinstance(schedule, SpreadSchedule) and schedule.spread:
        return schedule.describe_resolved()
    return None


def draw(text: str, bound: int) -> int:
    """Return the number from 0 to below ``bound`` that a text decides.

    Many texts together have each number equally often.
    """
    # Unlike hash(), a digest is the same in every process. With its 64 bits, the remainders are
    # almost equally frequent: the error is below bound / 2**64.
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % bound
