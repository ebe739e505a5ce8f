"""Only a beat that ``celery worker -B`` has put into a process of its own leaves with its worker."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.nursery import ROOT

#: A beat of some kind whose parent has ended tells whether it would leave.
SCRIPT = """
import os, sys, time
import celery.beat
from billiard import Process
from celery import Celery
from redbeat_lite.beat.stop import worker_is_gone

def look(*args, **kwargs):
    print("here" if not worker_is_gone() else "gone too early", end=", ")
    os.write(told, b".")
    while os.getppid() == first:
        time.sleep(0.01)
    print("gone" if worker_is_gone() else "not gone", flush=True)
    os._exit(0)

first = os.getpid()
heard, told = os.pipe()
celery.beat.platforms.close_open_fds = lambda keep: None
celery.beat.Service.start = look
app = Celery("orphan", broker="memory://")
kind = sys.argv[1]
if kind == "embedded":
    celery.beat.EmbeddedService(app).start()
elif kind == "other child":
    Process(target=look).start()
elif not os.fork():
    if kind == "thread":
        celery.beat.EmbeddedService(app, thread=True).start()
        time.sleep(60)
    look()
os.read(heard, 1)
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["embedded", "thread", "other child", "detached"])
def test_a_beat_leaves_without_its_parent_only_if_that_is_a_worker(kind: str) -> None:
    command = [sys.executable, "-c", SCRIPT, kind]
    # This ends with whoever holds the output, and not with the parent.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=40, check=True)
    assert done.stdout == ("here, gone\n" if kind == "embedded" else "here, not gone\n"), done.stderr
