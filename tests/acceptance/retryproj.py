"""An app whose tasks retry, wait or refuse; ``PROJ_INSTALL`` has its workers record what becomes of runs."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import celery
import redis
from celery import Celery
from celery.exceptions import Ignore, Reject

from redbeat_lite import Once, Task, install

app = Celery("retries", broker=os.environ["PROJ_URL"])
app.conf.update(
    redbeat_lite_lease=1,
    redbeat_lite_once_lease=2,
    redbeat_lite_clock_slack=0,
    worker_prefetch_multiplier=1,
    # Celery adds celery.backend_cleanup for backends of this kind, once a day.
    result_backend="cache+memory://",
    result_expires=None,
)
if os.environ.get("PROJ_INSTALL"):
    install(app)
client = redis.Redis.from_url(os.environ["PROJ_URL"])


def _fail_once(task: Any, **options: Any) -> None:
    if task.request.retries == 0:
        raise task.retry(exc=ValueError("as asked"), countdown=2, **options)


@app.task(name="retries.foreign", bind=True, shared=False)
def foreign(self: celery.Task) -> None:
    _fail_once(self)


@app.task(name="retries.ours", bind=True, base=Task, shared=False)
def ours(self: celery.Task) -> None:
    _fail_once(self)


@app.task(name="retries.own_expires", bind=True, shared=False)
def own_expires(self: celery.Task) -> None:
    """Its retry expires before it is due."""
    _fail_once(self, expires=1)


def _die_once(task: Any) -> None:
    if task.request.retries == 0:
        os.kill(os.getpid(), signal.SIGKILL)


RETRIED: dict[str, Any] = {"bind": True, "shared": False, "retry_on_worker_lost": True, "default_retry_delay": 2}


@app.task(name="retries.dies", **RETRIED)
def dies(self: celery.Task) -> None:
    _die_once(self)


@app.task(name="retries.dies_ours", base=Task, **RETRIED)
def dies_ours(self: celery.Task) -> None:
    _die_once(self)


@app.task(name="retries.unbound", shared=False)
def unbound() -> None:
    pass


@app.task(name="retries.held", shared=False)
def held() -> None:
    while not client.exists("go"):
        time.sleep(0.05)


@app.task(name="retries.held_again", bind=True, shared=False)
def held_again(self: celery.Task) -> None:
    """Fails once; its retry is held."""
    _fail_once(self)
    held()


@app.task(name="retries.rejects", shared=False)
def rejects() -> None:
    raise Reject("as asked", requeue=False)


@app.task(name="retries.ignores", shared=False)
def ignores() -> None:
    raise Ignore("as asked")


@app.task(name="retries.locked", base=Task, shared=False, once=Once(key="k", on_conflict="raise"))
def locked() -> None:
    pass


@app.task(name="retries.far", bind=True, shared=False)
def far(self: celery.Task) -> None:
    """Fails; its retry is due in an hour."""
    raise self.retry(exc=ValueError("as asked"), countdown=3600)
