"""A Celery app that has its schedule in its configuration.

Only the rules and `install` come from redbeat_lite.
"""

import os

from celery import Celery

from redbeat_lite import cron, every, install

app = Celery("quickstart", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/0"))
install(app)

app.conf.timezone = "Europe/Berlin"
app.conf.beat_schedule = {
    "heartbeat": {"task": "app.say", "schedule": every(2), "args": ("still here",)},
    "on the minute": {"task": "app.say", "schedule": cron("* * * * *"), "args": ("a new minute",)},
    # Sent once for all the days that were missed, and expired if no worker takes it within the hour.
    "nightly": {"task": "app.say", "schedule": cron("0 3 * * *"), "args": ("good night",), "expires": 3600},
}


@app.task
def say(words: str) -> None:
    """Print some words."""
    print(words)
