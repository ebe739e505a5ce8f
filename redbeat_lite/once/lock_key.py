"""From the arguments of a call to the key of its once-lock."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import string
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from ..errors import InvalidEntry
from .policy import Once

#: A key longer than this keeps its beginning and gets a digest for the rest.
MAX_KEY = 200

_DIGEST = 32


def key_of(
    once: Once,
    task_name: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    signature: inspect.Signature | None = None,
) -> str:
    """The key of one call.

    Parameters:
        signature: of the task's function; without it, as for a task the caller has not imported, the arguments count
            as they are written: ``f(1)`` and ``f(x=1)`` differ.

    Raises:
        InvalidEntry: an argument that belongs to the key cannot be written as JSON, a template names an argument
            that the call does not have, or a callable key returned something other than text.
    """
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    if callable(once.key):
        return checked(once.key(*args, **kwargs))
    if once.key is not None and not once.fields_of_key:
        return checked(once.key.format())
    arguments = _bound(signature, args, kwargs)
    if once.key is not None:
        return checked(f"{task_name}:{_fill(once.key, arguments)}")
    return checked(f"{task_name}:{digest(canonical(arguments))}" if arguments else task_name)


def checked(key: object) -> str:
    """A key as given, shortened where it is over-long; raises InvalidEntry if it is no text, empty, or not UTF-8."""
    if not isinstance(key, str) or not key:
        raise InvalidEntry("once.key", "text that is not empty", key)
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidEntry("once.key", "text that can be written as UTF-8", key) from None
    return key if len(key) <= MAX_KEY else f"{key[: MAX_KEY - _DIGEST - 1]}#{digest(key)}"


def check_definition(once: Once, function: Callable[..., Any], task_name: str) -> inspect.Signature | None:
    """Hold a policy against the function of its task, when the task is defined.

    Returns:
        the function's signature, ``None`` where it has none that can be read.

    Raises:
        InvalidEntry: a template names an argument the function does not have, or the key is made of all arguments
            and the default of one of them cannot be written as JSON.
    """
    if (signature := signature_of(function)) is None:
        return None
    parameters = signature.parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        for name in once.fields_of_key:
            if name not in signature.parameters:
                known = ", ".join(signature.parameters) or "none"
                raise InvalidEntry("once.key", f"a template of the arguments of {task_name} ({known})", once.key)
    if once.key is None:
        for parameter in parameters:
            if parameter.default is not parameter.empty:
                canonical(parameter.default, f"the default of {parameter.name}")
    return signature


def signature_of(function: Any) -> inspect.Signature | None:
    """The signature of a function; ``None`` where it has none that can be read, or is none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def canonical(value: Any, what: str = "the arguments") -> str:
    """``value`` as JSON, the same for equal values in any process; raises InvalidEntry if it has no such form."""
    try:
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidEntry("once.key", f"{what} to be JSON, or a key that leaves out what is not", value) from None


def digest(text: str) -> str:
    """128 bits of SHA-256 as hex: enough that two keys never meet by chance."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


def _bound(signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if signature is not None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            pass  # The call itself will fail, and says why far better than a lock could.
        else:
            bound.apply_defaults()
            return _flat(signature, bound.arguments)
    named: dict[str, Any] = dict(kwargs)
    if args:
        named["*"] = list(args)
    return named


def _flat(signature: inspect.Signature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Lift what ``**kwargs`` caught to the top, so that a template can name it; drop an empty ``*args``."""
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
        raise InvalidEntry("once.key", f"arguments that fit the template {template!r}", exc) from None


class _Template(string.Formatter):
    """``str.format`` that writes what is neither text nor number as JSON, never as a ``repr`` with an address."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return _as_sent(value) if isinstance(value, (str, int, float)) else canonical(value)


def _as_sent(value: object) -> str:
    """``str(value)`` as it is behind the broker, where an enum's member of text or a number is no more than that."""
    return str(value.value if isinstance(value, Enum) else value)


def _plain(value: Any) -> Any:
    """``value`` made of what JSON knows, such that before and after a trip through the broker it comes out the same."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {_as_sent(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, (datetime, date, time)):
        return f"{type(value).__name__}:{value.isoformat()}"
    if isinstance(value, (UUID, Decimal, timedelta)):
        return f"{type(value).__name__}:{value}"
    if isinstance(value, (bytes, bytearray)):
        return f"bytes:{base64.b64encode(value).decode()}"
    if callable(to_json := getattr(value, "__json__", None)):
        return _plain(to_json())
    raise TypeError(type(value).__name__)
