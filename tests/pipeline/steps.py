"""The Celery project of the pipelines. Workers import it; tests make the same app by `make_app`.

The environment variable ``PIPE_URL`` names the server, and ``PIPE_CONF`` settings. With
``PIPE_NO_INSTALL``, ``install(app)`` is not called. ``PIPE_DOUBLE``, ``PIPE_KILL`` and
``PIPE_KILL_DISPATCH`` make the process misbehave.
"""

from __future__ import annotations

import json
import os
import random
import signal
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from celery import Celery

from redbeat_lite import Once, PipelineTask, install
from redbeat_lite.pipeline import sweeper, task_process
from redbeat_lite.pipeline.pipeline_store import PipelineStore
from tests.harness.history import Body, HistoryLog
from tests.harness.project import LATE, REQUEUED, SETTINGS, Part, act, noted

#: Seconds after which the guard gives up a run that nobody renews. Few, so that tests notice a dead
#: worker soon.
LEASE = 2.0

_RETRIED = {"autoretry_for": (ValueError,), "default_retry_delay": 0.2, "max_retries": 2}


def make_app(url: str, **conf: Any) -> Celery:
    """Make the app with its tasks, for one server."""
    app = Celery("steps", broker=url, backend=url, set_as_current=False)
    app.conf.update(SETTINGS)
    app.conf.update(redbeat_lite_once_lease=LEASE)
    app.conf.update(conf)
    if "PIPE_NO_INSTALL" not in os.environ:
        install(app)
    add_acting_tasks(app)
    add_other_tasks(app)
    return app


# -- bodies ----------------------------------------------------------------------------------------


@contextmanager
def noted_step(task: Any, **fields: Any) -> Iterator[Body | None]:
    """Note a run of a step's body around the block that is the body.

    Nothing is noted if the task does not run as a step.
    """
    header = getattr(task.request, "redbeat_pipeline", None)
    if header is None:
        yield None
        return
    names = {"run": header["run"], "step": header["name"], "stage": header["stage"]}
    with noted(task, name=header["name"], **names, **fields) as body:
        yield body


def step(
    self: Any,
    params: dict[str, Any],
    how: str = "",
    give: Any = None,
    seconds: float = 0,
    progress: Any = None,
) -> Any:
    """Act as a test asks, and return ``give``.

    Parameters:
        how: as for `tests.harness.project.act`; or ``show`` to note the params, ``refuse once`` to
            return a failure the first time, ``fail when away`` to fail when the server is away.
        progress: the arguments of a report of progress, which comes first.
    """
    if progress:
        self.progress(*progress)
    header = self.request.redbeat_pipeline
    marks = HistoryLog.of_environment().marks
    # Count before the note, because a test that has read the note may kill this process.
    times = marks.add(f"ran-{header['run']}-{header['name']}")
    shown = params if how == "show" else None
    with noted_step(self, params=shown) as body:
        assert body is not None
        part = Part(self, body, marks, header["run"], times)
        if isinstance(self, (Runs, Calls, Mixed)):
            mark_call(self, "body")
        if how == "fail when away" and times == 1:
            fail_when_away(self, part)
        if how == "refuse once" and times == 1:
            return False, "as asked"
        act(part, how, seconds)
    return give


def fail_when_away(task: Any, part: Part) -> None:
    """Fail as soon as the server does not answer."""
    with redis.Redis.from_url(task.app.conf.broker_url, retry=None) as client:
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                raise ValueError("as asked") from None
            part.sleep(0.02)


def add(self: Any, params: dict[str, Any], key: str) -> Any:
    """Return a param that depends on all params. The process may be killed before or after that."""
    chance = float(os.environ.get("PIPE_KILL", "0")) / 2
    with noted_step(self):
        if random.random() < chance:
            die()
        added = added_by(key, params)
    if random.random() < chance:
        die()
    return added


