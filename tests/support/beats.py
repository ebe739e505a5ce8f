"""What the tests with real ``celery beat`` processes ask of them, of the lease and of the queue."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

import redis

from redbeat_lite.store.keys import Keys
from tests.support.messages import Message, of_entry, queued
from tests.support.processes import Process
from tests.support.waiting import eventually

KEYS = Keys.of("redbeat-lite")

#: Seconds between two runs of the entry that most tests watch.
INTERVAL = 0.2

#: The same in milliseconds.
STEP = 200

#: A config entry that makes a stream one can watch. Its messages outlive their interval, so that a gap is seen as one.
FAST = {"task": "proj.add", "schedule": INTERVAL, "expires": 600}

#: The same, and what an outage made late is sent too: nothing may be missing.
EACH = {**FAST, "misfire": "all"}


def conf(*, schedule: dict[str, Any] | None = None, **settings: Any) -> str:
    """``PROJ_CONF``: a ``beat_schedule``, and our own settings without their prefix."""
    return json.dumps({"beat_schedule": schedule or {}, **{f"redbeat_lite_{k}": v for k, v in settings.items()}})


def leader_pid(client: redis.Redis) -> int | None:
    """The process that holds the lease."""
    pid = client.hget(KEYS.leader, "pid")
    return int(pid) if pid else None


def leads(process: Process, client: redis.Redis, *, within: float = 60.0) -> None:
    """Wait until this process holds the lease."""
    try:
        eventually(lambda: leader_pid(client) == process.pid, within=within, what="the lease is its own")
    except AssertionError as exc:
        raise AssertionError(f"{exc}\n{process.output}") from None


def settled(processes: Iterable[Process], client: redis.Redis) -> tuple[Process, list[Process]]:
    """Wait until one of these leads and all others stand by: the leader, and the others."""
    processes = list(processes)
    for process in processes:
        process.says("beat: (leading|standing by)")
    pid = eventually(lambda: leader_pid(client), what="a leader")
    [leader] = [process for process in processes if process.pid == pid]
    return leader, [process for process in processes if process is not leader]


def complaints(process: Process) -> list[str]:
    """The warnings and errors of a process, but not that a run was missed: on a busy machine it may be."""
    lines = process.lines("Traceback|WARNING|ERROR|CRITICAL")
    return [line for line in lines if not re.search("was late: it left out .* \\(misfire policy", line)]


def sent_by(client: redis.Redis, pid: int) -> list[Message]:
    """The messages of one process, oldest first."""
    return [message for message in queued(client) if message.sender == pid]


def nominals(messages: Iterable[Message]) -> list[int]:
    """Nominal times in whole milliseconds, in the order of the queue."""
    return [message.nominal for message in messages]


def stream(client: redis.Redis, name: str) -> list[int]:
    """The nominal times of one entry's messages."""
    return nominals(of_entry(client, name))


def gaps(times: list[int]) -> set[int]:
    """The distances between neighbours."""
    return {after - before for before, after in itertools.pairwise(times)}


class WakeChannel:
    """Hears everything that is said on the wake channel from now on."""

    def __init__(self, client: redis.Redis) -> None:
        self._pubsub: Any = client.pubsub()
        self._pubsub.subscribe(KEYS.wake)
        eventually(lambda: self._next() == "subscribe", what="the subscription")
        self._heard: list[bytes] = []

    def _next(self) -> str:
        message = self._pubsub.get_message(timeout=0.1)
        if message and message["type"] == "message":
            self._heard.append(message["data"])
        return message["type"] if message else ""

    def words(self) -> list[bytes]:
        """Everything heard so far."""
        while self._next():
            pass
        return self._heard

    def close(self) -> None:
        self._pubsub.close()
