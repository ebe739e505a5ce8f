"""The policy of a once-lock, and the key of one call. Nothing here uses Redis or a Celery app."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, get_args
from uuid import UUID

from .._base.errors import InvalidEntry, check_field_names
from .._base.public import public
from .._base.times import YEAR, Duration, length_of

Scope = Literal["run", "queue"]
Conflict = Literal["skip", "wait", "raise"]
SCOPES = get_args(Scope)
CONFLICTS = get_args(Conflict)

#: Shortest lease in seconds. A lease is renewed three times before it runs out, and a renewal may
#: take a few hundred milliseconds.
MIN_LEASE = 1.0

#: Most tasks that may wait for one key, because each is a whole message in the server's memory.
MAX_WAITERS = 1_000_000

#: Most characters of a key. A longer key keeps its beginning, and gets a digest for the rest.
MAX_KEY = 200

#: Hexadecimal digits of a digest.
_DIGEST = 32

#: Field of a template: the name of an argument, and perhaps an item of it.
_FIELD = re.compile(r"[^\W\d]\w*(\[[^][{}.]+\])*")


@public
@dataclass(frozen=True, slots=True)
class Once:
    """One task of a key at a time.

    Lengths of time are seconds, a timedelta or a text such as ``"1h30m"``.

    Parameters:
        key: decides which calls are the same. ``None``: the task's name and all of its arguments,
            bound to their names and defaults, so that ``f(1)`` and ``f(x=1)`` are the same. A
            template such as ``"{feed_url}"`` names the arguments that count; it belongs to its
            task, so two tasks with the same template do not meet. Text without fields, such as
            ``"reindex"``, is one key for every call and for every task that uses it. A callable
            gets the task's arguments and returns the text; its keys too are shared by all tasks
            that return them.
        scope: ``"run"``: one running at a time. ``"queue"``: one queued or running at a time; the
            lock is acquired when the task is published and kept until it ends.
        on_conflict: what happens to a call whose key is taken. ``"skip"``: it ends as REVOKED with
            :class:`~redbeat_lite.OnceSkipped`. ``"wait"``: it is parked in Redis, holding no worker
            slot, and runs in its turn. ``"raise"``: it fails with
            :class:`~redbeat_lite.OnceRejected`, with ``scope="queue"`` already where it is called,
            unless Celery calls it for the rest of a chain.
        lease: after how long the lock of a holder that fell silent is free, from a second to a
            year. It is renewed while the task runs, so it may be far shorter than the task.
        hold_on_retry: keep the lock while the task waits for its own retry.
        max_hold: after how long the lock is no longer renewed although the task still runs: a bound
            for tasks that hang. From a second to a year. A copy of that very task stands by all the
            same. ``None``: no bound.
        max_waiters: with ``"wait"``, how many calls may be parked for one key, 1 to 1,000,000; one
            more fails with ``OnceRejected``. ``None``: no bound.
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
        _check_choice("scope", self.scope, SCOPES)
        _check_choice("on_conflict", self.on_conflict, CONFLICTS)
        object.__setattr__(self, "lease", check_seconds("once.lease", self.lease))
        if not isinstance(self.hold_on_retry, bool):
            raise InvalidEntry("once.hold_on_retry", "True or False", self.hold_on_retry)
        if self.max_hold is not None:
            object.__setattr__(self, "max_hold", check_seconds("once.max_hold", self.max_hold))
        most = self.max_waiters
        if most is not None and not (type(most) is int and 1 <= most <= MAX_WAITERS):
            expected = f"None or a whole number from 1 to {MAX_WAITERS}"
            raise InvalidEntry("once.max_waiters", expected, most)

    @classmethod
    def of(
        cls,
        value: bool | Once | Mapping[str, Any] | None,
        *,
        lease: float = 60.0,
    ) -> Once | None:
        """Return the policy that a user wrote as ``once=``.

        Parameters:
            value: ``True`` means one message queued or running, further ones skipped. ``False`` and
                ``None`` mean no lock. A mapping holds the fields by name.
            lease: seconds, if ``value`` has no lease.

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
            return cls(**{"lease": lease, **check_field_names("once", value, _DEFAULTS)})
        raise InvalidEntry("once", "True, False, a Once or a mapping of its fields", value)

    def encode(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as JSON-able data.

        Raises:
            InvalidEntry: the key is a callable.
        """
        if callable(self.key):
            expected = "None or text, because a callable cannot be stored"
            raise InvalidEntry("once.key", expected, self.key)
        stored = {name: getattr(self, name) for name in _DEFAULTS}
        return {name: value for name, value in stored.items() if value != _DEFAULTS[name]}

    @classmethod
    def decode(cls, data: Any) -> Once:
        """Return the policy that :meth:`encode` wrote; skip the fields of a later version.

        Raises:
            InvalidEntry: ``data`` is no mapping, or a field is wrong.
        """
        if not isinstance(data, Mapping):
            raise InvalidEntry("once", "a mapping of the fields of Once", data)
        return cls(**{name: value for name, value in data.items() if name in _DEFAULTS})

    def but(self, **changes: Any) -> Once:
        """Return the same policy with some fields changed."""
        return replace(self, **changes)

    @property
    def lease_ms(self) -> int:
        """``lease`` in milliseconds."""
        return round(1000 * check_seconds("once.lease", self.lease))

    @property
    def at_publish(self) -> bool:
        """Whether the lock is acquired when the task is published, rather than by the worker."""
        return self.scope == "queue" and self.on_conflict != "wait"

    @property
    def fields_of_key(self) -> tuple[str, ...]:
        """Names of the arguments in a template, without an index such as ``[id]``."""
        if not isinstance(self.key, str):
            return ()
        names = [field.partition("[")[0] for field in _fields(self.key)]
        return tuple(dict.fromkeys(names))


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Once)}


