"""A run as people see it, its stored row, and its fates.

A fate is a report that an attempt of a run has begun or ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Self

from .._base.public import public
from .._base.times import MAX_MS, MIN_MS, from_ms, message_ms
from ..settings import MAX_HISTORY, MAX_NAME

Outcome = Literal[
    "waiting",
    "running",
    "retrying",
    "succeeded",
    "failed",
    "expired",
    "revoked",
    "rejected",
    "lost",
    "skipped",
    "left out",
    "unknown",
]

#: Outcomes of runs that did not do their work.
NOT_DONE: tuple[Outcome, ...] = ("failed", "expired", "revoked", "rejected", "lost")

#: Stored letter of each outcome.
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

#: Outcome that a worker reports of an attempt. The worker's main process reports ``"timed out"``
#: after it has killed the process of the body at the hard time limit. People see ``"failed"``. If a
#: body of the same attempt has reported its own end, that end prevails over ``"timed out"``
#: (``weight`` in ``shared/record.lua``).
Reported = Outcome | Literal["timed out"]

#: Stored letter of ``"timed out"``.
_TIMED_OUT = "t"

#: Outcome of each stored letter.
OUTCOMES: dict[str, Outcome] = {letter: outcome for outcome, letter in LETTERS.items()}
OUTCOMES[_TIMED_OUT] = "failed"

#: Message header: count of rows that the entry keeps, if it differs from the worker's setting.
HISTORY_HEADER = "redbeat_history"

#: Message header: true if the entry has an expectation of its runs.
EXPECT_HEADER = "redbeat_expect"

#: Message header: true if the beat has derived the message's ``expires`` from the entry's interval.
INTERVAL_EXPIRES_HEADER = "redbeat_interval_expires"

#: Message header: id of the backfill that sends the message.
BACKFILL_HEADER = "redbeat_backfill"

#: UUID version of the task ids of backfills. Live occurrences have version 5.
BACKFILLED = "8"

#: Message headers by which a run is recorded. Other schedulers write the first one, too.
RUN_HEADERS = ("periodic_task_name", "scheduled_at", HISTORY_HEADER, EXPECT_HEADER)

#: Milliseconds that Redis keeps the rows of an entry after their last write. They are more than a
#: month, so that the last run of a monthly entry is still there at the next one.
LIFE_MS = 35 * 86_400_000

#: Number that one ``Task.replace`` adds to the number of an attempt. A task that replaces another
#: has the same id, and counts its retries from 0. So this number exceeds any count of retries.
NESTING = 1_000_000

#: Maximum number of bytes of an error, and of the name of a worker.
ERROR_BYTES = 500


@public
@dataclass(frozen=True, slots=True)
class Run:
    """One occurrence that was sent or decided against, or a range of them with the same outcome.

    Parameters:
        name: name of the entry.
        scheduled_at: nominal time; of a range, that of its first occurrence.
        outcome: result of the run, or its present state.
        task_id: id of its task; ``None`` if nothing was sent.
        began_at: start of its last attempt; ``None`` if not known.
        seconds: duration of its last attempt; ``None`` if not known, or while it runs.
        attempts: how many times it began, as far as is known.
        worker: node name of the worker that ran it.
        error: error of the last attempt, cut at 500 bytes.
        retry_at: due time of the retry of a failed attempt; ``None`` without one, or if not known.
            If the outcome is ``"failed"``, that retry has expired.
        until: of a range, nominal time of its last occurrence.
        count: count of occurrences; 1 unless it is a range.
        source: ``"record"`` if the record of runs has it; ``"schedule"`` if only the state of the
            entry has it, which shows no more than that it was sent.
    """

    name: str
    scheduled_at: datetime
    outcome: Outcome
    task_id: str | None = None
    began_at: datetime | None = None
    seconds: float | None = None
    attempts: int = 0
    worker: str | None = None
    error: str | None = None
    until: datetime | None = None
    count: int = 1
    source: Literal["record", "schedule"] = "record"
    retry_at: datetime | None = None

    @property
    def ended_at(self) -> datetime | None:
        """End of the last attempt; ``None`` if not known, or while the run goes on."""
        if self.began_at is None or self.seconds is None:
            return None
        return self.began_at + timedelta(seconds=self.seconds)


class Row(NamedTuple):
    """Stored state of one run, or of a range of runs that the beat did not send.

    Its text is ``task id|letter|begin|duration|attempt|feed id``, with numbers in hexadecimal, some
    60 bytes. Rows lie in a sorted set by nominal time, so the text of a run does not repeat that
    time. The text of a range has the nominal time instead of ``begin``. Otherwise the texts of two
    ranges could be equal, because they have no task id.

    Parameters:
        nominal: nominal time in epoch ms; of a range, the first one.
        task_id: id of the task; empty for a range.
        begin: start of the last attempt, in ms after the nominal time; ``None`` if not known.
        duration: ms that the last attempt took; ``None`` while it runs. Of a range: ms from the
            first nominal time to the last.
        attempt: number of the last attempt, from 0, plus :data:`NESTING` per replacement. Of a
            range: count of its runs.
        feed: id of the run's line in the feed (the stream of ended runs), which has worker and
            error; empty if there is none.
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
        """Whether the row is a range of runs that the beat decided against."""
        return not self.task_id

    @property
    def is_backfilled(self) -> bool:
        """Whether a backfill has sent the run: the UUID version in its task id says so."""
        return self.task_id[14:15] == BACKFILLED

    @property
    def attempts(self) -> int:
        """How many times the run began since its last replacement, as far as is known."""
        return self.attempt % NESTING + 1

    @classmethod
    def decode(cls, text: str, nominal: int) -> Row:
        """Return the row of a text that a script wrote.

        Raises:
            ValueError, KeyError: it is not the text of a row.
        """
        # Split from the right, because a task id that a user has chosen may hold any character.
        task_id, letter, begin, duration, attempt, feed = text.rsplit("|", 5)
        return cls(
            nominal,
            OUTCOMES[letter],
            task_id,
            # A row of skipped runs is a range without a task id. Its third field is a nominal time,
            # and not the time at which a run began.
            begin=int(begin, 16) if task_id and begin else None,
            duration=int(duration, 16) if duration else None,
            attempt=int(attempt, 16),
            feed=feed,
        ).checked()

    def checked(self) -> Row:
        """Return this row if all its instants are in range. Anybody may have written it.

        Raises:
            ValueError: an instant is out of range.
        """
        for offset in (0, self.begin or 0, self.duration or 0):
            if not MIN_MS <= self.nominal + offset <= MAX_MS:
                raise ValueError("no instant")
        return self


