"""``status`` and ``health`` as one types them, beside live beats."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import redis

from tests.support.beats import FAST, conf, settled
from tests.support.processes import ROOT, Process
from tests.support.server import Server, free_port
from tests.support.waiting import eventually

Beat = Callable[..., Process]


def redbeat(url: str, *words: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run ``celery -A … redbeat words…`` to its end."""
    env = {**os.environ, "PROJ_URL": url, "PROJ_CONF": conf(**settings), "PYTHONPATH": str(ROOT), "COLUMNS": "80"}  # type: ignore[arg-type]
    command = [sys.executable, "-m", "celery", "-A", "tests.acceptance.proj", "redbeat", *words]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)


def test_status_and_health_tell_of_live_beats(beat: Beat, client: redis.Redis, server: Server, tmp_path: Path) -> None:
    file = str(tmp_path / "beat")
    first = beat(PROJ_CONF=conf(schedule={"fast": FAST}, lease=1, heartbeat_file=file))
    leader, others = settled([first, beat(PROJ_CONF=conf(lease=1)), beat(PROJ_CONF=conf(lease=1))], client)
    eventually(lambda: client.hget("{redbeat-lite}:leader", "report"), what="a report")
    host = os.uname().nodename

    shown = redbeat(server.url, "status", lease=1)
    assert shown.returncode == 0, shown.stderr
    lines = dict(line.split("  ", 1) for line in shown.stdout.splitlines() if not line.startswith(" "))
    assert lines["leader"].strip() == f"pid {leader.pid} on {host}"
    assert all(f"pid {each.pid} on {host}" in shown.stdout for each in others)
    assert "term 1" in lines["since"]
    assert lines["lag"].strip().endswith(" s")
    assert {"sent", "failed", "left out", "dispatch", "last tick", "overdue", "entries", "quarantined"} < lines.keys()
    assert max(map(len, shown.stdout.splitlines())) <= 80

    data = json.loads(redbeat(server.url, "status", "--json", lease=1).stdout)
    assert data["leader"]["pid"] == leader.pid
    assert {each["pid"] for each in data["stand_bys"]} == {each.pid for each in others}
    assert datetime.fromisoformat(data["last_tick"]).tzinfo
    assert data["overdue"] == data["quarantined"] == 0

    well = redbeat(server.url, "health", "--pid", str(others[0].pid), lease=1)
    assert (well.returncode, well.stdout.split(" (")[0]) == (0, "stand-by"), well.stderr
    asked = json.loads(redbeat(server.url, "health", "--cluster", "--json", lease=1).stdout)
    assert asked["healthy"] is True
    by_file = redbeat("redis://127.0.0.1:1/0", "health", lease=1, heartbeat_file=file)
    assert (by_file.returncode, f"(pid {first.pid})" in by_file.stdout) == (0, True)

    leader.signal(signal.SIGSTOP)
    frozen = time.monotonic()
    eventually(lambda: redbeat(server.url, "health", "--pid", str(leader.pid), "--limit", "2", lease=1).returncode == 1)
    assert time.monotonic() - frozen < 2 * 2
    leader.signal(signal.SIGCONT)


def test_without_a_server_they_say_so_in_one_line() -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    for words in (["status"], ["health"], ["health", "--cluster", "--timeout", "1"]):
        failed = redbeat(nowhere, *words)
        assert failed.returncode == 2, failed.stderr
        assert len(failed.stderr.splitlines()) == 1
        assert failed.stderr.startswith(f"Error: cannot use {nowhere}: ")
        assert not failed.stdout


def test_what_makes_no_sense_is_refused(server: Server) -> None:
    for words, expected in (
        (["health", "--limit", "1"], "limit: expected at least 2 seconds, as often as a beat reports; got 1"),
        (["health", "--cluster", "--pid", "7"], "--cluster asks for any beat, and --pid for one; give one of them"),
    ):
        failed = redbeat(server.url, *words)
        assert (failed.returncode, failed.stderr) == (1, f"Error: {expected}\n")


def test_the_probe_of_a_file_loads_neither_celery_nor_redis(tmp_path: Path) -> None:
    file = tmp_path / "beat"
    command = [sys.executable, "-X", "importtime", "-m", "redbeat_lite", "health", str(file)]
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert (failed.returncode, failed.stdout) == (1, f"{file} does not exist: no beat runs, or none has begun\n")
    loaded = {line.rsplit("|", 1)[-1].strip() for line in failed.stderr.splitlines()}
    assert "redbeat_lite.health_file" in loaded
    assert not {"celery", "kombu", "redis"} & loaded
