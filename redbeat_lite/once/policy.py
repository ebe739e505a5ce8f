"""What a once-lock promises: the policy, as plain data. Nothing here knows of Redis or of a Celery app."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from ..durations import Duration, length_of
from ..errors import InvalidEntry, known_only
from ..instants import YEAR
from ..public import public

#: What a policy may say about the span of its lock, and about a key that is taken.
Scope = Literal["run", "queue"]
Conflict = Literal["skip", "wait", "raise"]
SCOPES, CONFLICTS = get_args(Scope), get_args(Conflict)

#: A lease is renewed three times before it runs out, and a renewal may take a few hundred milliseconds on a bad day.
MIN_LEASE = 1.0

#: What a template may say in braces: the name of an argument, and which item of it.
_FIELD = re.compile(r"[^\W\d]\w*(\[[^][{}.]+\])*")

#: More than this can wait for no key: each is a whole message in the server's memory.
MAX_WAITERS = 1_000_000


@public
@dataclass(frozen=True, slots=True)
class Once:
    """One task of a key at a time. Lengths of time are seconds, a timedelta or a text such as ``"1h30m"``.

    Parameters:
        key: what makes two calls "the same". ``None``: the task's name and all of its arguments, bound to their names
            and defaults, so that ``f(1)`` and ``f(x=1)`` are the same. A template such as ``"{feed_url}"`` names the
            arguments that count; it belongs to its task, two tasks with the same template do not meet. Text without
            fields, such as ``"reindex"``, is one key for every call and for every task that gives it. A callable
            gets the task's arguments and returns the text; its keys too are shared by all tasks that return them.
        scope: ``"run"``: one running at a time. ``"queue"``: one queued or running at a time; the lock is taken when
            the task is published and kept until it ends.
        on_conflict: what becomes of a call whose key is taken. ``"skip"``: it ends as REVOKED with
            :class:`~redbeat_lite.OnceSkipped`. ``"wait"``: it is parked in Redis, holding no worker
            slot, and runs in its turn. ``"raise"``: it fails with :class:`~redbeat_lite.OnceRejected`,
            with ``scope="queue"`` already where it is called, unless Celery calls it for the rest of a chain.
        lease: after how long the lock of a holder that fell silent is free, from a second to a year. It is renewed
            while the task runs, so it may be far shorter than the task.
        hold_on_retry: keep the lock while the task waits for its own retry.
        max_hold: after how long the lock is no longer renewed although the task still runs: a bound for tasks that
            hang. From a second to a year. A copy of that very task stands by all the same. ``None``: none.
        max_waiters: with ``"wait"``, how many calls may be parked for one key, 1 to 1,000,000; one more fails with
            ``OnceRejected``. ``None``: as many as come.
    """

    key: str | Callable[..., str] | None = None
    scope: Scope = "run"
    on_conflict: Conflict = "skip"
    lease: Duration = 60.0
    hold_on_retry: bool = True
    max_hold: Duration | None = None
    max_waiters: int | None = None

    def __post_init__(self) -> None:
        _check_key(self.key)
        _check("scope", self.scope in SCOPES, f"one of {', '.join(SCOPES)}", self.scope)
        _check("on_conflict", self.on_conflict in CONFLICTS, f"one of {', '.join(CONFLICTS)}", self.on_conflict)
        object.__setattr__(self, "lease", check_seconds("once.lease", self.lease))
        _check("hold_on_retry", isinstance(self.hold_on_retry, bool), "True or False", self.hold_on_retry)
        if self.max_hold is not None:
            object.__setattr__(self, "max_hold", check_seconds("once.max_hold", self.max_hold))
        waiters = self.max_waiters
        is_right = waiters is None or (type(waiters) is int and 1 <= waiters <= MAX_WAITERS)
        _check("max_waiters", is_right, f"None or a whole number from 1 to {MAX_WAITERS}", waiters)

    @classmethod
    def of(cls, value: bool | Once | Mapping[str, Any] | None, *, lease: float = 60.0) -> Once | None:
        """Read what a user wrote as ``once=``.

        Parameters:
            value: ``True`` means one message queued or running, further ones skipped. ``False`` and ``None`` mean no
                lock. A mapping holds the fields by name.
            lease: seconds, where ``value`` does not say.

        Raises:
            InvalidEntry: ``value`` is something else, or a field of it is wrong.
        """
        if value is None or value is False:
            return None
        if value is True:
            return cls(scope="queue", lease=lease)
        if isinstance(value, Once):
            return value
        if isinstance(value, Mapping):
            return cls(**{"lease": lease, **known_only("once", value, _DEFAULTS)})
        raise InvalidEntry("once", "True, False, a Once or a mapping of its fields", value)

    def encode(self) -> dict[str, Any]:
        """The policy as JSON-able data, but for defaults; raises InvalidEntry if the key is a callable."""
        if callable(self.key):
            raise InvalidEntry("once.key", "None or text, because a callable cannot be stored", self.key)
        stored = {name: getattr(self, name) for name in _DEFAULTS}
        return {name: value for name, value in stored.items() if value != _DEFAULTS[name]}

    @classmethod
    def decode(cls, data: Any) -> Once:
        """The inverse, without fields of a later version; raises InvalidEntry for no mapping, or a wrong field."""
        if not isinstance(data, Mapping):
            raise InvalidEntry("once", "a mapping of the fields of Once", data)
        return cls(**{name: value for name, value in data.items() if name in _DEFAULTS})

    def but(self, **changes: Any) -> Once:
        """The same policy with some fields changed."""
        return replace(self, **changes)

    @property
    def lease_ms(self) -> int:
        """``lease`` in milliseconds."""
        return round(1000 * check_seconds("once.lease", self.lease))

    @property
    def at_publish(self) -> bool:
        """Whether the lock is taken when the task is published, rather than by the worker."""
        return self.scope == "queue" and self.on_conflict != "wait"

    @property
    def fields_of_key(self) -> tuple[str, ...]:
        """The names of the arguments that a template names in braces, without an index such as ``[id]``."""
        if not isinstance(self.key, str):
            return ()
        found = (field for _, field, _, _ in string.Formatter().parse(self.key) if field is not None)
        return tuple(dict.fromkeys(field.partition("[")[0] for field in found))


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Once)}


def _check(field: str, ok: bool, expected: str, value: object) -> None:
    if not ok:
        raise InvalidEntry(f"once.{field}", expected, value)


def check_seconds(field: str, value: object, least: float = MIN_LEASE, most: float = YEAR) -> float:
    """The seconds of a length of time; raises InvalidEntry for more than a year, which is a unit mistaken, or less."""
    return length_of(field, value, f"at least {least:g} s and at most {most / 86_400:g} days", least, most)


def _check_key(key: object) -> None:
    if key is None or callable(key):
        return
    _check("key", isinstance(key, str) and bool(key.strip()), "None, text, a template or a callable", key)
    assert isinstance(key, str)
    try:
        parts = list(string.Formatter().parse(key))
    except ValueError as exc:
        raise InvalidEntry("once.key", f"a template that can be read ({exc})", key) from None
    for _, field, spec, conversion in parts:
        # A template may come from Redis. No attributes, by which it could walk from an argument to everything the
        # process knows; no formats, whose widths could fill its memory; no positions, which say nothing.
        ok = field is None or (_FIELD.fullmatch(field) and not spec and not conversion)
        _check("key", bool(ok), "the name of an argument in each pair of braces, as {order} or {order[id]}", key)
