"""Tests that fail or never end, for ``test_the_run_itself.py``: pytest finds none of them by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import redis

from tests.support.beats import leads
from tests.support.process_table import is_running
from tests.support.processes import ROOT, Process, celery
from tests.support.server import Server
from tests.support.waiting import eventually


def test_fails(beat: Callable[..., Process], client: redis.Redis) -> None:
    process = beat()
    leads(process, client)
    process.says("beat: leading")
    raise AssertionError("on purpose")


def test_leaves_a_file() -> None:
    (ROOT / os.environ["LITTER"]).touch()


def test_never_ends(beat: Callable[..., Process], server: Server) -> None:
    beat().says("beat: leading")
    words = ["worker", "-B", "-P", "prefork", "-c", "2", "-l", "INFO", "--schedule-filename"]
    kept = str(Path(os.environ["TMPDIR"]) / "celerybeat-schedule")
    worker = celery("tests.acceptance.proj", *words, kept, PROJ_URL=server.url)
    worker.says(r" ready\.")
    # One whose end nobody has heard of yet.
    ended = celery("tests.acceptance.proj", "--version", PROJ_URL=server.url)
    eventually(lambda: not is_running(ended.pid), what="its end")
    Path(os.environ["TOLD"]).write_text(os.environ["TMPDIR"])
    time.sleep(600)
