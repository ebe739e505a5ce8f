"""What all subjects have in common: the task that is scheduled, the app, an empty database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import redis
from celery import Celery

TASK = "proj.refresh"

#: The part of the time with the server in which that runs scripts.
IN_SCRIPTS = "of the time with the server: its scripts"

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Task:
    """What a subject is to measure.

    Parameters:
        url: the server, broker and schedule at once.
        due: entries due at once.
        due_steps: the same, for the plot.
        ticks: dispatches looked at of schedulers that take one entry per tick.
        singles: entries added one by one.
    """

    url: str
    due: int
    due_steps: Sequence[int]
    ticks: int
    singles: int


def make_app(url: str, **conf: Any) -> Celery:
    """An app with one task, whose broker is ``url``."""
    app = Celery("proj", broker=url, set_as_current=False)
    app.conf.update(conf)

    @app.task(name=TASK, shared=False)  # type: ignore[untyped-decorator]
    def refresh(customer: int, region: str = "eu") -> None: ...

    app.finalize()
    return app


def names(count: int) -> list[str]:
    """Names of entries."""
    return [f"refresh-customer-{number:07d}" for number in range(count)]


def arguments(number: int) -> tuple[list[int], dict[str, str]]:
    """``args`` and ``kwargs`` of the entry of this number."""
    return [number], {"region": "eu"}


def full(number: int) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Arguments and options as real entries have them."""
    kwargs = {"region": "eu", "report": "monthly-revenue", "formats": ["pdf", "csv"], "dry_run": False}
    options = {"queue": "reports", "priority": 5, "time_limit": 600, "expires": 1800}
    return [number, f"customer-{number}@example.com"], kwargs, options


def long_ago() -> datetime:
    """A last run that makes an hourly entry due."""
    return datetime.now(UTC) - timedelta(hours=3)


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


def empty(server: redis.Redis) -> None:
    """Remove everything, and be done with it on return: servers by now free memory in the background."""
    server.execute_command("FLUSHDB", "SYNC")  # type: ignore[no-untyped-call]


def memory(server: redis.Redis) -> int:
    """Bytes in use on the server."""
    return int(server.info("memory")["used_memory"])


def check_queue(server: redis.Redis, expected: int) -> None:
    """Take care that what was timed was done: the queue holds so many messages; empties it."""
    found = server.llen("celery")
    if found != expected:
        raise RuntimeError(f"{expected} messages should be in the queue, there are {found}")
    server.delete("celery")


@contextmanager
def commands(server: redis.Redis) -> Iterator[list[str]]:
    """The commands that clients send meanwhile, without those of scripts; complete once the block has ended."""
    seen: list[str] = []
    server.ping()  # a new connection says more than one command
    # From a pool of its own, so that what comes next is not left without a connection.
    watcher = redis.Redis(connection_pool=redis.ConnectionPool(**server.connection_pool.connection_kwargs))
    with watcher, watcher.monitor() as monitor:  # type: ignore[no-untyped-call]
        yield seen
        end = uuid4().hex
        server.echo(end)
        for command in monitor.listen():
            if end in command["command"]:
                return
            if command["client_type"] != "lua":
                seen.append(command["command"])
