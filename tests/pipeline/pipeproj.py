"""The Celery app of the pipeline tests: workers import it, the tests make the same one with :func:`make_app`.

What a step does is told by its keyword arguments; what it did, it writes into a list in Redis.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
import zlib
from collections.abc import Iterator
from typing import Any

import redis
from celery import Celery
from celery.exceptions import Ignore, Reject
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from redbeat_lite import Once, PipelineTask, install
from redbeat_lite.pipeline import task_process

#: Seconds that the guard believes in a run that nobody renews; so a dead worker is noticed soon.
LEASE = 2.0


def make_app(url: str, **conf: Any) -> Celery:
    """The app with its tasks, on the server at ``url``."""
    app = Celery("pipeproj", broker=url, backend=url, set_as_current=False)
    app.conf.update(
        redbeat_lite_once_lease=LEASE,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        task_create_missing_queues=True,
        result_expires=600,
    )
    app.conf.update(conf)
    if "PIPE_NO_INSTALL" not in os.environ:
        install(app)
    # The tests' own notes outlast a restart of the server. A redis-py before 6 does not take it for a failed connection
    # if nobody listens.
    retry = Retry(ConstantBackoff(0.2), 100, (redis.ConnectionError, OSError))
    client = redis.Redis.from_url(url, decode_responses=True, retry=retry, retry_on_error=[redis.ConnectionError])

    def note(task: Any, event: str, **more: Any) -> None:
        if not hasattr(task.request, "redbeat_pipeline"):
            return  # It runs as no step.
        seconds, micros = client.time()
        header = task.request.redbeat_pipeline
        entry = {"event": event, "step": header["name"], "stage": header["stage"], "pid": os.getpid()}
        entry |= {"at": seconds + micros / 1e6, "retries": task.request.retries, "id": task.request.id, **more}
        client.rpush(f"log:{header['run']}", json.dumps(entry))

    def body(task: Any, params: dict[str, Any], how: str, give: Any, seconds: float) -> Any:
        run, name = task.request.redbeat_pipeline["run"], task.request.redbeat_pipeline["name"]
        # Before the note, as who has read it may kill this process.
        times = client.incr(f"ran:{run}:{name}")
        first = times == 1
        note(task, "start", params=params if how == "show" else None)
        while (how == "until" and not client.exists(f"go:{run}")) or (
            how == "fail when told" and not client.exists(f"fail:{run}")
        ):
            time.sleep(0.02)
        if how == "fail when away" and first:
            with redis.Redis.from_url(url, retry=None) as curious:
                while True:
                    try:
                        curious.ping()
                    except redis.ConnectionError:
                        raise ValueError("as asked") from None
                    time.sleep(0.02)
        if how.startswith("fail until ") and times <= int(how.removeprefix("fail until ")):
            raise ValueError("as asked")
        if how == "refuse once" and first:
            return False, "as asked"
        _misbehave(task, how, first=first)
        time.sleep(seconds)
        note(task, "end")
        return give

    def plain_body(self: Any, params: dict[str, Any], how: str = "", give: Any = None, seconds: float = 0) -> Any:
        return body(self, params, how, give, seconds)

    options = {"bind": True, "shared": False, "base": PipelineTask}

    @app.task(name="proj.step", **options)
    def step(
        self: Any, params: dict[str, Any], how: str = "", give: Any = None, seconds: float = 0, tells: Any = None
    ) -> Any:
        if tells:
            self.progress(*tells)
        return body(self, params, how, give, seconds)

    @app.task(name="proj.late", acks_late=True, **options)
    def late(self: Any, params: dict[str, Any], how: str = "", give: Any = None, seconds: float = 0) -> Any:
        return body(self, params, how, give, seconds)

    @app.task(name="proj.requeue", acks_late=True, reject_on_worker_lost=True, **options)
    def requeue(self: Any, params: dict[str, Any], how: str = "", give: Any = None, seconds: float = 0) -> Any:
        return body(self, params, how, give, seconds)

    @app.task(name="proj.auto", autoretry_for=(ValueError,), default_retry_delay=0.2, max_retries=2, **options)
    def auto(self: Any, params: dict[str, Any], how: str = "", give: Any = None, seconds: float = 0) -> Any:
        return body(self, params, how, give, seconds)

    @contextlib.contextmanager
    def context(task: Any) -> Iterator[None]:
        note(task, "enter")
        try:
            yield
        finally:
            note(task, "leave")

    class Runs(PipelineTask):
        """As Flask's documentation has it: the body runs in the context of an app."""

        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with context(self):
                return self.run(*args, **kwargs)

    class Calls(PipelineTask):
        """The same, by way of its base."""

        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with context(self):
                return super().__call__(*args, **kwargs)

    class Mixin:
        """The same, in a class that is no task."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with context(self):
                return super().__call__(*args, **kwargs)  # type: ignore[misc] # that of the task it is mixed with

    class Mixed(Mixin, PipelineTask):
        abstract = True

    for base in (Runs, Calls, Mixed):
        names = f"proj.{base.__name__.lower()}"
        app.task(name=names, **{**options, "base": base})(plain_body)
        retried = {"autoretry_for": (ValueError,), "default_retry_delay": 0.2, "max_retries": 2}
        app.task(name=f"{names}.auto", **{**options, "base": base, **retried})(plain_body)

    @app.task(name="proj.locked", once=Once(key="locked", lease=LEASE), **options)
    def locked(self: Any, params: dict[str, Any], how: str = "", give: Any = None, seconds: float = 0) -> Any:
        return body(self, params, how, give, seconds)

    for conflict in ("skip", "wait", "raise"):
        once = Once(key="queued", scope="queue", on_conflict=conflict, lease=LEASE)
        app.task(name=f"proj.queued.{conflict}", once=once, **options)(plain_body)

    @app.task(name="proj.add", acks_late=True, reject_on_worker_lost=True, **options)
    def add(self: Any, params: dict[str, Any], key: str) -> Any:
        note(self, "start")
        deadly = float(os.environ.get("PIPE_KILL", "0"))
        if random.random() < deadly / 2:
            _die()
        added = added_by(key, params)
        note(self, "end")
        if random.random() < deadly / 2:
            _die()
        return added

    @app.task(name="proj.styles", **options)
    def styles(self: Any, obj: dict[str, Any], name: str) -> Any:
        note(self, "start", obj=obj, name=name)
        return {"id": obj["task_id"], "name": name, "result": True, "params": {"styles": obj["params"]}}

    @app.task(name="proj.decorated", **options)
    @task_process
    def decorated(obj: dict[str, Any]) -> Any:
        return len(obj), {"decorated": obj["params"]["styles"]}

    @app.task(name="proj.refused", **options)
    @task_process
    def refused(obj: dict[str, Any]) -> Any:
        return False, None

    def multiply(n: int, *, by: int) -> int:
        return n * by

    app.task(name="proj.alone", shared=False, base=PipelineTask)(multiply)
    app.task(name="proj.alone.runs", shared=False, base=Calls, autoretry_for=(ValueError,))(multiply)
    app.task(name="proj.alone.untyped", shared=False, base=PipelineTask, typing=False)(multiply)

    @app.task(name="proj.foreign", shared=False)
    def foreign() -> None:
        """No step."""

    return app


def added_by(key: str, params: dict[str, Any]) -> dict[str, Any]:
    """What ``proj.add`` returns: depends on every value it was given, so one that is missing or stale shows."""
    return {key: zlib.crc32(json.dumps(params, sort_keys=True).encode()), "last": key}


def _misbehave(task: Any, how: str, *, first: bool) -> None:
    if how.endswith(" once"):
        if not first:
            return
        how = how.removesuffix(" once")
    if how in ("fail", "fail when told"):
        raise ValueError("as asked")
    if how == "fail oddly":
        raise ValueError("caf\udce9")
    if how == "fail twice" and task.request.retries < 2:
        raise ValueError("as asked")
    if how == "retry" and task.request.retries == 0:
        raise task.retry(countdown=0.3)
    if how == "retry late" and task.request.retries == 0:
        raise task.retry(countdown=2 * LEASE)
    if how == "ignore":
        raise Ignore("as asked")
    if how == "reject":
        raise Reject("as asked", requeue=False)
    if how == "requeue" and first:
        raise Reject("as asked", requeue=True)
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(3600)
    if how == "replace":
        raise task.replace(task.app.tasks["proj.foreign"].si())


def _die() -> None:
    """The child that runs a step is killed; one time in four the whole worker is."""
    if random.random() < 0.25:
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_dispatchers(share: float) -> None:
    """Let processes die in the middle of publishing, before or after a message."""
    from redbeat_lite.pipeline import publish

    send = publish._publish

    def dangerous(*args: Any) -> None:
        if random.random() < share / 2:
            os.kill(os.getpid(), signal.SIGKILL)
        send(*args)
        if random.random() < share / 2:
            os.kill(os.getpid(), signal.SIGKILL)

    publish._publish = dangerous


def _double(deliveries: float, completions: float) -> None:
    """Let messages be published twice, and completions be recorded twice."""
    from redbeat_lite.pipeline import publish
    from redbeat_lite.pipeline.store import PipelineStore

    send, complete = publish._publish, PipelineStore.complete

    def twice(*args: Any) -> None:
        send(*args)
        if random.random() < deliveries:
            send(*args)

    def again(self: Any, ref: Any, outcome: str, text: str) -> Any:
        done = complete(self, ref, outcome, text)
        if random.random() < completions:
            assert complete(self, ref, outcome, text).word in ("again", "stale")
        return done

    publish._publish = twice
    PipelineStore.complete = again  # type: ignore[method-assign] # for the length of this process


if "PIPE_URL" in os.environ:
    app = make_app(os.environ["PIPE_URL"], **json.loads(os.environ.get("PIPE_CONF", "{}")))
    if "PIPE_DOUBLE" in os.environ:
        _double(0.10, 0.10)
    if "PIPE_KILL_DISPATCH" in os.environ:
        _kill_dispatchers(float(os.environ["PIPE_KILL_DISPATCH"]))
