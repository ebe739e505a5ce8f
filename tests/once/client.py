"""The tests' side of the project of once-locks. It sends tasks, and looks at bodies and locks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import redis
from celery import Celery
from celery.result import AsyncResult

from redbeat_lite import Scheduler, Schedules, every
from tests.harness.history import HistoryLog
from tests.harness.workers import Worker
from tests.support.audit import Record
from tests.support.server import Server
from tests.support.waiting import eventually


class Polled(AsyncResult):  # type: ignore[misc]  # Celery ships no types
    """A result that the client polls.

    Celery's own client subscribes over one connection and looks for the result over another. It
    misses a result that is stored before the server has read the subscription.
    """

    def get(self, timeout: float = 15, **options: Any) -> Any:
        eventually(self.ready, within=timeout, what=f"the result of {self.id}")
        return super().get(timeout=timeout, **options)


class OnceClient:
    """The client of the project of once-locks."""

    def __init__(self, server: Server, log: HistoryLog) -> None:
        os.environ["ONCE_URL"] = server.url
        from tests.once import tasks

        self.app: Celery = tasks.app
        if self.app.conf.broker_url != server.url:
            raise AssertionError("all tests of a session have to use the same server")
        self.app.AsyncResult = self.app.subclass_with_self(Polled)
        self.tasks = SimpleNamespace()
        for name, task in self.app.tasks.items():
            if name.startswith("once."):
                setattr(self.tasks, name.removeprefix("once."), task)
        self.client: redis.Redis = server.client(decode_responses=True)
        self.server = server
        self.log = log
        self.marks = log.marks

    def task(self, name: str) -> Any:
        """Return a task of the project."""
        return self.app.tasks[f"once.{name}"]

    # -- bodies ------------------------------------------------------------------------------------

    def bodies(self, key: str) -> list[Record]:
        """Return the records of the bodies with this key, in the order in which they began."""
        return self.log.bodies(name=key)

    def ended_bodies(self, key: str) -> list[Record]:
        """Return the bodies that finished, in the order in which they did."""
        return self.log.ended_bodies(name=key)

    def count(self, key: str) -> int:
        return len(self.bodies(key))

    def count_ended(self, key: str) -> int:
        return len(self.ended_bodies(key))

    def started(self, key: str, times: int = 1, seconds: float = 20) -> list[Record]:
        """Wait until bodies with this key have begun so often."""
        eventually(lambda: self.count(key) >= times, within=seconds, what=f"{times} start(s) of {key}")
        return self.bodies(key)

    def ended(self, key: str, times: int = 1) -> list[Record]:
        """Wait until bodies with this key have ended so often."""
        eventually(lambda: self.count_ended(key) >= times, what=f"{times} end(s) of {key}")
        return self.ended_bodies(key)

    def go(self, key: str) -> None:
        """Let bodies with ``how="until"`` end."""
        self.marks.add(f"go-{key}")

    # -- locks and workers -------------------------------------------------------------------------

    def lock(self, key: str, task: str = "wait") -> dict[str, str]:
        return self.client.hgetall(f"{{t}}:once:lock:once.{task}:{key}")

    def waiters(self, key: str, task: str = "wait") -> list[str]:
        return self.client.zrange(f"{{t}}:once:wait:once.{task}:{key}", 0, -1)

    def have_heard(self, *workers: Worker) -> None:
        """Wait until these workers have got a broadcast. They have when they answer a later one."""
        names = [worker.name for worker in workers]
        ping = {"destination": names, "reply": True, "timeout": 1, "limit": len(names)}

        def have_answered() -> bool:
            return len(self.app.control.broadcast("ping", **ping)) == len(names)

        eventually(have_answered, what="answers of the workers")

    # -- messages ----------------------------------------------------------------------------------

    def copy(self, task_id: str, *, expired: bool = False) -> None:
        """Put a copy of an unacknowledged message into its queue, as a redelivery does."""
        for raw in self.client.hvals("unacked"):
            message, _, queue = json.loads(raw)
            if message["headers"]["id"] == task_id:
                message["headers"]["redelivered"] = True
                message["properties"]["delivery_tag"] = f"copy-{time.monotonic_ns()}"
                if expired:
                    message["headers"]["expires"] = "2020-01-01T00:00:00+00:00"
                self.client.lpush(queue, json.dumps(message))
                return
        raise AssertionError(f"no unacknowledged message of {task_id}")

    def capture(self, publish: Callable[[], Any]) -> tuple[Any, str]:
        """Publish to the queue ``nowhere``, and return the result and the raw message."""
        result = publish()
        raw = self.client.rpop("nowhere")
        assert raw is not None
        return result, raw

    def sent_by_an_entry(self, task: Any) -> str:
        """Add an entry that runs once, and return the raw message that a beat sends for it."""
        options: dict[str, Any] = {"max_runs": 1, "remove_when_done": True}
        Schedules(self.app).add("once", task, every(0.05), options={"queue": "nowhere"}, **options)
        beat = Scheduler(self.app)

        def is_sent() -> bool:
            beat.run_due()
            return bool(self.client.llen("nowhere"))

        try:
            eventually(is_sent)
            return self.capture(lambda: None)[1]
        finally:
            beat.close()

    def inject(self, raw: str, *, expires: str | None = None) -> None:
        """Put a raw message into the workers' queue."""
        message = json.loads(raw)
        message["properties"]["delivery_tag"] = f"copy-{time.monotonic_ns()}"
        message["properties"]["delivery_info"]["routing_key"] = "once"
        if expires:
            message["headers"]["expires"] = expires
        self.client.lpush("once", json.dumps(message))
