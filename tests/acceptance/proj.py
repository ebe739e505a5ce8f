"""The app that the acceptance tests run; configured through ``PROJ_*`` variables of the environment.

``PROJ_CONF`` holds settings as JSON; in it an entry of ``beat_schedule`` gives its schedule as seconds. While the file
that ``PROJ_STUCK`` names is there, publishing ``proj.sticky`` hangs. ``PROJ_CRASHES`` turns of the beat raise.
``PROJ_HUNG_HOOKS`` is how many hooks there are that never return. ``PROJ_STOPS_IN_PUBLISH`` is the number of a signal
that the process gets in the middle of its first publish, ``PROJ_STOPS_IN_FINALIZER`` that of one which it gets in a
finalizer while its scheduler is made. ``PROJ_PATIENCE`` is how many seconds a stop may take.
``PROJ_QUIET`` leaves out a line for each message, and prints where the package comes from. The wall clock runs ahead by
as many seconds as the file says that ``PROJ_CLOCK`` names.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task, signals

import redbeat_lite
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


if os.environ.get("PROJ_PATIENCE"):
    from redbeat_lite.beat import stop  # Not at the top: the release before has no such module.

    stop._PATIENCE = float(os.environ["PROJ_PATIENCE"])


if os.environ.get("PROJ_CRASHES"):

    @signals.beat_init.connect(weak=False)
    def sabotage(sender: Any, **kwargs: Any) -> None:
        dispatcher = sender.scheduler._parts.dispatcher
        run = dispatcher.run
        left = iter(range(int(os.environ["PROJ_CRASHES"])))

        def raises() -> Any:
            if next(left, None) is None:
                return run()
            raise RuntimeError("a defect nobody foresaw")

        dispatcher.run = raises


if os.environ.get("PROJ_STOPS_IN_PUBLISH"):

    @signals.before_task_publish.connect(weak=False)
    def stops(**kwargs: Any) -> None:
        if number := os.environ.pop("PROJ_STOPS_IN_PUBLISH", None):
            signal.raise_signal(int(number))


if os.environ.get("PROJ_STOPS_IN_FINALIZER"):

    class Finalized:
        def __del__(self) -> None:
            if number := os.environ.pop("PROJ_STOPS_IN_FINALIZER", None):
                signal.raise_signal(int(number))

    connect = app.connection_for_write

    def connect_and_finalize(*args: Any, **kwargs: Any) -> Any:
        # Celery takes the signals after it has printed its banner, for which it makes another scheduler.
        if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            Finalized()
        return connect(*args, **kwargs)

    app.connection_for_write = connect_and_finalize


if os.environ.get("PROJ_QUIET"):
    print(f"redbeat_lite of {Path(redbeat_lite.__file__).parents[1]}", flush=True)

    @signals.after_setup_logger.connect(weak=False)
    def quiet(**kwargs: Any) -> None:
        logging.getLogger("celery.beat").setLevel(logging.WARNING)


if os.environ.get("PROJ_CLOCK"):
    clock_file = Path(os.environ["PROJ_CLOCK"])
    true_time = time.time

    def shifted_time() -> float:
        text = clock_file.read_text() if clock_file.exists() else ""
        return true_time() + float(text or 0)

    time.time = shifted_time
