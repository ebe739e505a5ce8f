"""The app ``proj`` with once-locks installed, and one more task, that takes its time."""

from __future__ import annotations

import time

from redbeat_lite import install
from tests.acceptance.proj import app

install(app)


@app.task(shared=False, name="proj.slow")
def slow(seconds: float) -> None:
    time.sleep(seconds)
