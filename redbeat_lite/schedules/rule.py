"""What every rule can do, and the Celery face of the schedules of this package."""

from __future__ import annotations

import copyreg
from datetime import datetime, timedelta, tzinfo
from typing import Any, Protocol, runtime_checkable

from celery.schedules import BaseSchedule, schedstate

from ..instants import EPOCH, from_ms
from .zones import zone_name

_MS = timedelta(milliseconds=1)
#: What a plain Celery beat is told to wait for an occurrence that will never come.
NEVER = timedelta(days=365)
#: Occurrences looked at when a rule cannot say how close they come.
SAMPLE = 64


@runtime_checkable
class Rule(Protocol):
    """A source of occurrences: hashable, comparable, without a clock of its own."""

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence strictly later than ``instant``, as aware UTC; None when there is none any more."""
        ...

    def __hash__(self) -> int: ...


class Question(int):
    """An instant, in milliseconds since 1970, at which a schedule wants to be asked whether it is due by then.

    It stands where the next occurrence would, for a schedule that does not know that in advance. It is sought after
    ``asked``.
    """

    asked: int

    def __new__(cls, at: int, asked: int) -> Question:
        question = super().__new__(cls, at)
        question.asked = asked
        return question

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]  # int has one argument
        return int(self), self.asked


class InMs:
    """A source of occurrences at whole milliseconds, in which it is asked."""

    __slots__ = ()

    def next_ms(self, ms: int) -> int | None:
        """The first occurrence strictly later than an instant, both in milliseconds since 1970."""
        raise NotImplementedError

    def next_after(self, instant: datetime) -> datetime | None:
        found = self.next_ms((instant - EPOCH) // _MS)
        return None if found is None else from_ms(found)


class ByKey:
    """Equal to others of the very class whose key is the same."""

    __slots__ = ()

    def _key(self) -> tuple[object, ...]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (ByKey, BaseSchedule, timedelta)):
            return NotImplemented
        # Celery's own comparison would ignore align, and call an interval equal to a timedelta.
        return isinstance(other, ByKey) and type(other) is type(self) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))


class RuleSchedule(InMs, ByKey, BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """A rule that is a Celery schedule too, so that it also runs under a plain ``celery beat``."""

    #: Its own; None for that of the app.
    zone: tzinfo | None = None

    @property
    def tz_name(self) -> str | None:
        """The name of the zone, None for that of the app."""
        return None if self.zone is None else zone_name(self.zone)

    @property
    def tz(self) -> tzinfo:
        return self.zone or self.app.timezone

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Time from now to the first occurrence after the last run; negative when it is overdue."""
        following = self.next_after(self.maybe_make_aware(last_run_at))
        return NEVER if following is None else following - self.maybe_make_aware(self.now())

    def is_due(self, last_run_at: datetime) -> Any:
        """Celery's question: ``(due, seconds until to ask again)``."""
        remaining = self.remaining_estimate(last_run_at)
        if remaining > timedelta(0):
            return schedstate(is_due=False, next=remaining.total_seconds())
        return schedstate(is_due=True, next=self.remaining_estimate(self.now()).total_seconds())

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the app, which often cannot be pickled, and what Celery keeps of it.
        state = {name: value for name, value in vars(self).items() if name not in ("_app", "utc_enabled")}
        return copyreg.__newobj__, (type(self),), {**state, "_app": None}  # type: ignore[attr-defined]  # typeshed leaves it out
