"""App of the demonstration. ``REDBEAT_DEMO_URL`` names the server."""

from __future__ import annotations

import os

from celery import Celery

import redbeat_lite

if "REDBEAT_DEMO_URL" not in os.environ:
    expected = "expected the address of the server, as the demonstration prints it"
    raise SystemExit(f"REDBEAT_DEMO_URL: {expected}")

# Named after its module, because the command lines on the page have this name after -A.
app = Celery(__name__, broker=os.environ["REDBEAT_DEMO_URL"])
app.conf.beat_schedule = {
    "heartbeat": {
        "task": "demo.say",
        "schedule": redbeat_lite.every(2),
        "args": ("still here",),
    },
    "on the clock": {
        "task": "demo.say",
        "schedule": redbeat_lite.every(5, align=True),
        "args": ("five seconds more",),
    },
}
app.conf.worker_redirect_stdouts = False
redbeat_lite.install(app)


@app.task(name="demo.say")  # type: ignore[untyped-decorator]  # Celery ships no types
def say(words: str) -> None:
    """Print some words, with the name of the entry that sent them."""
    name = app.current_task.request.headers["periodic_task_name"]
    print(f"received {name!r}: {words}", flush=True)
