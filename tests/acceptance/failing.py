"""Tests that fail or never end, for ``test_the_run_itself.py``: pytest finds none of them by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import redis

from tests.support.beats import leads
from tests.support.processes import Process, celery
from tests.support.server import Server


def test_fails(beat: Callable[..., Process], client: redis.Redis) -> None:
    process = beat()
    leads(process, client)
    process.says("beat: leading")
    raise AssertionError("on purpose")


def test_never_ends(beat: Callable[..., Process], server: Server) -> None:
    beat().says("beat: leading")
    worker = celery(
        "tests.acceptance.proj", "worker", "-B", "-P", "prefork", "-c", "2", "-l", "INFO", PROJ_URL=server.url
    )
    worker.says(r" ready\.")
    Path(os.environ["TOLD"]).write_text(os.environ["TMPDIR"])
    time.sleep(600)
