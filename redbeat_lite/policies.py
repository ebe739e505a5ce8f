"""Policies of an entry: missed occurrences, once-locks, expectations, and runs that fail."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, TypedDict

from ._base.errors import InvalidEntry
from ._base.fields import POSITIVE, Kind, Model, Wrong, length, require, whole
from ._base.public import public
from ._base.times import Duration

MisfirePolicy = Literal["coalesce", "skip", "all"]
Scope = Literal["run", "queue"]
Conflict = Literal["skip", "wait", "raise"]

#: Highest ``limit`` of a misfire policy: occurrences of one outage that it may send.
MAX_LIMIT = 1000

#: Maximum number of failures in a row that an expectation or a policy may wait for.
MAX_FAILURES = 1000

#: Shortest lease in seconds. A lease is renewed three times before it runs out, and a renewal may
#: take a few hundred milliseconds.
MIN_LEASE = 1.0

#: Maximum number of tasks that may wait for one key, because each is a whole message in the
#: server's memory.
MAX_WAITERS = 1_000_000


@public
class Misfire(Model, frozen=True):
    """Policy for occurrences that are late after an outage, a pause, or a server's clock set ahead.

    Parameters:
        policy: ``"coalesce"`` sends the latest missed occurrence, once; ``"skip"`` sends none that
            is later than ``grace``; ``"all"`` sends each, oldest first.
        grace: a length of time; less than a second counts as one. Occurrences that are later are
            skipped under every policy. None means no bound, and under ``"skip"`` 5 seconds or a
            quarter of the time to the next occurrence, whichever is less.
        limit: maximum number of occurrences of one outage, 1 to 1000, that ``"all"`` (or ``"skip"``
            within its grace) sends. The oldest are sent, and the later ones skipped.

    Raises:
        InvalidEntry: an unknown policy, a negative grace, a limit out of bounds.
    """

    path: ClassVar[str] = "misfire"
    forms: ClassVar[str] = "a policy's name, a Misfire or a mapping of its fields"

    policy: MisfirePolicy = "coalesce"
    grace: Annotated[Duration | None, length(0, math.inf)] = None
    limit: Annotated[int | None, whole(1, MAX_LIMIT)] = None

    @classmethod
    def of(cls, value: Any) -> Misfire:
        """Return a policy from its name, from a mapping of the parameters, or itself.

        Raises:
            InvalidEntry: anything else.
        """
        if isinstance(value, str):
            value = {"policy": value}
        return super().of(value)  # type: ignore[no-any-return]

    def encode(self) -> str | dict[str, Any]:
        """Return JSON: the policy's name alone if nothing else is set."""
        if self == Misfire(self.policy):
            return self.policy
        return super().encode()  # type: ignore[no-any-return]

    @property
    def grace_ms(self) -> int | None:
        """``grace`` in milliseconds, at least 1,000, because no run is sent in no time."""
        grace = _ms(self.grace)
        return None if grace is None else max(grace, 1000)


#: Field of a template: the name of an argument, or an item of it such as ``order[id]``.
_ARGUMENT = re.compile(r"[^\W\d]\w*(\[[^][{}.]+\])*")


def _convert_key(value: Any) -> Any:
    """Return the key of a once-lock, if it is a text, a safe template or a callable."""
    if callable(value):
        return value
    require(isinstance(value, str) and bool(value.strip()), value)
    try:
        parts = list(string.Formatter().parse(value))
    except ValueError as exc:
        raise Wrong(str(exc)) from None
    # A part is a text and the field after it; ``argument`` is None if no field follows.
    for _, argument, spec, conversion in parts:
        # A template may come from Redis. An attribute, as in {x.y}, could lead from an argument to
        # everything in the process, and the width of a format could fill the memory. A position,
        # as in {0}, does not name an argument.
        if argument is not None:
            is_safe = not spec and not conversion and _ARGUMENT.fullmatch(argument)
            require(bool(is_safe), value)
    return value


def _store_key(key: Any, field: str) -> Any:
    """Return the stored form of a key, which is its text; refuse a callable."""
    if callable(key):
        raise InvalidEntry(field, "None or text, because a callable cannot be stored", key)
    return key


_KEY = Kind(
    "TEXT",
    "text, a callable, or a template with the name of an argument in each pair of braces, as "
    "{order} or {order[id]}",
    _convert_key,
    _store_key,
)


