"""Rows and lines of the record of runs, written by hand, and states that say what was sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import redis
from msgspec.structs import replace

from redbeat_lite import Schedules
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries.run import LETTERS, Outcome, Row
from redbeat_lite.entries.state import EntryState, add_sent, task_id
from redbeat_lite.once.lock_store import OnceKeys
from redbeat_lite.runs.run_store import RunKeys

KEYS, ONCE = RunKeys("redbeat-lite"), OnceKeys("redbeat-lite")

_STATE = "{redbeat-lite}:state"
#: Long enough for a test, and so short that what is written leaves by itself.
_LIFE = 600


def text_of(row: Row) -> str:
    """Return the text of a row, as the scripts write it."""
    # A range has no task id, so its text has its nominal time. Otherwise the texts of two ranges could be equal.
    begin = row.nominal if row.is_range else row.begin
    times = "|".join("" if value is None else f"{value:x}" for value in (begin, row.duration, row.attempt))
    return f"{row.task_id}|{LETTERS[row.outcome]}|{times}|{row.feed}"


class RunRows:
    """Writes what beats and workers would.

    Parameters:
        client: of the server of the schedule.
        schedules: the schedule, under its default prefix.
    """

    def __init__(self, client: redis.Redis, schedules: Schedules) -> None:
        self._client = client
        self._schedules = schedules

    def sent(self, name: str, *instants: datetime, history: int = 20, finished: bool = False) -> list[str]:
        """Say of an entry that it was sent at these nominal times, in order; returns the task ids.

        Parameters:
            finished: whether no occurrence comes after them.
        """
        state = self._schedules[name].state
        state = replace(state, nominal=None) if finished else state
        times = [to_ms(instant) for instant in instants]
        told: EntryState = replace(state, deltas=add_sent("", None, times, history), last=times[-1], count=len(times))
        self._client.hset(_STATE, name, told.encode())
        return [task_id(name, state.generation, at) for at in times]

    def row(
        self,
        name: str,
        at: datetime,
        outcome: Outcome,
        task_id: str = "",
        begin: int | None = None,
        duration: int | None = None,
        attempt: int = 0,
        feed: str = "",
    ) -> None:
        """Write a row, with the parameters of :class:`Row`."""
        row = Row(to_ms(at), outcome, task_id, begin, duration, attempt, feed)
        self._client.zadd(KEYS.rows(name), {text_of(row): row.nominal})
        self._client.expire(KEYS.rows(name), _LIFE)

    def line(self, name: str, at: datetime, outcome: Outcome, task_id: str, **more: Any) -> str:
        """Write a line of the feed; returns its id."""
        told: dict[Any, Any] = {"begin": "", "duration": "", "attempt": 0, "worker": "", "error": "", **more}
        told |= {"name": name, "nominal": to_ms(at), "id": task_id, "outcome": LETTERS[outcome]}
        line: bytes = self._client.xadd(KEYS.feed, told)
        self._client.expire(KEYS.feed, _LIFE)
        return line.decode()

    def guard(self, task_id: str, state: str, ahead: float) -> None:
        """Write the record of the guard of a task, held for so many seconds from now on, by the server's clock."""
        seconds, micros = self._client.time()
        until = 1000 * seconds + micros // 1000 + round(1000 * ahead)
        self._client.hset(ONCE.guard(task_id), mapping={"state": state, "attempt": 0, "until": until})
        self._client.expire(ONCE.guard(task_id), _LIFE)
