"""Which attempt of which run a message is for, as its headers tell, and what became of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from ..instants import told_ms
from ..settings import MAX_HISTORY, MAX_NAME
from .row import LETTERS, LIFE_MS, NESTING
from .run import EXPECT_HEADER, HISTORY_HEADER, Outcome

#: Bytes that are kept of what an attempt failed with, and of the name of its worker.
ERROR_BYTES = 500


def attempt_of(fields: Mapping[str, Any]) -> int:
    """The number of an attempt among those of one task id."""
    return int(fields.get("replaced_task_nesting") or 0) * NESTING + int(fields.get("retries") or 0)


class Attempt(NamedTuple):
    """One attempt of a run.

    Parameters:
        nominal: nominal time, epoch milliseconds.
        number: grows with each retry, and each ``replace``, of the same task id.
        history: how many rows the entry keeps; 1 or more.
    """

    name: str
    nominal: int
    task_id: str
    number: int
    history: int
    expected: bool = False

    @classmethod
    def of(cls, fields: Mapping[str, Any], history: int) -> Self | None:
        """The attempt a message is for; ``None`` where it comes from no entry of ours, or none is to be recorded.

        Parameters:
            history: rows that are kept where the message does not say.
        """
        # Other schedulers write the first one too.
        name, scheduled_at = fields.get("periodic_task_name"), fields.get("scheduled_at")
        if not (isinstance(name, str) and isinstance(scheduled_at, str)):
            return None
        given, expected = fields.get(HISTORY_HEADER), bool(fields.get(EXPECT_HEADER))
        kept = max(min(given, MAX_HISTORY) if type(given) is int else history, int(expected))
        try:
            if kept < 1 or len(name) > MAX_NAME:
                return None
            name.encode()
            task_id = str(fields["id"])
            task_id.encode()
            return cls(name, told_ms(scheduled_at), task_id, attempt_of(fields), kept, expected)
        except (ValueError, TypeError, KeyError, OverflowError):
            return None  # Anybody may have written them.


class Fate(NamedTuple):
    """What became of one attempt, as a worker tells it.

    Parameters:
        began: when its body began, monotonic seconds of this machine; ``None`` where it has not. No wall clock: the
            server tells from its own when that was.
        seconds: how long it took; ``None`` where that is not known.
        worker, error: its node name, and what it failed with. Both are cut when they are sent.
        retry_ms: milliseconds until its retry is due; ``None`` where it is not retried.
    """

    attempt: Attempt
    outcome: Outcome
    began: float | None = None
    seconds: float | None = None
    worker: str = ""
    error: str = ""
    retry_ms: int | None = None

    def encode(self) -> str:
        """What ``shared/record.lua`` is told now: one text, as each that is sent costs a client some microseconds."""
        since = None if self.began is None else time.monotonic() - self.began
        worker, error = (
            told.encode(errors="backslashreplace")[:ERROR_BYTES].decode(errors="ignore")
            for told in (self.worker, self.error)
        )
        became = LETTERS[self.outcome], _ms(since), _ms(self.seconds)
        return json.dumps([*became, *self.attempt, LIFE_MS, worker, error, self.retry_ms])


def _ms(seconds: float | None) -> int | str:
    return "" if seconds is None else max(round(1000 * seconds), 0)
