"""Key of the once-lock of one call. This module uses neither Redis nor a Celery app."""

from __future__ import annotations

import inspect
import json
import string
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from kombu.utils.json import dumps

from .._base.errors import InvalidEntry
from .._base.ids import digest, with_digest
from ..policies import Once

#: Maximum number of characters of a key. A longer key is cut, and a digest is added.
MAX_KEY = 200


def key_of(
    once: Once,
    task_name: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    signature: inspect.Signature | None = None,
) -> str:
    """Return the key of one call.

    Parameters:
        signature: signature of the task's function; ``None`` if it is not known, for example
            because the caller has not imported the task. Then ``f(1)`` and ``f(x=1)`` have
            different keys.

    Raises:
        InvalidEntry: an argument that belongs to the key cannot be written as JSON, a template
            names an argument that the call does not have, or a callable key returned no text.
    """
    args = tuple(args or ())
    kwargs = dict(kwargs or {})
    if callable(once.key):
        return checked_key(once.key(*args, **kwargs))
    if once.key is not None and not once.fields_of_key:
        # The template names no argument, so only turn ``{{`` into ``{``.
        return checked_key(once.key.format())
    arguments = _bind(signature, args, kwargs)
    key = task_name
    if once.key is not None:
        key += f":{_fill(once.key, arguments)}"
    elif arguments:
        # The policy has no key, so all arguments count.
        key += f":{digest(canonical(arguments))}"
    return checked_key(key)


def checked_key(key: object) -> str:
    """Return a key, shortened if it is too long.

    Raises:
        InvalidEntry: the key is not a text, is empty, or cannot be written as UTF-8.
    """
    if not isinstance(key, str) or not key:
        raise InvalidEntry("once.key", "text that is not empty", key)
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidEntry("once.key", "text that can be written as UTF-8", key) from None
    return with_digest(key, MAX_KEY)


def check_definition(
    once: Once,
    function: Callable[..., Any],
    task_name: str,
) -> inspect.Signature | None:
    """Check a policy against the function of its task, when the task is defined.

    Returns:
        the function's signature; ``None`` if it cannot be read.

    Raises:
        InvalidEntry: a template names an argument that the function does not have. Or there is no
            key, so that all arguments count, and the default of one cannot be written as JSON.
    """
    signature = signature_of(function)
    if signature is None:
        return None
    parameters = signature.parameters.values()
    # With ``**kwargs``, a call may have arguments of any name.
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for name in once.fields_of_key:
        if name not in signature.parameters and not takes_any:
            known = ", ".join(signature.parameters) or "none"
            expected = f"a template of the arguments of {task_name} ({known})"
            raise InvalidEntry("once.key", expected, once.key)
    if once.key is None:
        for parameter in parameters:
            if parameter.default is not parameter.empty:
                # The result is not needed. The call raises if the default has no JSON.
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

    Parameters:
        what: description of the value, for the error.

    Raises:
        InvalidEntry: the value cannot be written as JSON.
    """
    try:
        # Use Celery's JSON, because the sender and the worker have the same. After the JSON is read
        # back, the keys of all mappings are text, so that they can be sorted.
        plain = json.loads(dumps(value))  # type: ignore[no-untyped-call]
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        expected = f"{what} to be JSON, or a key that leaves out what is not"
        raise InvalidEntry("once.key", expected, value) from None


def _bind(
    signature: inspect.Signature | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Return the arguments of a call by their names.

    Each item of the function's ``**kwargs`` is an argument with its own name. Without a signature,
    or if the call does not fit the signature, all positional arguments share the name ``*``.
    """
    if signature is None:
        return {**kwargs, "*": list(args)} if args else kwargs
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        # The task will fail because of its arguments, and its error says why. Until then its lock
        # needs some key.
        return _bind(signature=None, args=args, kwargs=kwargs)
    # A call that leaves out a default has the same key as one that passes it.
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(parameter.name))
    return arguments


def _fill(template: str, arguments: Mapping[str, Any]) -> str:
    """Fill arguments into the template of a key; raise InvalidEntry if they do not fit."""
    try:
        return _Template().vformat(template, (), arguments)
    except InvalidEntry:
        # This error of canonical() says which value has no JSON. InvalidEntry is a ValueError, so
        # without this clause the next one would replace the error.
        raise
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        expected = f"arguments that fit the template {template!r}"
        raise InvalidEntry("once.key", expected, exc) from None


class _Template(string.Formatter):
    """``str.format`` that writes values other than text and numbers as JSON, not as a ``repr``."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value as text for a key. The ``format_spec`` of the template is ignored."""
        if isinstance(value, Enum):
            value = value.value  # A worker receives this value in place of the enum.
        if isinstance(value, (str, int, float)):
            return str(value)
        return canonical(value)