def run_of(name: str, row: Row, worker: str | None = None, error: str | None = None) -> Run:
    """Return the run, or the range of runs, that a row describes.

    Parameters:
        name: name of the entry.
        worker, error: from the line of the feed about the run's end; ``None`` if not known.
    """
    scheduled_at = from_ms(row.nominal)
    if row.is_range:
        count = row.attempt  # The row of a range has its count there.
        until = from_ms(row.nominal + (row.duration or 0)) if count > 1 else None
        return Run(name, scheduled_at, row.outcome, until=until, count=count)
    attempts = row.attempts
    began_at = None
    if row.begin is None:
        attempts -= 1  # The last attempt has not begun.
    else:
        began_at = from_ms(row.nominal + row.begin)
    seconds = None if row.duration is None else row.duration / 1000
    return Run(
        name,
        scheduled_at,
        row.outcome,
        task_id=row.task_id,
        began_at=began_at,
        seconds=seconds,
        attempts=attempts,
        worker=worker,
        error=error,
    )


def sign_of(task_id: str, attempt: int) -> str:
    """Return the member of the sorted set ``{p}:runs:alive`` that stands for one attempt."""
    return f"{task_id}|{attempt}"


def attempt_of(fields: Mapping[str, Any]) -> int:
    """Return the number of an attempt of a task id, from the headers of its message."""
    nesting = int(fields.get("replaced_task_nesting") or 0)
    return nesting * NESTING + int(fields.get("retries") or 0)


