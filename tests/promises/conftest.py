"""What the promises are asked of: a real server, real beats and workers, the queue, the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Schedules
from tests.support.messages import Message, of_entry, queued
from tests.support.processes import ROOT, Process, celery, run_celery
from tests.support.server import Server
from tests.support.waiting import eventually

LEADER = "{redbeat-lite}:leader"

#: Seconds between two runs of an entry that makes a stream.
TICK = 0.2

Conf = dict[str, Any]


class Stage:
    """One server, and what a user starts on it."""

    def __init__(self, server: Server, client: redis.Redis, app: Celery) -> None:
        self.server, self.client, self.app = server, client, app
        self.schedules = Schedules(app)
        self.processes: list[Process] = []

    def _env(self, conf: Conf) -> dict[str, str]:
        return {"PROJ_URL": self.server.url, "PROJ_CONF": json.dumps(conf)}

    def start(self, *words: str, **conf: Any) -> Process:
        process = celery("tests.promises.proj", *words, **self._env(conf))
        self.processes.append(process)
        return process

    def beat(self, **conf: Any) -> Process:
        """A beat that leads or stands by."""
        process = self.start("beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO", **conf)
        process.says("beat: (leading|standing by)")
        return process

    def worker(self, **conf: Any) -> Process:
        """A worker that is ready."""
        process = self.start("worker", "-c", "2", "-l", "INFO", **conf)
        process.says(r" ready\.$")
        return process

    def run(self, *words: str, code: int = 0) -> str:
        """Run ``celery -A proj redbeat words…`` and return what it printed."""
        env = {**os.environ, "PYTHONPATH": str(ROOT), **self._env({})}
        ended = run_celery("tests.promises.proj", "redbeat", *words, env=env)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout

    def leader(self) -> Process:
        """The beat that leads; waits until there is one."""
        return eventually(self._leader, within=30, what="a leader")

    def _leader(self) -> Process | None:
        pid = self.client.hget(LEADER, "pid")
        beats = [process for process in self.processes if pid and process.pid == int(pid)]
        return beats[0] if beats else None

    def messages(self, name: str) -> list[Message]:
        """The messages of an entry, oldest first."""
        return of_entry(self.client, name)

    def waits_for(self, name: str, count: int = 1, within: float = 20) -> list[Message]:
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

    def occurrences(self) -> list[tuple[str | None, Any]]:
        """Entry and nominal time of every message in the queue."""
        return [(message.entry, message.scheduled_at) for message in queued(self.client)]


@pytest.fixture
def stage(server: Server, client: redis.Redis, make_app: Callable[..., Celery]) -> Iterator[Stage]:
    app = make_app(beat_max_loop_interval=300)

    @app.task(name="proj.add", shared=False)
    def add(x: int = 0, y: int = 0) -> None: ...

    stage = Stage(server, client, app)
    yield stage
    for process in stage.processes:
        process.destroy()
