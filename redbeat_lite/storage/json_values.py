"""Values to JSON and back without losing their type: the arguments and options of an entry.

Plain JSON values stand for themselves. Everything else becomes kombu's ``{"__type__": ..., "__value__": ...}`` with
kombu's own converters, so a type registered through :func:`kombu.utils.json.register_type` is stored too. Ours are the
tags of containers that JSON has not, and a message has whose serializer is pickle (``tuple``, ``set``, ``frozenset``);
and ``dict``, for a user's dict that holds a key named ``__type__`` and must come back as it was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from kombu.utils.json import JSONEncoder, object_hook

from ..errors import CorruptEntry, InvalidEntry, text_of

_T = TypeVar("_T")

#: Largest text that is stored for an entry, in bytes.
MAX_BYTES = 64 * 1024

_TYPE, _VALUE = "__type__", "__value__"
_CONTAINERS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_SCALARS = frozenset({bool, type(None)})
#: Python writes and reads no whole number of more than 4,300 digits.
_TOO_LARGE = 10**4000

# What refers to itself has been refused before, as nested too deeply.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False)
_convert: Callable[[Any], Any] = JSONEncoder().default


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # of Infinity and NaN, and of 1e400
        raise ValueError(f"{text} is no finite number")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def dumps(packed: object) -> str:
    """Compact JSON text of an already packed value."""
    return _ENCODER.encode(packed)


def loads(text: str | bytes) -> Any:
    """JSON text to plain values; tags stay as they are until :func:`unpack`.

    Raises CorruptEntry: not UTF-8, not JSON, which has neither NaN nor Infinity, or nested too deeply to read.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as exc:
        raise CorruptEntry(f"not readable as JSON: {exc}") from exc


def loads_as(kind: type[_T], text: str | bytes | None) -> _T:
    """The value of a JSON text if it is of this type; an empty one where there is none, or something else."""
    with suppress(CorruptEntry):
        found = loads(text or b"")
        if isinstance(found, kind):
            return found
    return kind()


def pack(value: object, field: str) -> Any:
    """Turn any value into plain JSON values.

    Raises InvalidEntry where it, or something inside it, cannot be stored: names exactly which, by ``field`` and what
    follows that, as in ``"kwargs.since"``.
    """
    try:
        return _pack(value, field)
    except RecursionError:
        raise InvalidEntry(field, "a value that is not nested hundreds of levels deep", type(value)) from None


def is_plain(value: Any) -> bool:
    """Whether a value is plainly JSON, as most are: no container, and no number that may be infinite or too long."""
    kind = type(value)
    if kind is int:
        return bool(-_TOO_LARGE < value < _TOO_LARGE)
    return kind in _SCALARS or (kind is str and value.isascii())


def all_plain(args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the arguments of a call are: then :func:`pack` would leave them as they are."""
    values = all(map(is_plain, args)) and all(map(is_plain, kwargs.values()))
    return values and all(map(str.isascii, kwargs)) and _TYPE not in kwargs


def _pack(value: Any, field: str) -> Any:
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
        items = [item if is_plain(item) else _pack(item, f"{field}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else {_TYPE: "tuple", _VALUE: items}
    if isinstance(value, Mapping):
        return _pack_mapping(value, field)
    if isinstance(value, (set, frozenset)):
        members = [_pack(item, f"{field}{{…}}") for item in value]
        return {_TYPE: "set" if isinstance(value, set) else "frozenset", _VALUE: sorted(members, key=dumps)}
    return _pack_other(value, field)


def _checked_text(value: str, field: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidEntry(field, "text that can be written as UTF-8", value) from None
    return value


def _pack_mapping(value: Mapping[Any, Any], field: str) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise InvalidEntry(field, "a mapping with text keys, as JSON has no others", key)
    return packed_mapping(
        {
            _checked_text(key, field): item if is_plain(item) else _pack(item, f"{field}.{key}")
            for key, item in value.items()
        }
    )


def packed_mapping(items: dict[str, Any]) -> dict[str, Any]:
    """A dict as it is stored, its values being packed already."""
    if _TYPE in items:
        return {_TYPE: "dict", _VALUE: list(items.items())}
    return items


def packed_items(packed: Any) -> dict[str, Any]:
    """The inverse of :func:`packed_mapping`: keys, and values that stay packed.

    Raises CorruptEntry: it is no dict, or one in which a key stands for no value.
    """
    if not isinstance(packed, dict):
        raise CorruptEntry(f"not an object but {type(packed).__name__}")
    if _TYPE not in packed:
        return packed
    try:
        if packed[_TYPE] == "dict":
            return dict(packed[_VALUE])
    except (KeyError, TypeError, ValueError) as exc:
        raise CorruptEntry(f"no value of type 'dict': {exc}") from exc
    raise CorruptEntry(f"not an object but {packed[_TYPE]!r}")


def _pack_other(value: object, field: str) -> Any:
    try:
        converted = _convert(value)
        dumps(converted)
    except Exception as exc:
        expected = "a value that JSON or kombu's JSON types can hold (see kombu.utils.json.register_type)"
        raise InvalidEntry(field, expected, value) from exc
    return converted


def unpack(packed: Any) -> Any:
    """The inverse of :func:`pack`.

    Raises CorruptEntry: a tag is unknown, or its value does not fit it; or it is nested too deeply to read.
    """
    try:
        return _unpack(packed)
    except RecursionError:
        raise CorruptEntry("nested hundreds of levels deep") from None


def _unpack(packed: Any) -> Any:
    if isinstance(packed, list):
        return [_unpack(item) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if packed.keys() == {_TYPE, _VALUE}:
        return _unpack_tagged(packed)
    return {key: _unpack(item) for key, item in packed.items()}


def _unpack_tagged(packed: dict[str, Any]) -> Any:
    tag, value = packed[_TYPE], packed[_VALUE]
    try:
        if tag == "dict":
            return {key: _unpack(item) for key, item in value}
        if tag in _CONTAINERS:
            return _CONTAINERS[tag](map(_unpack, value))
        return object_hook(packed)
    except RecursionError:
        raise
    except Exception as exc:
        raise CorruptEntry(f"no value of type {tag!r}: {text_of(exc)}") from exc
