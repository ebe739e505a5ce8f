"""What a server answers, as Python has it. Clients here leave strings as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def text(reply: Any) -> str:
    """A reply as text; bytes that are none, which somebody else wrote, are spelled out."""
    return reply.decode("utf-8", "backslashreplace") if isinstance(reply, bytes) else str(reply)


def text_or_none(reply: Any) -> str | None:
    """The same of a reply that may be nothing."""
    return None if reply is None else text(reply)


def texts(replies: Iterable[Any]) -> list[str]:
    """Each of several replies as text."""
    return [text(reply) for reply in replies]


def text_of_hash(reply: Mapping[Any, Any]) -> dict[str, str]:
    """The fields and values of a hash as text."""
    return {text(field): text(value) for field, value in reply.items()}


def server_ms(client: Any) -> int:
    """The server's time in epoch milliseconds: the clock of whatever several machines have to agree about."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000
