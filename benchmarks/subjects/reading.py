"""redbeat_lite with many entries stored: what a person asks of them, in this process and as commands."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.beats import ROOT
from benchmarks.stats import seconds
from benchmarks.subjects.common import Figures, Task, make_app
from redbeat_lite import Schedules

_ONE_LINE = """[entries.refresh-customer-0000007]
task = "proj.refresh"
schedule = {every = "1h"}
args = [7]
kwargs = {region = "eu"}
"""


def measure(task: Task) -> Figures:
    """Milliseconds of calls, and seconds of commands from the start of their process."""
    schedules = Schedules(make_app(task.url))
    calls: dict[str, Callable[[], Any]] = {
        "upcoming": lambda: schedules.upcoming(datetime.now(UTC) + timedelta(days=1), limit=3),
    }
    figures: Figures = {}
    for name, call in calls.items():
        call()
        figures[name] = 1000 * median(seconds(call) for _ in range(task.ticks))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "one.toml"
        path.write_text(_ONE_LINE)
        figures["next"] = seconds(lambda: _command(task.url, "next", "--limit", "10"))
        figures["plan"] = seconds(lambda: _command(task.url, "plan", str(path)))
    return figures


def export(url: str) -> Figures:
    """Seconds and megabytes of an export of everything."""
    with tempfile.TemporaryDirectory() as directory:
        program = f"import benchmarks.subjects.reading as r; r.export_here({url!r}, {directory + '/all.json'!r})"
        started = time.perf_counter()
        peak = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
        return {"export": time.perf_counter() - started, "export.mb": int(peak.stdout) / 1024}


def export_here(url: str, path: str) -> None:
    """Export everything, and print the kilobytes that the process for that took at most."""
    _command(url, "export", path)
    sys.stdout.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))


def _command(url: str, *words: str) -> None:
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.proj", "redbeat", *words]
    subprocess.run(command, env={**os.environ, "BENCH_URL": url}, cwd=ROOT, check=True, capture_output=True)