def added_by(key: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return what ``proj.add`` returns; a param that is missing or stale shows in it."""
    return {key: zlib.crc32(json.dumps(params, sort_keys=True).encode()), "last": key}


# -- classes that do something around the body -----------------------------------------------------


@contextmanager
def context(task: Any) -> Iterator[None]:
    """Mark the begin and the end of a call of a task."""
    mark_call(task, "enter")
    try:
        yield
    finally:
        mark_call(task, "leave")


def mark_call(task: Any, event: str) -> None:
    """Add a mark to those of a run, for the test that compares calls with bodies."""
    header = getattr(task.request, "redbeat_pipeline", None)
    if header is None:
        return
    HistoryLog.of_environment().marks.add(f"calls-{header['run']}", f"{header['name']} {event}\n")


class Runs(PipelineTask):
    """A class as in Flask's documentation: the body runs in the context of an app."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with context(self):
            return self.run(*args, **kwargs)


class Calls(PipelineTask):
    """The same, but the body is called by the method of the base class."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with context(self):
            return super().__call__(*args, **kwargs)


class Mixin:
    """The same in a class that is not a task."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with context(self):
            # The method of the task class that this one is mixed with.
            return super().__call__(*args, **kwargs)  # type: ignore[misc]


class Mixed(Mixin, PipelineTask):
    abstract = True


# -- tasks -----------------------------------------------------------------------------------------


def add_acting_tasks(app: Celery) -> None:
    """Add the tasks whose bodies act as a test asks."""
    tasks: dict[str, dict[str, Any]] = {
        "step": {},
        "late": LATE,
        "requeue": REQUEUED,
        "auto": _RETRIED,
        "locked": {"once": Once(key="locked", lease=LEASE)},
    }
    for conflict in ("skip", "wait", "raise"):
        policy: Any = {"key": "queued", "scope": "queue", "on_conflict": conflict, "lease": LEASE}
        tasks[f"queued.{conflict}"] = {"once": Once(**policy)}
    for base in (Runs, Calls, Mixed):
        name = base.__name__.lower()
        tasks[name] = {"base": base}
        tasks[f"{name}.auto"] = {"base": base, **_RETRIED}
    for name, options in tasks.items():
        all_options = {"bind": True, "shared": False, "base": PipelineTask, **options}
        app.task(name=f"proj.{name}", **all_options)(step)


def add_other_tasks(app: Celery) -> None:
    """Add the tasks with bodies of their own."""
    options: dict[str, Any] = {"bind": True, "shared": False, "base": PipelineTask}
    app.task(name="proj.add", **REQUEUED, **options)(add)

    @app.task(name="proj.styles", **options)
    def styles(self: Any, obj: dict[str, Any], name: str) -> Any:
        with noted_step(self, obj=obj, given=name):
            return {
                "id": obj["task_id"],
                "name": name,
                "result": True,
                "params": {"styles": obj["params"]},
            }

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

    retried = {"autoretry_for": (ValueError,)}
    app.task(name="proj.alone", shared=False, base=PipelineTask)(multiply)
    app.task(name="proj.alone.runs", shared=False, base=Calls, **retried)(multiply)
    app.task(name="proj.alone.untyped", shared=False, base=PipelineTask, typing=False)(multiply)

    @app.task(name="proj.foreign", shared=False)
    def foreign() -> None:
        """No step."""


# -- processes that misbehave ----------------------------------------------------------------------


def die() -> None:
    """Kill the child that runs a step; one time in four the whole worker."""
    if random.random() < 0.25:
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def kill_publishers(share: float) -> None:
    """Kill this process at this share of the messages that it publishes, before or after it."""
    send = sweeper.publish

    def perhaps_die() -> None:
        if random.random() < share / 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def publish_or_die(*args: Any) -> None:
        perhaps_die()
        send(*args)
        perhaps_die()

    sweeper.publish = publish_or_die


def double(share: float) -> None:
    """Publish this share of the messages twice, and record this share of the completions twice."""
    send = sweeper.publish
    complete = PipelineStore.complete

    def publish_twice(*args: Any) -> None:
        send(*args)
        if random.random() < share:
            send(*args)

    def complete_twice(self: Any, ref: Any, outcome: str, text: str) -> Any:
        done = complete(self, ref, outcome, text)
        if random.random() < share:
            assert complete(self, ref, outcome, text)[0] in ("next", "stale")
        return done

    sweeper.publish = publish_twice
    PipelineStore.complete = complete_twice  # type: ignore[method-assign]


if "PIPE_URL" in os.environ:
    app = make_app(os.environ["PIPE_URL"], **json.loads(os.environ.get("PIPE_CONF", "{}")))
    if "PIPE_DOUBLE" in os.environ:
        double(0.10)
    if "PIPE_KILL_DISPATCH" in os.environ:
        kill_publishers(float(os.environ["PIPE_KILL_DISPATCH"]))
