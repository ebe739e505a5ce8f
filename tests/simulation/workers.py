"""Workers: they take messages from the broker, and run the package's side of a worker with Celery's requests."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import redis
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.worker.request import create_request_cls
from kombu.transport.virtual import Message
from kombu.utils.imports import symbol_by_name

from redbeat_lite import install
from redbeat_lite.once.worker.keeper import OnceStep
from tests.simulation.apps import make_app
from tests.simulation.broker import INDEX, Broker
from tests.simulation.pool import Child, Pool
from tests.simulation.world import MICROS, Process, World

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

#: Seconds between two looks for messages that nobody has acknowledged.
_RESTORE = 5.0


class Requests:
    """The module ``celery.worker.state``: each worker knows its own requests alone."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._received: dict[str, list[Any]] = {}
        self._active: dict[str, list[Any]] = {}
        self.revoked = Revoked(self)

    @property
    def requests(self) -> dict[str, Any]:
        return {request.id: request for request in self._received.get(self.host, [])}

    @property
    def active_requests(self) -> list[Any]:
        return list(self._active.get(self.host, []))

    @property
    def host(self) -> str:
        """The name of the worker that runs now."""
        process = self._world.current
        return "" if process is None else process.name

    def receive(self, request: Any) -> None:
        self._received.setdefault(request.hostname, []).append(request)

    def accept(self, request: Any, **_: Any) -> None:
        self._active.setdefault(request.hostname, []).append(request)

    def end(self, request: Any, **_: Any) -> None:
        for requests in (self._received, self._active):
            if request in requests.get(request.hostname, ()):
                requests[request.hostname].remove(request)


class Revoked:
    """Task ids that were revoked or have expired: each worker knows those that it has seen itself."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        #: Names of workers, and ids.
        self.ids: set[tuple[str, str]] = set()

    def add(self, task_id: str) -> None:
        self.ids.add((self._requests.host, task_id))

    def __contains__(self, task_id: str) -> bool:
        return (self._requests.host, task_id) in self.ids


class Channel:
    """The part of a kombu channel that a message and the package's heartbeat use."""

    ack_emulation = True
    no_ack_consumers = None
    unacked_index_key = INDEX.decode()
    Client = redis.Redis

    def __init__(self, world: World, broker: Broker) -> None:
        self._world = world
        self._broker = broker
        #: When the worker has taken a message last, or has given one back, epoch microseconds.
        self.moved_us = 0
        self.visibility_timeout = broker.visibility
        #: Messages that were taken and not acknowledged, by tag.
        self.delivered: dict[str, Message] = {}
        self._qos = SimpleNamespace(_delivered=self.delivered, _dirty=set())

    def _get_pool(self) -> redis.ConnectionPool:
        return redis.ConnectionPool(host=self._broker.network.host, port=6379)

    def decode_body(self, body: str, _encoding: str) -> bytes:
        return base64.b64decode(body)

    def basic_ack(self, tag: str, multiple: bool = False) -> None:
        del multiple
        self._forget(tag)
        self._broker.acknowledge(tag)

    def basic_reject(self, tag: str, requeue: bool = False) -> None:
        self._forget(tag)
        if requeue:
            self._broker.requeue(tag)
        else:
            self._broker.acknowledge(tag)

    def _forget(self, tag: str) -> None:
        """Note that the worker has room for one more message."""
        self.delivered.pop(tag, None)
        self.note_move()
        self._broker.wake()

    def note_move(self) -> None:
        self.moved_us = self._world.now_us


