"""Real worker processes, and ways to wait for what they do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from celery.result import AsyncResult

from redbeat_lite import Scheduler, Schedules, every
from tests.support.aftermath import dismiss, hear
from tests.support.nursery import nursery
from tests.support.waiting import pause

from .server import Server

HERE = Path(__file__).parent


def until(condition: Callable[[], Any], seconds: float = 20.0, what: str = "") -> Any:
    """Wait for a condition and return its value."""
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        assert waited < seconds, f"not in {seconds:g}s: {what or condition}"
        time.sleep(pause(waited))


class Worker:
    """One ``celery worker`` process, in a process group of its own."""

    def __init__(
        self, server: Server, pool: str = "prefork", concurrency: int = 2, *, name: str = "w", skew: float = 0,
        queues: str = "once", ready: bool = True, visibility: float | None = None, prefetch: int = 1, **conf: Any,
    ) -> None:  # fmt: skip
        self.log = server.directory / f"{name}-{time.monotonic_ns()}.log"
        self.name = f"{name}{time.monotonic_ns()}@test"
        environment = {
            **os.environ,
            "ONCE_URL": server.url,
            "ONCE_CONF": json.dumps(conf),
            "ONCE_SKEW": str(skew),
            "ONCE_PREFETCH": str(prefetch),
            **({"ONCE_VISIBILITY": str(visibility)} if visibility else {}),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent.parent)]),
        }
        command = [sys.executable, "-m", "celery", "-A", "onceproj", "worker", "-P", pool, "-c", str(concurrency)]
        command += ["-n", self.name, "-Q", queues, "-l", "INFO", "--without-gossip", "--without-mingle"]
        with self.log.open("wb") as log:
            self.process = nursery().start(command, env=environment, stdout=log, session=True, cwd=HERE)
        hear(self, f"output of the worker {self.name}", self.text)
        if ready:
            self.ready()

    def ready(self) -> None:
        """Wait until it consumes."""
        until(self._ready, 40, "the worker is ready")

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.text()
        return " ready." in self.text()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """To the main process."""
        self.process.send_signal(number)

    def signal_all(self, number: int) -> None:
        """To the main process and its children."""
        os.killpg(self.process.pid, number)

    def wait(self, seconds: float = 60) -> int:
        return self.process.wait(seconds)

    def close(self) -> None:
        """Take the whole group away."""
        dismiss(self)
        with contextlib.suppress(ProcessLookupError):
            self.signal_all(signal.SIGKILL)
        self.process.wait(20)


class Polled(AsyncResult):  # type: ignore[misc]  # Celery ships no types
    """A result that is asked for until it is there.

    Celery's own client subscribes over one connection, looks for the result over another, and then waits for word of
    it: what is stored between the two, before the server has read the subscription, it never hears of.
    """

    def get(self, timeout: float = 15, **options: Any) -> Any:
        until(self.ready, timeout, f"the result of {self.id}")
        return super().get(timeout=timeout, **options)


class Proj:
    """The client's side: the same app, its tasks, and what they noted."""

    def __init__(self, server: Server) -> None:
        os.environ["ONCE_URL"] = server.url
        sys.path.insert(0, str(HERE))
        import onceproj

        self.tasks: Any = onceproj
        self.app: Celery = onceproj.app
        self.app.AsyncResult = self.app.subclass_with_self(Polled)
        if self.app.conf.broker_url != server.url:
            raise AssertionError("one server for each test session")
        self.client: redis.Redis = server.client()
        self.server = server

    def log(self, key: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.client.lrange(f"log:{key}", 0, -1)]

    def count(self, key: str, event: str = "start") -> int:
        return sum(entry["event"] == event for entry in self.log(key))

    def started(self, key: str, times: int = 1, seconds: float = 20) -> list[dict[str, Any]]:
        """Wait until tasks with this key have started so often."""
        until(lambda: self.count(key) >= times, seconds, f"{times} start(s) of {key}; {self.log(key)}")
        return [entry for entry in self.log(key) if entry["event"] == "start"]

    def ended(self, key: str, times: int = 1, seconds: float = 20) -> list[dict[str, Any]]:
        until(lambda: self.count(key, "end") >= times, seconds, f"{times} end(s) of {key}; {self.log(key)}")
        return [entry for entry in self.log(key) if entry["event"] == "end"]

    def all_have_heard(self, workers: int = 2) -> None:
        """Wait until what was broadcast has arrived: it has when a later one is answered."""
        until(lambda: len(self.app.control.broadcast("ping", reply=True, timeout=1, limit=workers)) >= workers)

    def go(self, key: str) -> None:
        """Let tasks with ``how="until"`` end."""
        self.client.set(f"go:{key}", 1)

    def lock(self, key: str, task: str = "wait") -> dict[str, str]:
        return self.client.hgetall(f"{{t}}:once:lock:onceproj.{task}:{key}")

    def waiters(self, key: str, task: str = "wait") -> list[str]:
        return self.client.zrange(f"{{t}}:once:wait:onceproj.{task}:{key}", 0, -1)

    def copy(self, task_id: str, *, expired: bool = False) -> None:
        """What a broker does that delivers a message again: put a copy of an unacknowledged one back into its queue."""
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
        """Publish to a queue without a consumer and take the message from there: (result, raw message)."""
        result = publish()
        raw = self.client.rpop("nowhere")
        assert raw is not None
        return result, raw

    def sent_by_an_entry(self, task: Any) -> str:
        """The raw message of the one run of an entry."""
        schedules, beat = Schedules(self.app), Scheduler(self.app)
        schedules.add("once", task, every(0.05), options={"queue": "nowhere"}, max_runs=1, remove_when_done=True)

        def is_sent() -> bool:
            beat.run_due()
            return bool(self.client.llen("nowhere"))

        try:
            until(is_sent)
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
