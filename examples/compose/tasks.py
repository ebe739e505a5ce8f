"""The app: a greeting every ten seconds. What differs from place to place comes from the environment."""

import os

from celery import Celery

import redbeat_lite

app = Celery("tasks", broker=os.environ["BROKER_URL"])
app.conf.redbeat_lite_heartbeat_file = os.environ.get("HEARTBEAT_FILE")
app.conf.redbeat_lite_metrics_port = int(os.environ["METRICS_PORT"]) if "METRICS_PORT" in os.environ else None
app.conf.redbeat_lite_metrics_host = os.environ.get("METRICS_HOST", "127.0.0.1")
app.conf.beat_schedule = {"greet": {"task": "tasks.greet", "schedule": 10, "once": True}}

redbeat_lite.install(app)


@app.task(base=redbeat_lite.Task)
def greet():
    print("hello")
