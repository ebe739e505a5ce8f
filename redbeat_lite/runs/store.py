"""What the record of runs does in Redis: one method for each script and for the feed, plain values in and out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from ..storage.replies import text
from ..storage.scripts import Call, Scripts
from ..storage.streams import newest_first, readable
from .attempt import Fate
from .keys import RunKeys
from .row import LETTERS, OUTCOMES, Row
from .run import BACKFILLED, NOT_DONE

#: How many fates one call of ``runs/record`` handles: 100 keep the server busy for some 3 ms.
BATCH = 100

#: Lines of the feed of a round trip: some milliseconds of the server's time.
_PAGE = 500


class Line(NamedTuple):
    """End of a run, as the feed has it. ``None`` stands for what is not known.

    Parameters:
        worker: node name of the worker.
        retry: due time of the retry, epoch ms.
    """

    name: str
    row: Row
    worker: str | None
    error: str | None
    retry: int | None = None

    @classmethod
    def decode(cls, line: Any, fields: Mapping[bytes, bytes]) -> Self:
        """Read a line of this id; raises a ValueError or a KeyError where it is something else."""
        told = {text(field): text(value) for field, value in fields.items()}
        begin, duration = (int(told[field]) if told[field] else None for field in ("begin", "duration"))
        outcome, task_id = OUTCOMES[told["outcome"]], told["id"]
        row = Row(int(told["nominal"]), outcome, task_id, begin, duration, int(told["attempt"]), text(line))
        retry = int(told["retry"]) if told.get("retry") else None
        return cls(told["name"], row.checked(), told["worker"] or None, told["error"] or None, retry)


class RunStore:
    """The record of runs of one prefix on one client."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client = client
        self.keys = RunKeys(prefix)
        self.scripts = Scripts(client)

    def rows(self, names: Sequence[str], limit: int) -> list[list[Row]]:
        """The last rows of each of these entries, the newest first, in one command, but those that cannot be read.

        Parameters:
            names: at most 1,000.
            limit: 1 or more.
        """
        return rows_in(self.scripts.run(*self.asking(names, limit)))[0] if names else []

    def asking(self, names: Sequence[str], limit: int) -> Call:
        """What :meth:`rows` asks, to be read together with other things, and by :func:`rows_in`."""
        return Call("runs/rows", [self.keys.rows(name) for name in names], [limit])

    def failed(self, names: Sequence[str]) -> list[str]:
        """Return the names of those entries that have failed since their last success.

        Parameters:
            names: at most 5,000, which take the server some 5 ms.
        """
        letters = "".join(LETTERS[outcome] for outcome in NOT_DONE)
        rows = [self.keys.rows(name) for name in names]
        numbers = self.scripts.run("runs/failed", rows, (letters, BACKFILLED)) if rows else ()
        return [names[number - 1] for number in numbers]

    def record(self, fates: Sequence[Fate]) -> tuple[int, str]:
        """Write what became of runs, unless what is known weighs more; in one round trip, and safe to be sent again.

        Parameters:
            fates: at most :data:`BATCH`.

        Returns:
            how many the server could not write, because of what lies there or may not be done, and what it says.
        """
        keys = [*self.keys.whole, *(self.keys.rows(fate.attempt.name) for fate in fates)]
        failed, why = self.scripts.run("runs/record", keys, [fate.encode() for fate in fates])
        return int(failed), text(why)

    def lines(self, oldest: int) -> Iterator[Line]:
        """The feed, the last to end first, a page per round trip; without what cannot be read.

        Parameters:
            oldest: epoch milliseconds of the server; what ended before is left out.
        """
        return newest_first(self.client, self.keys.feed, Line.decode, _PAGE, max(oldest, 0))


def rows_in(reply: Any) -> tuple[list[list[Row]], int]:
    """The rows of each entry, as :meth:`RunStore.rows` has them, and when they were read: epoch ms of the server."""
    return [_decoded(found) for found in reply[:-1]], reply[-1]


def line_in(reply: Any) -> Line | None:
    """The line that was asked for by its id; ``None`` where it has left the feed, or cannot be read."""
    return next(readable(reply, Line.decode), None) if isinstance(reply, list) else None


def _decoded(found: Sequence[bytes]) -> list[Row]:
    pairs = zip(found[::2], found[1::2], strict=True)
    return [*readable(pairs, lambda member, score: Row.decode(text(member), int(float(score))))]
