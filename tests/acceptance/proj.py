"""The app that the acceptance tests run; configured through ``PROJ_*`` variables of the environment.

``PROJ_CONF`` holds settings as JSON; in it an entry of ``beat_schedule`` gives its schedule as seconds.
"""

from __future__ import annotations

import json
import os

from celery import Celery

app = Celery(os.environ.get("PROJ_NAME", "proj"), broker=os.environ["PROJ_URL"])
app.conf.beat_max_loop_interval = 300
app.conf.update(json.loads(os.environ.get("PROJ_CONF", "{}")))


@app.task(name="proj.add")
def add(x: int = 0, y: int = 0) -> int:
    return x + y