def check_seconds(field: str, value: object, least: float = MIN_LEASE, most: float = YEAR) -> float:
    """Return the seconds of a length of time.

    Raises:
        InvalidEntry: it is less than ``least``, or more than a year, which is a mistaken unit.
    """
    expected = f"at least {least:g} s and at most {most / 86_400:g} days"
    return length_of(field, value, expected, least, most)


def _check_choice(field: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidEntry(f"once.{field}", f"one of {', '.join(choices)}", value)


def _check_key(key: object) -> None:
    """Raise InvalidEntry unless a key is None, a callable, a text or a safe template."""
    if key is None or callable(key):
        return
    if not isinstance(key, str) or not key.strip():
        raise InvalidEntry("once.key", "None, text, a template or a callable", key)
    try:
        parts = list(string.Formatter().parse(key))
    except ValueError as exc:
        raise InvalidEntry("once.key", f"a template that can be read ({exc})", key) from None
    for _, field, spec, conversion in parts:
        # A template may come from Redis. An attribute could lead from an argument to everything in
        # the process, and the width of a format could fill the memory. A position tells nothing.
        if field is not None and (spec or conversion or not _FIELD.fullmatch(field)):
            expected = "the name of an argument in each pair of braces, as {order} or {order[id]}"
            raise InvalidEntry("once.key", expected, key)


def _fields(template: str) -> list[str]:
    return [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]


# -- the key of one call ---------------------------------------------------------------------------


def key_of(
    once: Once,
    task_name: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    signature: inspect.Signature | None = None,
) -> str:
    """Return the key of one call.

    Parameters:
        signature: of the task's function. Without it, as for a task that the caller has not
            imported, the arguments count as they are written, so ``f(1)`` and ``f(x=1)`` differ.

    Raises:
        InvalidEntry: an argument that belongs to the key cannot be written as JSON, a template
            names an argument that the call does not have, or a callable key returned no text.
    """
    args = tuple(args or ())
    kwargs = dict(kwargs or {})
    if callable(once.key):
        return checked_key(once.key(*args, **kwargs))
    if once.key is not None and not once.fields_of_key:
        return checked_key(once.key.format())
    arguments = _bind(signature, args, kwargs)
    if once.key is not None:
        return checked_key(f"{task_name}:{_fill(once.key, arguments)}")
    if not arguments:
        return checked_key(task_name)
    return checked_key(f"{task_name}:{digest(canonical(arguments))}")


def checked_key(key: object) -> str:
    """Return a key, shortened if it is too long.

    Raises:
        InvalidEntry: it is no text, it is empty, or it cannot be written as UTF-8.
    """
    if not isinstance(key, str) or not key:
        raise InvalidEntry("once.key", "text that is not empty", key)
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidEntry("once.key", "text that can be written as UTF-8", key) from None
    if len(key) <= MAX_KEY:
        return key
    return f"{key[: MAX_KEY - _DIGEST - 1]}#{digest(key)}"


def check_definition(
    once: Once,
    function: Callable[..., Any],
    task_name: str,
) -> inspect.Signature | None:
    """Check a policy against the function of its task, when the task is defined.

    Returns:
        the function's signature; ``None`` if it cannot be read.

    Raises:
        InvalidEntry: a template names an argument that the function does not have, or the key is
            made of all arguments and the default of one cannot be written as JSON.
    """
    signature = signature_of(function)
    if signature is None:
        return None
    parameters = signature.parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for name in once.fields_of_key:
        if name not in signature.parameters and not takes_any:
            known = ", ".join(signature.parameters) or "none"
            expected = f"a template of the arguments of {task_name} ({known})"
            raise InvalidEntry("once.key", expected, once.key)
    if once.key is None:
        for parameter in parameters:
            if parameter.default is not parameter.empty:
                canonical(parameter.default, f"the default of {parameter.name}")
    return signature


def signature_of(function: Any) -> inspect.Signature | None:
    """Return the signature of a function; ``None`` if it cannot be read or is no function."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def canonical(value: Any, what: str = "the arguments") -> str:
    """Return a value as JSON, the same for equal values in any process.

    Raises:
        InvalidEntry: the value has no such form.
    """
    try:
        plain = _plain(value)
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        expected = f"{what} to be JSON, or a key that leaves out what is not"
        raise InvalidEntry("once.key", expected, value) from None


def digest(text: str) -> str:
    """Return 128 bits of SHA-256 as hex, so that two keys never meet by chance."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


def _bind(
    signature: inspect.Signature | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Return the arguments of a call by their names."""
    if signature is not None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            pass  # The call itself will fail, and its error says why.
        else:
            bound.apply_defaults()
            return _flatten(signature, bound.arguments)
    arguments = dict(kwargs)
    if args:
        arguments["*"] = list(args)
    return arguments


def _flatten(signature: inspect.Signature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Lift the items of ``**kwargs``, so that a template can name them; drop an empty ``*args``."""
    flat: dict[str, Any] = {}
    for name, value in arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            flat.update(value)
        elif kind is not inspect.Parameter.VAR_POSITIONAL or value:
            flat[name] = value
    return flat


def _fill(template: str, arguments: Mapping[str, Any]) -> str:
    try:
        return _Template().vformat(template, (), arguments)
    except InvalidEntry:
        raise
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        expected = f"arguments that fit the template {template!r}"
        raise InvalidEntry("once.key", expected, exc) from None


class _Template(string.Formatter):
    """``str.format`` that writes values other than text and numbers as JSON, not as a ``repr``."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, (str, int, float)):
            return _as_sent(value)
        return canonical(value)


def _as_sent(value: object) -> str:
    """Return a value as text, as it arrives behind the broker: an enum's member is its value."""
    if isinstance(value, Enum):
        value = value.value
    return str(value)


def _plain(value: Any) -> Any:
    """Return a value made of JSON's types, the same before and after a trip through the broker."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {_as_sent(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        items = [_plain(item) for item in value]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, (datetime, date, time)):
        return f"{type(value).__name__}:{value.isoformat()}"
    if isinstance(value, (UUID, Decimal, timedelta)):
        return f"{type(value).__name__}:{value}"
    if isinstance(value, (bytes, bytearray)):
        return f"bytes:{base64.b64encode(value).decode()}"
    to_json = getattr(value, "__json__", None)
    if callable(to_json):
        return _plain(to_json())
    raise TypeError(type(value).__name__)
