"""What the record of runs does in Redis: one method for each script, plain values in and out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..storage.replies import text
from ..storage.scripts import Scripts
from .attempt import Fate
from .keys import RunKeys
from .row import LETTERS, Row
from .run import BACKFILLED, NOT_DONE

#: How many fates one call of ``runs/record`` handles: 100 keep the server busy for some 3 ms.
BATCH = 100


class RunStore:
    """The record of runs of one prefix on one client."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client = client
        self.keys = RunKeys(prefix)
        self._scripts = Scripts(client)

    def rows(self, names: Sequence[str], limit: int) -> list[list[Row]]:
        """The last rows of each of these entries, the newest first, in one command, but those that cannot be read.

        Parameters:
            names: at most 1,000.
            limit: 1 or more.
        """
        if not names:
            return []
        reply = self._scripts.run("runs/rows", [self.keys.rows(name) for name in names], [limit])
        return [_decoded(found) for found in reply]

    def failed(self, names: Sequence[str]) -> list[str]:
        """Those of at most 5,000 entries of which a run has failed since one has succeeded last, in one command."""
        letters = "".join(LETTERS[outcome] for outcome in NOT_DONE)
        keys = [self.keys.rows(name) for name in names]
        return [names[n - 1] for n in self._scripts.run("runs/failed", keys, [letters, BACKFILLED])]

    def record(self, fates: Sequence[Fate]) -> tuple[int, str]:
        """Write what became of runs, unless what is known weighs more; in one round trip, and safe to be sent again.

        Parameters:
            fates: at most :data:`BATCH`.

        Returns:
            how many the server could not write, because of what lies there or may not be done, and what it says.
        """
        keys = [*self.keys.whole, *(self.keys.rows(fate.attempt.name) for fate in fates)]
        failed, why = self._scripts.run("runs/record", keys, [fate.encode() for fate in fates])
        return int(failed), text(why)


def _decoded(found: Sequence[bytes]) -> list[Row]:
    rows = []
    for member, score in zip(found[::2], found[1::2], strict=True):
        with suppress(ValueError, KeyError, OverflowError):
            rows.append(Row.decode(text(member), int(float(score))))
    return rows
