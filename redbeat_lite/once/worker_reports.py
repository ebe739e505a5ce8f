"""The report of each worker with ``install()``, for other workers and for people."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from .._base.clock import elapsed, wall_ms
from ..store.redis_values import server_ms
from .lock_store import LockStore

#: Seconds between two reports of a worker.
REPORT = 10.0

#: Seconds without a report after which a worker counts as gone.
_GONE_AFTER = 60.0


class WorkerReport(msgspec.Struct, frozen=True):
    """Report of a worker.

    Parameters:
        queues: names of the queues that it consumes.
        at: time of the report, in epoch seconds of the server.
        ahead: seconds by which its clock is ahead of the server's; negative if it is behind.
    """

    queues: list[str]
    at: float
    ahead: float = 0.0


def recent_reports(stored: Mapping[bytes, bytes], now: float) -> dict[str, WorkerReport]:
    """Return the reports that are at most a minute old at ``now``, by the workers' node names.

    A stored text that is not a report is left out.

    Parameters:
        now: epoch seconds of the server.
    """
    recent = {}
    for name, text in stored.items():
        # A text that is not a report raises these errors.
        with suppress(ValueError, msgspec.DecodeError):
            report = msgspec.json.decode(text, type=WorkerReport)
            if now - report.at <= _GONE_AFTER:
                recent[name.decode(errors="backslashreplace")] = report
    return recent


def report_worker(store: LockStore, hostname: str, queues: list[str]) -> None:
    """Store this worker's report."""
    # Compare the clocks three times. ``min`` chooses the quickest reply, which is the most exact.
    reading = min(read_clock(store.client) for _ in range(3))
    report = WorkerReport(queues, at=reading.now / 1000, ahead=reading.ahead)
    store.client.hset(store.keys.workers, hostname, msgspec.json.encode(report))


class ClockReading(NamedTuple):
    """Comparison of this machine's clock with the server's.

    Parameters:
        took: seconds that the reply took.
        ahead: seconds by which the clock of this machine is ahead of the server's.
        now: the server's time in epoch ms.
    """

    took: float
    ahead: float
    now: int


def read_clock(client: Any) -> ClockReading:
    """Compare this machine's clock with the server's."""
    began = elapsed()
    before = wall_ms()
    now = server_ms(client)
    # The server has read its clock during the round trip, so compare it with the middle of the
    # trip.
    middle = (before + wall_ms()) / 2
    return ClockReading(elapsed() - began, (middle - now) / 1000, now)


def workers(store: LockStore) -> dict[str, WorkerReport]:
    """Return the workers that reported within the last minute, and delete older reports.

    If a worker replaces its old report during this call, the new report is deleted. The worker
    reports again after ``REPORT`` seconds.
    """
    stored = store.client.hgetall(store.keys.workers)
    recent = recent_reports(stored, server_ms(store.client) / 1000)
    for name in stored.keys() - {name.encode() for name in recent}:
        store.client.hdel(store.keys.workers, name)
    return recent
