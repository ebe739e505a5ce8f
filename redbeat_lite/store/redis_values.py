"""Values that Redis returns, as Python has them. Clients of this package leave strings as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from .._base.errors import CorruptEntry

_T = TypeVar("_T")

#: Exceptions that a decoder raises for a stored value that it cannot read.
UNREADABLE = (CorruptEntry, KeyError, TypeError, ValueError, OverflowError)


def text(reply: Any) -> str:
    """Return a reply as text, in which bytes that are not UTF-8 are escaped."""
    return reply.decode("utf-8", "backslashreplace") if isinstance(reply, bytes) else str(reply)


def text_or_none(reply: Any) -> str | None:
    """Return a reply as text, and ``None`` as ``None``."""
    return None if reply is None else text(reply)


def texts(replies: Iterable[Any]) -> list[str]:
    """Return each of several replies as text."""
    return [text(reply) for reply in replies]


def text_of_hash(reply: Mapping[Any, Any]) -> dict[str, str]:
    """Return the fields and values of a hash as text."""
    return {text(field): text(value) for field, value in reply.items()}


def scored(reply: Sequence[Any]) -> list[tuple[Any, float]]:
    """Return the members and scores of a sorted set.

    A reply in RESP3 is a list of pairs. In RESP2 it is one list of member, score, member, score, …
    """
    pairs: Iterable[Any] = reply
    if reply and not isinstance(reply[0], list):
        pairs = zip(reply[::2], reply[1::2], strict=True)
    return [(member, float(score)) for member, score in pairs]


def server_ms(client: Any) -> int:
    """Return the server's time in epoch ms, a clock that several machines can agree on."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def newest_first(
    client: Any,
    key: str,
    decode: Callable[[Any, Any], _T],
    size: int,
    oldest: str | int = "-",
    newest: str | int = "+",
) -> Iterator[_T]:
    """Yield the decoded lines of a stream, the newest first, without those that cannot be read.

    Parameters:
        decode: returns the value of a line by its id and fields; raises one of :data:`UNREADABLE`.
        size: lines per round trip.
        oldest, newest: ids of the oldest and the newest line to yield.
    """
    while page := client.xrevrange(key, newest, oldest, count=size):
        yield from readable(page, decode)
        if len(page) < size:
            return
        # Pages go from new to old, so the next page begins below the oldest line of this page.
        # The parenthesis excludes that line itself.
        newest = f"({page[-1][0].decode()}"


def readable(page: Iterable[Any], decode: Callable[[Any, Any], _T]) -> Iterator[_T]:
    """Yield the decoded lines of a stream or a hash, without those that cannot be read.

    Parameters:
        page: pairs of values, such as the id and the fields of a line.
        decode: returns the value of a pair, or raises one of :data:`UNREADABLE`.
    """
    for line in page:
        with suppress(*UNREADABLE):
            yield decode(*line)
