"""The feed of all ends of runs, as it is read: the last to end first, and the line that a row names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

from ..storage.replies import text
from ..storage.streams import newest_first, readable
from .keys import RunKeys
from .row import OUTCOMES, Row

#: Lines of a round trip: some milliseconds of the server's time.
_PAGE = 500


class Line(NamedTuple):
    """One end of a run.

    Parameters:
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
        """Read a line of this id; raises a ValueError or a KeyError where it is something else."""
        told = {text(field): text(value) for field, value in fields.items()}
        begin, duration = (int(told[field]) if told[field] else None for field in ("begin", "duration"))
        outcome, task_id = OUTCOMES[told["outcome"]], told["id"]
        row = Row(int(told["nominal"]), outcome, task_id, begin, duration, int(told["attempt"]), text(line))
        return cls(told["name"], row.checked(), told["worker"] or None, told["error"] or None)


def lines(client: Any, keys: RunKeys, oldest: int) -> Iterator[Line]:
    """The feed, the last to end first, a page per round trip; without what cannot be read.

    Parameters:
        oldest: epoch milliseconds of the server; what ended before is left out.
    """
    return newest_first(client, keys.feed, Line.decode, _PAGE, max(oldest, 0))


def line_in(reply: Any) -> Line | None:
    """The line that was asked for by its id; ``None`` where it has left the feed, or cannot be read."""
    return next(readable(reply, Line.decode), None) if isinstance(reply, list) else None
