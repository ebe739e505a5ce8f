"""The outcomes of an entry's last runs in a few characters."""

from __future__ import annotations

import sys

from ..clock import wall_ms
from ..entries.entry import Entry
from ..entries.last_runs import with_sent
from ..runs.row import LETTERS
from ..runs.run import NOT_DONE, Outcome
from .output import is_unicode

#: How many runs are shown of an entry.
_SHOWN = 5

#: Outcome -> a character.
MARKS: dict[Outcome, str] = {
    "succeeded": "✓",
    **dict.fromkeys(NOT_DONE, "✗"),
    "running": "▸",
    "retrying": "↻",
    **dict.fromkeys(("skipped", "left out"), "-"),
    **dict.fromkeys(("waiting", "unknown"), "·"),
}


def last_outcomes(entry: Entry, history: int) -> list[Outcome]:
    """What is recorded of the last runs, newest first; ``history`` are kept of an entry that does not say how many."""
    return [row.outcome for row in with_sent(entry, entry.rows, history, wall_ms(), _SHOWN)]


def marks(entry: Entry, history: int, *, plain: bool) -> str | None:
    """The same as a character each, or a ``plain`` letter, the newest right; ``None`` where it has not run."""
    signs = LETTERS if plain or not is_unicode(sys.stdout) else MARKS
    return "".join(signs[outcome] for outcome in reversed(last_outcomes(entry, history))) or None
