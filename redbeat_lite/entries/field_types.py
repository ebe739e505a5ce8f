"""Types of the values that a user may write in the fields of an entry, for type checkers.

:class:`redbeat_lite.Entry` explains the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict

from .._base.public import public
from .._base.times import Duration
from ..expect import Expect, Pause
from ..once.policy import Conflict, Once, Scope
from ..rules.calendars import Calendar
from ..rules.misfire import Misfire, MisfirePolicy

if TYPE_CHECKING:
    # Celery ships no types, so mypy would accept any value for its class, such as None or a
    # datetime.

    class BaseSchedule(Protocol):
        def is_due(self, last_run_at: Any) -> Any: ...
else:
    from celery.schedules import BaseSchedule


@public
class OnceFields(TypedDict, total=False):
    """The fields of a :class:`redbeat_lite.Once`, as a dict."""

    key: str | Callable[..., str] | None
    scope: Scope
    on_conflict: Conflict
    lease: Duration
    hold_on_retry: bool
    max_hold: Duration | None
    max_waiters: int | None


@public
class MisfireFields(TypedDict, total=False):
    """The fields of a :class:`redbeat_lite.Misfire`, as a dict."""

    policy: MisfirePolicy
    grace: Duration | None
    limit: int | None


@public
class ExpectFields(TypedDict, total=False):
    """The fields of an :class:`redbeat_lite.Expect`, as a dict."""

    start_within: Duration | None
    finish_within: Duration | None
    succeed_every: Duration | None
    failures: int


Schedule: TypeAlias = Duration | BaseSchedule
# Not Sequence, because a text is a sequence too.
Args = list[Any] | tuple[Any, ...] | None
Kwargs = Mapping[str, Any] | None
# Duration includes texts, so it includes "interval".
Expires = Duration | None
OnceField = bool | Once | OnceFields | None
MisfireField = MisfirePolicy | Misfire | MisfireFields
ExpectField = Expect | ExpectFields | Literal[False] | None
OnFailure = Pause | str | None
CalendarField = Calendar | str | None


@public
class Policies(TypedDict, total=False):
    """The optional fields that :meth:`redbeat_lite.Schedules.add` takes by name."""

    expires: Expires
    once: OnceField
    misfire: MisfireField
    jitter: Duration
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    enabled: bool
    description: str
    remove_when_done: bool
    history: int | None
    expect: ExpectField
    on_failure: OnFailure
    calendar: CalendarField
    tags: Collection[str]


@public
class Changes(Policies, total=False):
    """All fields that may be changed."""

    task: Any
    schedule: Schedule
    args: Args
    kwargs: Kwargs
    options: Kwargs
    relative: bool
