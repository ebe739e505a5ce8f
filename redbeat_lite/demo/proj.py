"""The app of the demonstration; ``REDBEAT_DEMO_URL`` says where the server is."""

from __future__ import annotations

import os

from celery import Celery

import redbeat_lite

if "REDBEAT_DEMO_URL" not in os.environ:
    raise SystemExit("REDBEAT_DEMO_URL: expected the address of the server, as the demonstration prints it")

# By its module, as -A has it in the command lines that the page shows.
app = Celery(__name__, broker=os.environ["REDBEAT_DEMO_URL"])
app.conf.beat_schedule = {
    "heartbeat": {"task": "demo.say", "schedule": redbeat_lite.every(2), "args": ("still here",)},
    "on the clock": {"task": "demo.say", "schedule": redbeat_lite.every(5, align=True), "args": ("five seconds more",)},
}
app.conf.worker_redirect_stdouts = False
redbeat_lite.install(app)


@app.task(name="demo.say")  # type: ignore[untyped-decorator]  # Celery ships no types
def say(words: str) -> None:
    """Print some words, with the name of the entry that sent them."""
    print(f"received {app.current_task.request.headers['periodic_task_name']!r}: {words}", flush=True)
