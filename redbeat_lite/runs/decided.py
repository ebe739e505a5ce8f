"""What the beat decides against, as the commit that decides puts it down: ranges, in no message and of no worker."""

from __future__ import annotations

from ..storage.stored import Command
from .row import LIFE_MS, Row


def put_down(key: str, row: Row, sent: int | None, history: int) -> Command:
    """What a commit is told of a range.

    Where it has the outcome of the newest row, and nothing was sent between the two, they become one: what is left out
    each minute for a day flushes nothing else away.

    Parameters:
        key: of the rows of its entry.
        sent: the last nominal time before it that was sent.
        history: how many rows are kept; 1 or more.
    """
    return "range", key, f"{history} {LIFE_MS} {sent or 0} {row.encode()}"
