"""Whose turn it is among the runs that one entry starts, where they may not overlap.

They stand in a line, and the first one runs. Whoever ends a run lets the next one begin; should it die before, the
sweeper does, which looks at a run that waits as at any other.
"""

from __future__ import annotations

from typing import Any

from ..storage.scripts import Scripts
from .keys import turns_key

#: Runs of one entry that may wait; one more is left out.
MAX_WAITING = 100

#: ms that a line is kept in which nobody came or went, as of an entry that was removed.
_KEEP_MS = 90 * 86_400_000


class Turns:
    """The lines under one prefix.

    Parameters:
        client: a redis-py client.
        prefix: ``key_prefix`` of the settings.
    """

    def __init__(self, client: Any, prefix: str) -> None:
        self._scripts, self._prefix = Scripts(client), prefix

    def join(self, entry: str, run_id: str, overlap: str) -> str | None:
        """Have a run stand in the line of its entry.

        Returns:
            ``None``, or the first run of the line where there is no room.
        """
        joined, first = self._line(entry, run_id, "", 1 + MAX_WAITING * (overlap == "wait"))
        return None if joined else first

    def first(self, entry: str, gone: str = "") -> str:
        """The run whose turn it is, or nothing, once ``gone`` stands there no more."""
        return self._line(entry, "", gone, 0)[1]

    def _line(self, entry: str, run_id: str, gone: str, most: int) -> tuple[bool, str]:
        joined, first = self._scripts.run(
            "pipeline/turn", (turns_key(self._prefix, entry),), (run_id, gone, most, _KEEP_MS)
        )
        return bool(joined), first.decode()