class Attempt(NamedTuple):
    """One attempt of a run.

    Parameters:
        name: name of the entry.
        nominal: nominal time of the run, in epoch ms.
        number: number that grows with each retry and each ``replace`` of the same task id.
        history: count of rows that the entry keeps, 1 or more.
        expected: whether the entry has an expectation of its runs.
    """

    name: str
    nominal: int
    task_id: str
    number: int
    history: int
    expected: bool = False

    @classmethod
    def of(cls, fields: Mapping[str, Any], history: int) -> Self | None:
        """Return the attempt that a message starts; ``None`` if its run is not to be recorded.

        A run is not recorded if no entry of ours has sent the message, or if the entry keeps no
        rows.

        Parameters:
            fields: headers of the message.
            history: count of rows to keep if the message does not have one.
        """
        name = fields.get("periodic_task_name")  # Other schedulers write this header, too.
        scheduled_at = fields.get("scheduled_at")
        if not (isinstance(name, str) and isinstance(scheduled_at, str)):
            return None
        expected = bool(fields.get(EXPECT_HEADER))
        header = fields.get(HISTORY_HEADER)
        if type(header) is int:
            history = min(header, MAX_HISTORY)
        if expected:
            history = max(history, 1)  # Expectations are checked against the row.
        if history < 1 or len(name) > MAX_NAME:
            return None
        try:
            # Both calls of encode() only check: they raise UnicodeEncodeError, a ValueError, for a
            # text that cannot be sent to the server.
            name.encode()
            task_id = str(fields["id"])
            task_id.encode()
            nominal = message_ms(scheduled_at)
            return cls(name, nominal, task_id, attempt_of(fields), history, expected)
        except (ValueError, TypeError, KeyError, OverflowError):
            return None  # Anybody may have written the headers.


class Fate(NamedTuple):
    """Start or end of one attempt, as a worker reports it.

    Parameters:
        attempt: the attempt.
        outcome: outcome of the run after this start or end.
        began: start of the task's code, in seconds of this machine's monotonic clock; ``None`` if
            it has not begun.
        seconds: duration of the task's code; ``None`` if not known.
        worker, error: node name of the worker, and the error. Both are cut when they are sent.
        retry_ms: milliseconds until the retry is due; ``None`` if there is none.
    """

    attempt: Attempt
    outcome: Reported
    began: float | None = None
    seconds: float | None = None
    worker: str = ""
    error: str = ""
    retry_ms: int | None = None

    def encode(self) -> str:
        """Return the fate as ``shared/record.lua`` reads it: one JSON list.

        A single argument takes the server less time than one per field.
        """
        # The server subtracts ``since`` from its own time, because clocks of machines differ.
        since = None if self.began is None else time.monotonic() - self.began
        letter = _TIMED_OUT if self.outcome == "timed out" else LETTERS[self.outcome]
        return json.dumps(
            [
                letter,
                _ms(since),
                _ms(self.seconds),
                # name, nominal time, task id, number, history, expected
                *self.attempt,
                LIFE_MS,
                _cut(self.worker),
                _cut(self.error),
                self.retry_ms,
            ]
        )


def _cut(text: str) -> str:
    """Return a text of at most ``ERROR_BYTES`` bytes."""
    return text.encode(errors="backslashreplace")[:ERROR_BYTES].decode(errors="ignore")


def _ms(seconds: float | None) -> int | str:
    """Return seconds in ms, at least 0; empty for ``None``."""
    return "" if seconds is None else max(round(1000 * seconds), 0)
