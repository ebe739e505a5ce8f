"""What the promises are asked of: a real server, real beats and workers, the queue, the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Schedules, at
from tests.promises.gate import VARIABLE, Gate
from tests.support.messages import Message, of_entry, queued
from tests.support.processes import ROOT, Process, celery, run_celery
from tests.support.server import Server
from tests.support.waiting import eventually

LEADER = "{redbeat-lite}:leader"

#: Seconds between two runs of an entry that makes a stream.
TICK = 0.2

#: Settings of a beat that passes the gate before it sends a message of the task ``proj.gated``.
GATED = {"task_routes": ["tests.promises.gate.route_through_gate"]}

#: Words of the command that starts a beat.
BEAT = ("beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO")


class Clock:
    """Wall clock of processes with ``proj_clock``: the machine's, and some seconds more or less.

    Parameters:
        path: the file that holds these seconds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, seconds: float) -> None:
        """Let the clock differ by so many seconds from now on."""
        new = self.path.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self.path)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


class Stage:
    """One server, and what a user starts on it."""

    def __init__(
        self, server: Server, client: redis.Redis, make_app: Callable[..., Celery], app: Celery, directory: Path
    ) -> None:
        self.server = server
        self.client = client
        self._make_app = make_app
        self.app = app
        self.schedules = Schedules(app)
        self.gate = Gate(directory)
        self.processes: list[Process] = []

    def environment(self, **conf: Any) -> dict[str, str]:
        """The environment variables of a process of the app with these settings."""
        return {
            "PROJ_URL": self.server.url,
            "PROJ_CONF": json.dumps(conf),
            VARIABLE: str(self.gate.directory),
        }

    def start(self, *words: str, **conf: Any) -> Process:
        process = celery("tests.promises.proj", *words, **self.environment(**conf))
        self.processes.append(process)
        return process

    def beat(self, **conf: Any) -> Process:
        """A beat that leads or stands by."""
        process = self.start(*BEAT, **conf)
        process.says("beat: (leading|standing by)")
        return process

    def worker(self, **conf: Any) -> Process:
        """A worker that is ready."""
        process = self.start("worker", "-c", "2", "-l", "INFO", **conf)
        process.says(r" ready\.$")
        return process

    def run(self, *words: str, code: int = 0) -> str:
        """Run ``celery -A proj redbeat words…`` and return what it printed."""
        env = {**os.environ, "PYTHONPATH": str(ROOT), **self.environment()}
        ended = run_celery("tests.promises.proj", "redbeat", *words, env=env)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout

    def leader(self) -> Process:
        """The beat that leads; waits until there is one."""
        return eventually(self._leader, what="a leader")

    def _leader(self) -> Process | None:
        pid = self.client.hget(LEADER, "pid")
        beats = [process for process in self.processes if pid and process.pid == int(pid)]
        return beats[0] if beats else None

    def messages(self, name: str) -> list[Message]:
        """The messages of an entry, oldest first."""
        return of_entry(self.client, name)

    def waits_for(self, name: str, count: int = 1, within: float = 60) -> list[Message]:
        """Wait for so many messages of an entry."""

        def enough() -> list[Message]:
            found = self.messages(name)
            return found if len(found) >= count else []

        return eventually(enough, within=within, what=f"{count} messages of {name!r}")

    def waits_for_renewals(self, count: int = 2) -> None:
        """Wait until the leader has renewed its lease so many times: by then it knows of changes."""
        left = self.client.pttl(LEADER)

        def is_renewed() -> bool:
            """Whether the time that is left has become longer since the last look."""
            nonlocal left
            before, left = left, self.client.pttl(LEADER)
            return left > before

        for _ in range(count):
            eventually(is_renewed, what="a renewal")

    def app_of(self, server: Server) -> Celery:
        """An app whose schedule and broker are in another server."""
        return self._make_app(broker_url=server.url)

    def add_due(self, name: str, task: str = "proj.add", **fields: Any) -> None:
        """Add an entry that runs once, now."""
        self.schedules.add(name, task, at(datetime.now(UTC)), **fields)

    def usurp(self) -> None:
        """Give the lease to a beat that does not exist, for a minute."""
        self.client.hset(LEADER, mapping={"token": "someone:1:x:else", "term": 10**6})
        self.client.pexpire(LEADER, 60_000)

    def occurrences(self) -> list[tuple[str | None, Any]]:
        """Entry and nominal time of every message in the queue."""
        return [(message.entry, message.scheduled_at) for message in queued(self.client)]


@pytest.fixture
def stage(
    server: Server, client: redis.Redis, make_app: Callable[..., Celery], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    app = make_app(beat_max_loop_interval=300)

    @app.task(name="proj.add", shared=False)
    def add(x: int = 0, y: int = 0) -> None: ...

    stage = Stage(server, client, make_app, app, tmp_path_factory.mktemp("gate"))
    yield stage
    for process in stage.processes:
        process.destroy()


def separate_broker(stage: Stage, broker: Server) -> dict[str, str]:
    """Settings of a beat whose broker is not the schedule's server."""
    return {"redbeat_lite_url": stage.server.url, "broker_url": broker.url}


def plan_a_bad_entry(stage: Stage) -> Process:
    """Start a beat that finds the unreadable entry "bad" due, and then waits at the gate."""
    begin = datetime.now(UTC) - timedelta(hours=1)
    stage.schedules.add("bad", "proj.add", at(begin))
    stage.client.hset("{redbeat-lite}:entries", "bad", "rubbish")
    # For the claim on its once-lock, the beat routes the message while it plans.
    stage.schedules.add("gated", "proj.gated", at(begin), once=True)
    stage.gate.close()
    beat = stage.start(*BEAT, **GATED)
    stage.gate.holds()
    return beat


def origins(messages: list[Message]) -> set[int]:
    """The processes that sent these."""
    return {message.sender for message in messages}
