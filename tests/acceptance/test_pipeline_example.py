"""The example of a pipeline, run as its README says."""

from __future__ import annotations

import os
import sys

from tests.support.processes import ROOT, Process, run_python
from tests.support.server import Server

HERE = ROOT / "examples" / "pipeline"


def test_the_example_of_a_pipeline_works(server: Server) -> None:
    env = {"BROKER_URL": server.url, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}
    worker = Process([sys.executable, "-m", "celery", "-A", "proj", "worker", "-l", "INFO", "-c", "2"], env, cwd=HERE)
    try:
        worker.says(r" ready\.")
        done = run_python("proj.py", cwd=HERE, env={**os.environ, **env})
        assert done.returncode == 0, done.stderr
        first, *_, last, report = done.stdout.splitlines()
        assert "0/4 steps" in first or "running: load" in first
        assert "running: clean, index" in done.stdout
        assert "SUCCEEDED" in last
        assert "4/4 steps" in last
        assert report == "2026-11-21: [1, 2, 3]"
    finally:
        worker.terminate()
        worker.wait()
        worker.destroy()
