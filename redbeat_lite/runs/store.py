"""What the record of runs does in Redis: one method for each script, plain values in and out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..storage.replies import text
from ..storage.scripts import Scripts
from .keys import RunKeys
from .row import Row

#: Rows of an entry vanish so long after the last one was written, in ms: longer than a month, so that an entry that
#: runs once in one has its last run.
LIFE_MS = 35 * 86_400_000


class RunStore:
    """The record of runs of one prefix on one client.

    Parameters:
        client: a redis-py client.
        prefix: ``key_prefix`` of the settings.
    """

    def __init__(self, client: Any, prefix: str) -> None:
        self.client = client
        self.keys = RunKeys(prefix)
        self._scripts = Scripts(client)

    def rows(self, names: Sequence[str], limit: int) -> list[list[Row]]:
        """The last rows of each of these entries, the newest first, in one command, but those that cannot be read.

        Parameters:
            names: at most 1,000.
            limit: how many rows of each at most; 1 or more.
        """
        if not names:
            return []
        reply = self._scripts.run("runs/rows", [self.keys.rows(name) for name in names], [limit])
        return [_decoded(found) for found in reply]


def _decoded(found: Sequence[bytes]) -> list[Row]:
    rows = []
    for member, score in zip(found[::2], found[1::2], strict=True):
        with suppress(ValueError, KeyError):
            rows.append(Row.decode(text(member), int(float(score))))
    return rows