class Timer:
    """The timer of a worker's event loop."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def call_repeatedly(self, seconds: float, call: Callable[[], object]) -> Any:
        entry = SimpleNamespace(is_cancelled=False)
        entry.cancel = lambda: setattr(entry, "is_cancelled", True)

        def strike() -> None:
            if not entry.is_cancelled and not self._process.is_dead:
                self._process.start(call)
                self._world.after(seconds, strike)

        self._world.after(seconds, strike)
        return entry

    def call_at(self, instant: datetime, call: Callable[[], object]) -> None:
        self._world.at(int(instant.timestamp() * MICROS), lambda: self._process.start(call))


class Worker:
    """One worker with its pool."""

    def __init__(self, scenario: Scenario, process: Process) -> None:
        self._world = scenario.world
        self.process = process
        self._setup = scenario.setup
        self._work = scenario.setup.work
        self._broker = scenario.broker
        self._bodies = scenario.bodies
        self._requests = scenario.requests
        self._story = scenario.story
        self._app = self._make_ready_app()
        self._channel = Channel(self._world, self._broker)
        self._timer = Timer(self._world, process)
        self._children_started = 0
        #: Messages that wait for their time.
        self._delayed = 0
        self.pool = Pool(self._world, process, self._bodies, self._work.slots, self._make_child)
        process.at_death.append(lambda: self._bodies.died(process))
        self._request_classes: dict[str, Any] = {}

    def run(self) -> None:
        """Take messages for ever."""
        self._start_step()
        for name, task in self._app.tasks.items():
            base = symbol_by_name(task.Request)
            self._request_classes[name] = create_request_cls(
                base, task, self.pool, self.process.name, None, task_ready=self._requests.end, app=self._app
            )
        self._timer.call_repeatedly(_RESTORE, self._broker.restore_visible)
        while True:
            payload = self._broker.take() if self.has_room else None
            if payload is None:
                self._world.wait(1.0, self._broker.wait)
            else:
                self._channel.note_move()
                self._world.wait(self._broker.network.latency(self.process))
                self._receive(payload)

    def hear_of_revoke(self, ids: Sequence[str]) -> None:
        """Let the worker revoke tasks, and kill those that it has, as soon as it hears of it."""
        seconds = self._broker.network.latency(self.process)
        self._world.after(seconds, lambda: self.process.start(lambda: self._revoke(ids)))

    def kill(self) -> None:
        """Kill the worker and its children."""
        self.pool.kill()
        self.process.kill()

    @property
    def forks(self) -> bool:
        return self._work.forks

    @property
    def processes(self) -> list[Process]:
        """The main process and its children."""
        return list(dict.fromkeys([self.process, *(child.process for child in self.pool.children)]))

    @property
    def has_room(self) -> bool:
        """Whether it takes one more message."""
        return len(self._channel.delivered) - self._delayed < self._work.slots + self._work.prefetch

    def has_had_room_since(self, instant_us: int) -> bool:
        """Whether it could have taken a message ever since, and none is on its way to it."""
        return self.has_room and self._channel.moved_us < instant_us

    def _make_ready_app(self) -> Celery:
        app = make_app(self._world, self._setup)
        install(app)
        self._bodies.register(app)
        app.finalize()
        return app

    def _make_child(self) -> Child:
        if not self._work.forks:
            return Child(self.process, self._app)
        self._children_started += 1
        process = self._world.process(f"{self.process.name}/{self._children_started}")
        app = self._make_ready_app()
        return Child(process, app)

    def _start_step(self) -> None:
        """Start the package's threads in a worker."""
        transport = SimpleNamespace(driver_type="redis")
        consumer = SimpleNamespace(
            app=self._app,
            hostname=self.process.name,
            timer=self._timer,
            connection=SimpleNamespace(transport=transport),
            task_consumer=SimpleNamespace(channel=self._channel),
        )
        OnceStep(consumer).start(consumer)

    def _receive(self, payload: dict[str, Any]) -> None:
        self._channel.note_move()
        message = Message(payload, channel=self._channel)
        self._channel.delivered[message.delivery_tag] = message
        name = message.headers["task"]
        request = self._request_classes[name](
            message,
            on_ack=message.ack_log_error,
            on_reject=message.reject_log_error,
            app=self._app,
            hostname=self.process.name,
            task=self._app.tasks[name],
            connection_errors=(OSError,),
            body=message.body,
            headers=message.headers,
        )
        if request.expires and request.revoked():
            return
        self._requests.receive(request)
        if request.eta is None:
            self._execute(request)
        else:
            self._delayed += 1
            self._timer.call_at(request.eta, lambda: self._execute_delayed(request))

    def _revoke(self, ids: Sequence[str]) -> None:
        for task_id in ids:
            self._requests.revoked.add(task_id)
        requests = self._requests.requests
        try:
            for request in [requests[task_id] for task_id in ids if task_id in requests]:
                if self.pool.runs_another(request):
                    # Of two messages of one task, Celery knows only the one that the worker has received last.
                    self._bodies.beyond_reach.add(request.id)
                self.pool.meant = request.id
                request.terminate(self.pool, signal=15)
        except NotImplementedError as exc:
            self._story.tell(f"{exc}")

    def _execute_delayed(self, request: Any) -> None:
        self._delayed -= 1
        self._execute(request)

    def _execute(self, request: Any) -> None:
        try:
            request.execute_using_pool(self.pool)
        except TaskRevokedError:
            self._story.tell(f"{request.name} {request.id[:8]} has expired")
