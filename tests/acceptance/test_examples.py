"""The quickstart example, tried as its README says."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.processes import ROOT, Process, run_python
from tests.support.server import Server

HERE = ROOT / "examples" / "quickstart"


@pytest.fixture
def env(server: Server) -> dict[str, str]:
    return {"BROKER_URL": server.url, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def start(env: dict[str, str]) -> Iterator[Callable[..., Process]]:
    """Starts ``celery -A app …`` in the directory of the example."""
    processes: list[Process] = []

    def start(*words: str) -> Process:
        processes.append(Process([sys.executable, "-m", "celery", "-A", "app", *words], env, cwd=HERE))
        return processes[-1]

    yield start
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()
        process.destroy()


def test_the_quickstart_example_works(start: Callable[..., Process], env: dict[str, str]) -> None:
    def schedule(*words: str, code: int = 0) -> str:
        done = run_python("schedule.py", *words, cwd=HERE, env={**os.environ, **env})
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    worker = start("worker", "-P", "solo")
    start("beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO").says("beat: leading")
    worker.says("still here")
    schedule("add", "tea", "0.5", "time for tea")
    worker.says("time for tea")
    assert "already stored" in schedule("add", "tea", "1", "more tea", code=1)
    schedule("pause", "tea")
    assert "paused " in schedule("list")
    schedule("resume", "tea")
    assert "paused " not in schedule("list")
    schedule("remove", "tea")
    assert "no entry 'tea'" in schedule("remove", "tea", code=1)
    assert {"heartbeat", "nightly"} <= set(schedule("list").split())
