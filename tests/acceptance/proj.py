"""The app that the acceptance tests run; configured through ``PROJ_*`` variables of the environment.

``PROJ_CONF`` holds settings as JSON; in it an entry of ``beat_schedule`` gives its schedule as seconds. While the file
that ``PROJ_STUCK`` names is there, publishing ``proj.sticky`` hangs. ``PROJ_CRASH`` makes the beat's loop raise.
``PROJ_HUNG_HOOKS`` is how many hooks there are that never return. ``PROJ_TOLD_IN_FINALIZER`` has the process told to
stop while it runs a ``__del__`` in the middle of a publish.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task, signals

from redbeat_lite.events import Hooks, LeaderGained, subscribe

app = Celery(os.environ.get("PROJ_NAME", "proj"), broker=os.environ["PROJ_URL"])
# No result expires, so Celery adds no entry of its own, which would fire among a test's at four o'clock.
app.conf.update(beat_max_loop_interval=300, result_expires=None)
app.conf.update(json.loads(os.environ.get("PROJ_CONF", "{}")))


@app.task(shared=False, name="proj.add")
def add(x: int = 0, y: int = 0) -> int:
    return x + y


@app.task(bind=True, shared=False, name="proj.traced")
def traced(self: Task) -> str | None:
    """What a tracing library of the worker's reads from the request."""
    return getattr(self.request, "traceparent", None)


class Sticky(Task):
    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        stuck = os.environ.get("PROJ_STUCK")
        while stuck and Path(stuck).exists():
            time.sleep(0.02)
        return super().apply_async(*args, **kwargs)


@app.task(shared=False, name="proj.sticky", base=Sticky)
def sticky() -> None:
    pass


for _ in range(int(os.environ.get("PROJ_HUNG_HOOKS", 0))):

    class Hung(Hooks):
        def leader_gained(self, event: LeaderGained) -> None:
            while True:
                time.sleep(60)

    subscribe(app, Hung())


if os.environ.get("PROJ_CRASH"):

    @signals.beat_init.connect(weak=False)
    def sabotage(sender: Any, **kwargs: Any) -> None:
        def raises(*args: Any) -> None:
            raise RuntimeError("a defect nobody foresaw")

        sender.scheduler._dispatcher.run = raises


if os.environ.get("PROJ_TOLD_IN_FINALIZER"):

    class Told:
        def __del__(self) -> None:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0)  # the handler has run by now
            except SystemExit:
                print("told in a finalizer")
                raise

    @signals.before_task_publish.connect(weak=False)
    def litter(**kwargs: Any) -> None:
        Told()
