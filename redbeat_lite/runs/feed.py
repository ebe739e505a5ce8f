"""The feed of all ends of runs, as it is read: the last to end first, and the line that a row names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Self

from redis.exceptions import ResponseError

from ..storage.replies import text
from .keys import RunKeys
from .row import OUTCOMES, Row

#: Lines of a round trip: some milliseconds of the server's time.
_PAGE = 500

#: Whether a text is an id that the server takes: two numbers below 2**64.
is_id = re.compile(r"[0-9]{1,19}-[0-9]{1,19}").fullmatch


class Line(NamedTuple):
    """One end of a run.

    Parameters:
        name: of the entry.
        row: what a row says of it.
        worker: node name; ``None`` where it is not told.
        error: what it failed with, likewise.
    """

    name: str
    row: Row
    worker: str | None
    error: str | None

    @classmethod
    def decode(cls, line: Any, fields: Mapping[bytes, bytes]) -> Self:
        """Read a line of this id.

        Raises:
            ValueError, KeyError: it is something else.
        """
        told = {text(field): text(value) for field, value in fields.items()}
        begin, duration = (int(told[field]) if told[field] else None for field in ("begin", "duration"))
        outcome, task_id = OUTCOMES[told["outcome"]], told["id"]
        row = Row(int(told["nominal"]), outcome, task_id, begin, duration, int(told["attempt"]), text(line))
        return cls(told["name"], row, told["worker"] or None, told["error"] or None)


def lines(client: Any, keys: RunKeys, oldest: int) -> Iterator[Line]:
    """The feed, the last to end first, a page per round trip; without what cannot be read.

    Parameters:
        client: a redis-py client.
        oldest: epoch milliseconds of the server; what ended before is left out.
    """
    newest = "+"
    while page := _page(client, keys.feed, newest, max(oldest, 0)):
        yield from _readable(page)
        newest = f"({text(page[-1][0])}"


def _page(client: Any, feed: str, newest: str, oldest: int) -> Any:
    try:
        return client.xrevrange(feed, newest, oldest, count=_PAGE)
    except ResponseError as exc:
        if "WRONGTYPE" not in str(exc):
            raise
        return []  # Somebody else's, until the next leader removes it.


def line_in(reply: Any) -> Line | None:
    """The line that was asked for by its id; ``None`` where it has left the feed, or cannot be read."""
    return next(_readable(reply), None) if isinstance(reply, list) else None


def _readable(page: Iterable[Any]) -> Iterator[Line]:
    for line, fields in page:
        found = None
        with suppress(ValueError, KeyError):
            found = Line.decode(line, fields)
        if found is not None:
            yield found
