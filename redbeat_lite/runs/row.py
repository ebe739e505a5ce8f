"""A row of the record of runs, and its compact text.

The text is ``task id|letter|begin|duration|attempt|feed id``, the numbers in hexadecimal: some 60 bytes. Rows lie in a
sorted set by nominal time, so that none of them says its own but a range: it has no id that would tell it from another,
and its nominal time stands in the place of ``begin``.
"""

from __future__ import annotations

from typing import NamedTuple

from ..instants import MAX_MS, MIN_MS, from_ms
from .run import Outcome, Run

#: Rows of an entry vanish so long after the last one was written, in ms: longer than a month, so that an entry that
#: runs once in one has its last run.
LIFE_MS = 35 * 86_400_000

#: A replaced task keeps its id and counts its retries anew, so a replacement weighs more than any number of retries.
NESTING = 1_000_000

#: How each outcome that is recorded is written.
LETTERS: dict[Outcome, str] = {
    "waiting": "w",
    "running": "r",
    "retrying": "y",
    "succeeded": "s",
    "failed": "f",
    "expired": "e",
    "revoked": "v",
    "rejected": "j",
    "lost": "l",
    "skipped": "k",
    "left out": "o",
    "unknown": "u",
}
#: What each letter says.
OUTCOMES = {letter: outcome for outcome, letter in LETTERS.items()}


class Row(NamedTuple):
    """What became of one occurrence, or of a range of them that the beat decided against.

    Parameters:
        nominal: nominal time, epoch milliseconds; of the first one of a range.
        task_id: empty for a range.
        begin: when its last attempt began, in milliseconds after the nominal time; ``None`` where that is not known.
        duration: of its last attempt, in milliseconds; ``None`` while it runs. Of a range: until the last nominal time.
        attempt: its number, from 0; :data:`NESTING` more for each time it was replaced. Of a range: how many there are.
        feed: id of the line in the feed that tells the worker and the error; empty where there is none.
    """

    nominal: int
    outcome: Outcome
    task_id: str
    begin: int | None
    duration: int | None
    attempt: int
    feed: str

    @property
    def is_range(self) -> bool:
        """Whether the beat decided against it."""
        return not self.task_id

    @property
    def attempts(self) -> int:
        """How many times it began since it was replaced, if it was, as far as is known."""
        return self.attempt % NESTING + 1

    def encode(self) -> str:
        begin, duration = _hex(self.nominal if self.is_range else self.begin), _hex(self.duration)
        return f"{self.task_id}|{LETTERS[self.outcome]}|{begin}|{duration}|{self.attempt:x}|{self.feed}"

    @classmethod
    def decode(cls, text: str, nominal: int) -> Row:
        """Read the compact text; raises a ValueError or a KeyError where it is something else."""
        # From the right: an id that a user has chosen may hold any character.
        task_id, letter, begin, duration, attempt, feed = text.rsplit("|", 5)
        began = _number(begin) if task_id else None
        return cls(nominal, OUTCOMES[letter], task_id, began, _number(duration), int(attempt, 16), feed).checked()

    def checked(self) -> Row:
        """The same, which may come from anybody; raises a ValueError where it tells of instants that there are not."""
        if not all(MIN_MS <= self.nominal + (later or 0) <= MAX_MS for later in (0, self.begin, self.duration)):
            raise ValueError("no instant")
        return self


def sign_of(task_id: str, attempt: int) -> str:
    """Return the member of ``{p}:runs:alive`` for one attempt."""
    return f"{task_id}|{attempt}"


def run_of(name: str, row: Row, worker: str | None = None, error: str | None = None) -> Run:
    """The run, or the runs, of which a row tells."""
    at = from_ms(row.nominal)
    if row.is_range:
        count, last = row.attempt, row.nominal + (row.duration or 0)
        return Run(name, at, row.outcome, until=from_ms(last) if count > 1 else None, count=count)
    began_at = None if row.begin is None else from_ms(row.nominal + row.begin)
    seconds = None if row.duration is None else row.duration / 1000
    attempts = row.attempts - (row.begin is None)
    return Run(name, at, row.outcome, row.task_id, began_at, seconds, attempts, worker, error)


def _hex(number: int | None) -> str:
    return "" if number is None else f"{number:x}"


def _number(text: str) -> int | None:
    return int(text, 16) if text else None
