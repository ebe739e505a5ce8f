"""What workers would have recorded, written as they write it."""

from __future__ import annotations

import json
import time
from itertools import count
from typing import Any

import msgspec
import redis

from redbeat_lite._base.times import from_ms
from redbeat_lite.entries.run import LETTERS, Outcome, Row
from redbeat_lite.once.lock_store import OnceKeys
from redbeat_lite.once.worker_reports import WorkerReport
from redbeat_lite.runs.run_store import RunKeys
from redbeat_lite.store.redis_values import server_ms
from redbeat_lite.store.scripts import source
from tests.support.messages import of_entry
from tests.support.run_rows import text_of

#: What a worker's script does about deadlines.
CLEAR = (
    "local feed, deadlines, incidents = unpack(KEYS)\n"
    + source("shared/record")
    + "local name, nominal, letter, begin, duration = unpack(cjson.decode(ARGV[1]))\n"
    + "clear_deadlines(name, nominal, letter, 0, tonumber(begin), tonumber(duration))"
)


class Worker:
    """A worker that takes the messages of entries from the queue, as far as their records go.

    Parameters:
        client: of the server.
        prefix: of the keys.
    """

    def __init__(self, client: redis.Redis, prefix: str = "redbeat-lite") -> None:
        self._client = client
        self._keys = RunKeys(prefix)
        self._workers = OnceKeys(prefix).workers
        self._numbers = count(1)

    def reports(self, *queues: str) -> None:
        """Say that it is there, and records; and that it takes from these queues, or else from the default one."""
        report = WorkerReport([*queues] or ["celery"], server_ms(self._client) / 1000)
        self._client.hset(self._workers, "w", msgspec.json.encode(report))

    def is_gone(self) -> None:
        """Say no more."""
        self._client.delete(self._workers)

    def nominal_of(self, name: str) -> int:
        """Nominal time of the last run that was sent of an entry, epoch milliseconds."""
        nominal = of_entry(self._client, name)[-1].scheduled_at
        assert nominal is not None
        return round(nominal.timestamp() * 1000)

    def tells(
        self, name: str, outcome: Outcome, begin: float | None = 0.01, seconds: float | None = 0.1, error: str = ""
    ) -> None:
        """Record what became of the last run that was sent of an entry.

        Parameters:
            begin, seconds: after its nominal time, and how long it took.
        """
        nominal = self.nominal_of(name)
        began = None if begin is None else round(1000 * begin)
        duration = None if seconds is None or outcome == "running" else round(1000 * seconds)
        fields: dict[Any, Any] = {
            "name": name,
            "nominal": nominal,
            "id": f"{name}-{from_ms(nominal)}",
            "outcome": LETTERS[outcome],
            "begin": "" if began is None else began,
            "duration": "" if duration is None else duration,
            "attempt": 0,
            "worker": "w",
            "error": error,
        }
        line = b"" if outcome == "running" else self.writes(fields)
        rows = self._keys.rows(name)
        self._client.zremrangebyscore(rows, nominal, nominal)
        row = Row(nominal, outcome, fields["id"], began, duration, 0, line.decode())
        self._client.zadd(rows, {text_of(row): nominal})
        self._client.pexpire(rows, 60_000)
        run = [name, nominal, fields["outcome"], fields["begin"], fields["duration"]]
        self._client.eval(CLEAR, 3, self._keys.feed, self._keys.deadlines, self._keys.incidents, json.dumps(run))

    def writes(self, fields: dict[Any, Any]) -> bytes:
        """Add a line to the feed, at the time that the clock of the test shows; returns its id."""
        id_: bytes = self._client.xadd(self._keys.feed, fields, id=f"{round(1000 * time.time())}-{next(self._numbers)}")
        return id_
