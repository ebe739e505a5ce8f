"""The module ``cjson`` of the server's Lua, for the values that scripts can have."""

from __future__ import annotations

import json
import math
from typing import Any

from tests.simulation.numbers import format_lua_number

_ESCAPES = {
    ord('"'): b'\\"',
    ord("\\"): b"\\\\",
    ord("/"): b"\\/",
    8: b"\\b",
    9: b"\\t",
    10: b"\\n",
    12: b"\\f",
    13: b"\\r",
    127: b"\\u007f",
}
_ESCAPES |= {code: b"\\u%04x" % code for code in range(32) if code not in _ESCAPES}

#: Texts that cjson takes for numbers, although they are no JSON.
_NO_NUMBERS = (b"nan", b"inf", b"infinity")


class JsonError(Exception):
    """The value cannot be encoded, or the text cannot be decoded."""


def encode(value: Any, is_table: Any) -> bytes:
    """Return the JSON of a Lua value.

    Fields are sorted by name. The server's order depends on its hash function.

    Parameters:
        is_table: tells of a value whether it is a Lua table.
    """
    if value is None:
        return b"null"
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int | float):
        return _encode_number(value)
    if isinstance(value, bytes):
        return _quoted(value)
    if is_table(value):
        return _encode_table(dict(value.items()), is_table)
    raise JsonError(f"Cannot serialise {type(value).__name__}: type not supported")


def _encode_number(value: float) -> bytes:
    if not math.isfinite(value):
        raise JsonError("Cannot serialise number: must not be NaN or Inf")
    return format_lua_number(value)


def _quoted(text: bytes) -> bytes:
    return b'"' + b"".join(_ESCAPES.get(code) or bytes([code]) for code in text) + b'"'


def _encode_table(fields: dict[Any, Any], is_table: Any) -> bytes:
    if fields and all(isinstance(name, int) and name > 0 for name in fields):
        values = [fields.get(number) for number in range(1, max(fields) + 1)]
        return b"[" + b",".join(encode(value, is_table) for value in values) + b"]"
    named = {_field_name(name): value for name, value in fields.items()}
    pairs = [_quoted(name) + b":" + encode(named[name], is_table) for name in sorted(named)]
    return b"{" + b",".join(pairs) + b"}"


def _field_name(name: Any) -> bytes:
    return name if isinstance(name, bytes) else format_lua_number(name)


def decode(text: bytes | bool) -> Any:
    """Return the value of a JSON text; strings are bytes."""
    if isinstance(text, bool):
        raise JsonError("bad argument #1 to 'decode' (string expected, got boolean)")
    if text.strip().lower().removeprefix(b"-") in _NO_NUMBERS:
        return float(text)
    try:
        # Bytes that are not UTF-8 come back as they were.
        value = json.loads(text.decode("utf-8", "surrogateescape"), strict=False)
    except ValueError as exc:
        raise JsonError(f"Expected value but found invalid token at character 1 ({exc})") from None
    return with_bytes(value)


def with_bytes(value: Any) -> Any:
    """Return a value with bytes in place of its texts."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return [with_bytes(item) for item in value]
    if isinstance(value, dict):
        return {with_bytes(name): with_bytes(item) for name, item in value.items()}
    return value
