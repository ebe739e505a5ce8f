"""Values to JSON and back with their types: the arguments and options of an entry.

Plain JSON values are stored unchanged. Other values become kombu's ``{"__type__": …, "__value__":
…}`` with kombu's converters. So a type that :func:`kombu.utils.json.register_type` knows is
stored, too. This module adds the tags ``tuple``, ``set`` and ``frozenset``, because a message with
pickle as its serializer may hold them. The tag ``dict`` is for a user's dict that has a key named
``__type__``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from kombu.utils.json import JSONEncoder, object_hook

from .errors import CorruptEntry, InvalidEntry
from .text import text_of

_T = TypeVar("_T")

#: Largest text that is stored for an entry, in bytes.
MAX_BYTES = 64 * 1024

_TYPE = "__type__"
_VALUE = "__value__"
_CONTAINERS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_SCALARS = frozenset({bool, type(None)})

# Python neither writes nor reads a whole number of more than 4,300 digits.
_TOO_LARGE = 10**4000

_ENCODER = json.JSONEncoder(allow_nan=False)
#: Converts a value of a type that kombu knows, such as a datetime.
_convert: Callable[[Any], Any] = JSONEncoder().default


def dumps(packed: object) -> str:
    """Return the compact JSON text of a packed value."""
    return msgspec.json.encode(packed).decode()


def loads(text: str | bytes) -> Any:
    """Parse a JSON text. Special values in it, such as datetimes, are still packed.

    Raises:
        CorruptEntry: the text is not UTF-8, not JSON, or nested too deeply. JSON has no NaN and no
            Infinity.
    """
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as exc:
        raise CorruptEntry(f"not readable as JSON: {exc}") from exc


def loads_as(kind: type[_T], text: str | bytes | None) -> _T:
    """Return the value of a JSON text if it is of this type, and else an empty value of the type.

    Parameters:
        kind: a type that can be made without arguments, such as ``list``.
        text: the text; ``None``: nothing is stored.
    """
    with suppress(CorruptEntry):
        value = loads(text or b"")
        if isinstance(value, kind):
            return value
    return kind()


def pack(value: object, field: str) -> Any:
    """Return any value as plain JSON values.

    Parameters:
        field: name of the value in errors.

    Raises:
        InvalidEntry: the value or a part of it cannot be stored. The error names the part, such as
            ``"kwargs.since"``.
    """
    try:
        return _pack(value, field)
    except RecursionError:
        expected = "a value that is not nested hundreds of levels deep"
        raise InvalidEntry(field, expected, type(value)) from None


def is_plain(value: Any) -> bool:
    """Return whether a value is a short whole number, an ASCII text, true, false or null."""
    kind = type(value)
    if kind is int:
        return bool(-_TOO_LARGE < value < _TOO_LARGE)
    return kind in _SCALARS or (kind is str and value.isascii())


def all_plain(args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether :func:`pack` would leave the arguments of a call unchanged."""
    values_are_plain = all(map(is_plain, args)) and all(map(is_plain, kwargs.values()))
    # pack() tags a dict that has this key.
    return values_are_plain and all(map(str.isascii, kwargs)) and _TYPE not in kwargs


def _pack(value: Any, field: str) -> Any:
    """Return a value as JSON, with a type tag where JSON has no such type.

    Parameters:
        field: place of the value in an error.
    """
    if is_plain(value):
        return value
    if isinstance(value, int):
        if not -_TOO_LARGE < value < _TOO_LARGE:
            raise InvalidEntry(field, "a whole number of at most 4,000 digits", value)
        return value
    if isinstance(value, str):
        return _checked_text(value, field)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidEntry(field, "a finite number", value)
        return value
    if isinstance(value, (list, tuple)):
        items = [
            item if is_plain(item) else _pack(item, f"{field}[{index}]")
            for index, item in enumerate(value)
        ]
        return items if isinstance(value, list) else {_TYPE: "tuple", _VALUE: items}
    if isinstance(value, Mapping):
        return _pack_mapping(value, field)
    if isinstance(value, (set, frozenset)):
        members = [_pack(item, f"{field}{{…}}") for item in value]
        tag = "set" if isinstance(value, set) else "frozenset"
        # Sort the members, so that equal sets have equal texts.
        return {_TYPE: tag, _VALUE: sorted(members, key=dumps)}
    return _pack_other(value, field)


