"""Numbers as the server reads and writes them."""

from __future__ import annotations

import math
from decimal import Decimal

from tests.simulation.values import CommandError

NOT_AN_INTEGER = "ERR value is not an integer or out of range"
NOT_A_FLOAT = "ERR value is not a valid float"

# Whole numbers with fewer digits than this need no look at their range.
_CERTAIN_DIGITS = 18


def integer(text: bytes, error: str = NOT_AN_INTEGER) -> int:
    """Return a whole number as commands take it; raise CommandError for any other text."""
    if text.isdigit() and len(text) < _CERTAIN_DIGITS and (text[:1] != b"0" or text == b"0"):
        return int(text)
    digits = text.removeprefix(b"-")
    is_plain = digits.isdigit() and (digits == b"0" or digits[:1] != b"0") and text != b"-0"
    if not is_plain or not -(2**63) <= int(text) < 2**63:
        raise CommandError(error)
    return int(text)


def score(text: bytes, error: str = NOT_A_FLOAT, *, may_overflow: bool = False) -> float:
    """Return a score as commands take it; raise CommandError for any other text."""
    if text.isdigit() and len(text) < _CERTAIN_DIGITS:
        return float(text)
    is_bare = text == text.strip() and b"_" not in text and text != b""
    try:
        value = float(text) if is_bare else math.nan
    except ValueError:
        value = math.nan
    is_too_large = math.isinf(value) and b"inf" not in text.lower()
    if math.isnan(value) or (is_too_large and not may_overflow):
        raise CommandError(error)
    return value


def format_score(value: float) -> bytes:
    """Return a double in the shortest decimal form, as replies and arguments of scripts have it."""
    if math.isinf(value):
        return b"inf" if value > 0 else b"-inf"
    if math.isnan(value):
        return b"nan"
    if value == int(value) and abs(value) < 2**62:
        return b"%d" % int(value)
    return _shortest(value)


def _shortest(value: float) -> bytes:
    """Return the digits of a number that is not whole, or too large to be one of the server's."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    magnitude = abs(exponent + len(text) - 1)
    prefix = "-" if sign else ""
    if exponent >= 0 and magnitude < len(text) + 7:
        return f"{prefix}{text}{'0' * exponent}".encode()
    if exponent < 0 and (exponent > -7 or magnitude < 4):
        return f"{prefix}{abs(Decimal(repr(value))).normalize():f}".encode()
    mantissa = f"{text[0]}.{text[1:]}" if len(text) > 1 else text
    return f"{prefix}{mantissa}e{exponent + len(text) - 1:+d}".encode()


def format_lua_number(value: float) -> bytes:
    """Return a number as Lua writes it: with 14 digits."""
    return f"{value:.14g}".encode()
