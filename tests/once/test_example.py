"""The example of the once-locks, run as its README says."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.support.processes import ROOT, Process, run_python
from tests.support.server import Server

HERE = ROOT / "examples" / "once"


@pytest.fixture
def env(once_server: Server) -> dict[str, str]:
    with once_server.client(decode_responses=True) as client:
        client.flushall()
    return {"BROKER_URL": once_server.url, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def worker(env: dict[str, str]) -> Iterator[Process]:
    command = next(line.split() for line in (HERE / "README.md").read_text().splitlines() if line.startswith("celery "))
    process = Process([sys.executable, "-m", *command], env, cwd=HERE)
    yield process
    process.terminate()
    process.wait()
    process.destroy()


def test_bookings_come_one_by_one_and_one_of_two_index_runs_is_skipped(worker: Process, env: dict[str, str]) -> None:
    worker.says(" ready.")
    done = run_python("proj.py", cwd=HERE, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    *bookings, one, other = done.stdout.splitlines()
    amounts, fences = zip(*(re.findall(r"\d+", line) for line in bookings), strict=True)
    assert amounts == ("1", "2", "3")
    # Each takes a second, and none begins before the one before it has ended.
    begun = sorted(int(fence) for fence in fences)
    assert all(later - earlier > 900_000 for earlier, later in pairwise(begun))
    # Two children may take up both at once, and either may be first.
    ran, skipped = sorted((one, other))
    assert ran == "indexed"
    assert skipped.startswith("skipped: proj.reindex[")
    assert not worker.lines("ERROR|WARNING.*(lock|Lost)")