@public
class Once(Model, frozen=True):
    """Policy by which at most one task with the same key runs at a time.

    Lengths of time are seconds, a timedelta or a text such as ``"1h30m"``.

    Parameters:
        key: decides which calls are the same. ``None``: the task's name and all of its arguments,
            bound to their names and defaults, so that ``f(1)`` and ``f(x=1)`` are the same. A
            template such as ``"{feed_url}"`` names the arguments that count; it belongs to its
            task, so two tasks with the same template do not share a key. Text without fields, such
            as ``"reindex"``, is one key for every call and for every task that uses it. A callable
            gets the task's arguments and returns the text; all tasks whose callables return the
            same text share this key.
        scope: ``"run"``: one task runs at a time. ``"queue"``: one task is queued or runs at a
            time; the lock is acquired when the task is published, and kept until the task ends.
        on_conflict: what happens to a call whose key is taken. ``"skip"``: it ends as REVOKED with
            :class:`~redbeat_lite.OnceSkipped`. ``"wait"``: it is parked in Redis, holding no worker
            slot, and runs in its turn. ``"raise"``: it fails with
            :class:`~redbeat_lite.OnceRejected`. With ``scope="queue"``, the error is raised already
            in the code that calls the task, unless Celery calls it as a later task of a chain.
        lease: time after which the lock expires if its holder no longer renews it, from a second to
            a year. It is renewed while the task runs, so it may be far shorter than the task.
        hold_on_retry: keep the lock while the task waits for its own retry.
        max_hold: time after which the lock is no longer renewed although the task still runs, so
            that a task that hangs does not keep it for ever. From a second to a year. A second copy
            of the same message still waits for the first one. ``None``: no bound.
        max_waiters: maximum number of calls that ``"wait"`` parks for one key, 1 to 1,000,000. The
            next one fails with ``OnceRejected``. ``None``: no bound.
    """

    path: ClassVar[str] = "once"
    forms: ClassVar[str] = "True, False, a Once or a mapping of its fields"

    key: Annotated[str | Callable[..., str] | None, _KEY] = None
    scope: Scope = "run"
    on_conflict: Conflict = "skip"
    lease: Annotated[Duration, length(MIN_LEASE)] = 60.0
    hold_on_retry: bool = True
    max_hold: Annotated[Duration | None, length(MIN_LEASE)] = None
    max_waiters: Annotated[int | None, whole(1, MAX_WAITERS)] = None

    @classmethod
    def of(cls, value: Any) -> Once | None:
        """Return the policy that a user wrote as ``once=``.

        Parameters:
            value: ``True`` means one message queued or running, further ones skipped. ``False`` and
                ``None`` mean no lock. A mapping holds the fields by name.

        Raises:
            InvalidEntry: ``value`` is something else, or a field of it is wrong.
        """
        if value is None or value is False:
            return None
        return cls(scope="queue") if value is True else super().of(value)

    @property
    def lease_ms(self) -> int:
        """``lease`` in milliseconds."""
        return _ms(self.lease) or 0  # for type checkers: a lease is never None

    @property
    def at_publish(self) -> bool:
        """Whether the lock is acquired when the task is published, rather than by the worker."""
        return self.scope == "queue" and self.on_conflict != "wait"

    @property
    def fields_of_key(self) -> tuple[str, ...]:
        """Names of the arguments in a template, without an index such as ``[id]``."""
        if not isinstance(self.key, str):
            return ()
        fields = [field for _, field, _, _ in string.Formatter().parse(self.key) if field]
        return tuple(dict.fromkeys(field.partition("[")[0] for field in fields))


@public
class Expect(Model, frozen=True):
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

    path: ClassVar[str] = "expect"
    forms: ClassVar[str] = "None, False, an Expect or a mapping of its fields"

    start_within: Annotated[Duration | None, length(POSITIVE)] = None
    finish_within: Annotated[Duration | None, length(POSITIVE)] = None
    succeed_every: Annotated[Duration | None, length(POSITIVE)] = None
    failures: Annotated[int, whole(1, MAX_FAILURES)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        # The lengths of time are in seconds now.
        start: Any = self.start_within
        finish: Any = self.finish_within
        if start is not None and finish is not None and finish < start:
            expected = f"not less than start_within ({start:g} s)"
            raise InvalidEntry("expect.finish_within", expected, finish)

    @classmethod
    def of(cls, value: Any) -> Expect | Literal[False] | None:
        """Return the value of ``expect=``; a mapping is converted into an expectation.

        ``None`` means the app's default, and ``False`` no expectation, not even the default.

        Raises:
            InvalidEntry: it is neither ``None``, ``False``, an expectation nor a mapping of its
                fields; or a field is wrong.
        """
        if value is None or value is False:
            return value
        return super().of(value)  # type: ignore[no-any-return]

    @property
    def start_ms(self) -> int | None:
        """``start_within`` in milliseconds."""
        return _ms(self.start_within)

    @property
    def finish_ms(self) -> int | None:
        """``finish_within`` in milliseconds."""
        return _ms(self.finish_within)

    @property
    def success_ms(self) -> int | None:
        """``succeed_every`` in milliseconds."""
        return _ms(self.succeed_every)


@public
class Pause(Model, frozen=True):
    """Policy of ``on_failure`` that pauses an entry whose runs fail.

    Parameters:
        after: number of runs in a row that have failed, were rejected or have lost their worker; 1
            to 1,000.

    Raises:
        InvalidEntry: ``after`` is wrong.
    """

    path: ClassVar[str] = "on_failure"
    forms: ClassVar[str] = 'None, Pause(after=3) or "pause:3"'

    after: Annotated[int, whole(1, MAX_FAILURES)]

    @classmethod
    def of(cls, value: Any) -> Pause | None:
        """Return the value of ``on_failure=``; a text is converted into a policy.

        Raises:
            InvalidEntry: it is neither ``None``, a policy nor the text of one.
        """
        if value is None or isinstance(value, Pause):
            return value
        match = re.fullmatch("pause:([0-9]{1,9})", value) if isinstance(value, str) else None
        if match is None:
            raise InvalidEntry(cls.path, cls.forms, value)
        return cls(int(match[1]))

    def encode(self) -> str:
        """Return the text of the policy, such as ``"pause:3"``."""
        return f"pause:{self.after}"


def _ms(seconds: Duration | None) -> int | None:
    """Return a length of time in milliseconds, from a field that has been checked."""
    # The check of the field has converted every form of a duration to seconds.
    return None if seconds is None else round(1000 * seconds)  # type: ignore[arg-type]


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