def _checked_text(value: str, field: str) -> str:
    """Return a text; refuse one that UTF-8 cannot hold."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidEntry(field, "text that can be written as UTF-8", value) from None
    return value


def _pack_mapping(value: Mapping[Any, Any], field: str) -> dict[str, Any]:
    """Return the packed form of a mapping, whose keys must be texts."""
    items = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidEntry(field, "a mapping with text keys, as JSON has no others", key)
        items[_checked_text(key, field)] = _pack(item, f"{field}.{key}")
    return packed_mapping(items)


def packed_mapping(items: dict[str, Any]) -> dict[str, Any]:
    """Return the stored form of a dict whose values are packed."""
    if _TYPE in items:
        return {_TYPE: "dict", _VALUE: list(items.items())}
    return items


def packed_items(packed: Any) -> dict[str, Any]:
    """Return the dict that :func:`packed_mapping` has stored; its values stay packed.

    Raises:
        CorruptEntry: the stored form is no dict.
    """
    if not isinstance(packed, dict):
        raise CorruptEntry(f"not an object but {type(packed).__name__}")
    if _TYPE not in packed:
        return packed
    # A user's dict that has the key `_TYPE` itself is stored as a list of its items.
    try:
        if packed[_TYPE] == "dict":
            return dict(packed[_VALUE])
    except (KeyError, TypeError, ValueError) as exc:
        raise CorruptEntry(f"no value of type 'dict': {exc}") from exc
    raise CorruptEntry(f"not an object but {packed[_TYPE]!r}")


def _pack_other(value: object, field: str) -> Any:
    """Return the tagged form of a value of another type; raises InvalidEntry if it has none."""
    try:
        converted = _convert(value)
        # This only checks: unlike dumps(), it raises for objects and numbers that JSON does not
        # have.
        _ENCODER.encode(converted)
    except Exception as exc:
        known = "(see kombu.utils.json.register_type)"
        expected = f"a value that JSON or kombu's JSON types can hold {known}"
        raise InvalidEntry(field, expected, value) from exc
    return converted


def unpack(packed: Any) -> Any:
    """Return the value that :func:`pack` has packed.

    Raises:
        CorruptEntry: a tag is unknown, a value does not fit its tag, or it is nested too deeply.
    """
    try:
        return _unpack(packed)
    except RecursionError:
        raise CorruptEntry("nested hundreds of levels deep") from None


def _unpack(packed: Any) -> Any:
    """Unpack a value, and all values inside it."""
    if isinstance(packed, list):
        return [_unpack(item) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if packed.keys() == {_TYPE, _VALUE}:
        return _unpack_tagged(packed)
    return {key: _unpack(item) for key, item in packed.items()}


def _unpack_tagged(packed: dict[str, Any]) -> Any:
    """Return the value of an object with a type tag: ours, or one that kombu knows.

    Raises:
        CorruptEntry: the tag is unknown, or the value does not fit it.
    """
    tag = packed[_TYPE]
    value = packed[_VALUE]
    try:
        if tag == "dict":
            return {key: _unpack(item) for key, item in value}
        if tag in _CONTAINERS:
            return _CONTAINERS[tag](map(_unpack, value))
        # kombu knows the other types, such as datetimes, and types that users have registered.
        return object_hook(packed)
    except RecursionError:
        raise  # unpack() says what is wrong.
    except Exception as exc:
        raise CorruptEntry(f"no value of type {tag!r}: {text_of(exc)}") from exc
