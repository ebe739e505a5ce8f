"""``status`` and ``health`` as one types them, beside live beats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from redbeat_lite import Schedules, every
from redbeat_lite.__main__ import main
from redbeat_lite.beat.heartbeat import HeartbeatFile
from redbeat_lite.once.lock_store import OnceKeys
from redbeat_lite.once.worker_reports import WorkerReport
from redbeat_lite.store.redis_values import server_ms
from tests.support.beats import KEYS, conf, leads
from tests.support.cases import together
from tests.support.processes import ROOT, Process, celery_beat, run_celery
from tests.support.server import Server, free_port
from tests.support.waiting import eventually

#: Nothing in it can be late, nor the server too slow for it, however busy the machine is.
OF_CREW = {"schedule": {"minutely": {"task": "proj.add", "schedule": 60}}, "lease": 8}


def redbeat(url: str, *words: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run ``celery -A … redbeat words…`` to its end."""
    env = {**os.environ, "PROJ_URL": url, "PROJ_CONF": conf(**settings), "PYTHONPATH": str(ROOT), "COLUMNS": "80"}  # type: ignore[arg-type]
    return run_celery("tests.acceptance.proj", "redbeat", *words, env=env)


@dataclass(frozen=True)
class Crew:
    """A leader, a stand-by, and where they run."""

    url: str
    leader: Process
    standby: Process
    file: str  #: the heartbeat file of the leader


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Two beats on a server about which there is nothing to say, for all tests that only look."""
    file = str(tmp_path_factory.mktemp("crew") / "beat")
    with Server(appendonly="yes") as server, server.client() as client:
        environment = {"PROJ_URL": server.url}
        leader = celery_beat("tests.acceptance.proj", PROJ_CONF=conf(heartbeat_file=file, **OF_CREW), **environment)
        standby = None
        try:
            leads(leader, client)
            standby = celery_beat("tests.acceptance.proj", PROJ_CONF=conf(**OF_CREW), **environment)
            standby.says("beat: standing by")
            eventually(lambda: client.hget(KEYS.leader, "report"), what="a report")
            yield Crew(server.url, leader, standby, file)
        finally:
            for process in filter(None, (leader, standby)):
                process.destroy()


def test_status_tells_of_live_beats(crew: Crew) -> None:
    host = os.uname().nodename
    shown = redbeat(crew.url, "status")
    assert shown.returncode == 0, shown.stderr
    lines = dict(line.split("  ", 1) for line in shown.stdout.splitlines() if not line.startswith(" "))
    assert lines["leader"].strip() == f"pid {crew.leader.pid} on {host}"
    assert f"pid {crew.standby.pid} on {host}" in shown.stdout
    assert "term 1" in lines["since"]
    assert lines["lag"].strip().endswith(" s")
    assert {
        "runs sent",
        "runs left out",
        "failed publishes",
        "dispatch",
        "last tick",
        "overdue",
        "entries",
        "quarantined",
    } < lines.keys()
    assert max(map(len, shown.stdout.splitlines())) <= 80

    data = json.loads(redbeat(crew.url, "status", "--json").stdout)
    assert data["leader"]["pid"] == crew.leader.pid
    assert [each["pid"] for each in data["standbys"]] == [crew.standby.pid]
    assert datetime.fromisoformat(data["last_tick"]).tzinfo
    assert data["overdue"] == data["quarantined"] == 0
    assert data["clocks"] == {}


def test_status_names_workers_whose_clocks_are_wrong(crew: Crew) -> None:
    with redis.Redis.from_url(crew.url) as client:
        now = server_ms(client) / 1000
        reports = {"right@a": (0.3, now), "wrong@b": (-12.3, now), "gone@c": (9.0, now - 120)}
        for name, (ahead, at) in reports.items():
            said = msgspec.json.encode(WorkerReport(["celery"], at, ahead))
            client.hset(OnceKeys("redbeat-lite").workers, name, said)
        client.hset(OnceKeys("redbeat-lite").workers, "somebody's", "text")
    try:
        data = json.loads(redbeat(crew.url, "status", "--json").stdout)
    finally:
        with redis.Redis.from_url(crew.url) as client:
            client.delete(OnceKeys("redbeat-lite").workers)
    assert data["clocks"] == {"right@a": 0.3, "wrong@b": -12.3}


def test_health_tells_of_live_beats(crew: Crew) -> None:
    well = redbeat(crew.url, "health", "--pid", str(crew.standby.pid))
    assert (well.returncode, well.stdout.split(" (")[0]) == (0, "stand-by"), well.stderr
    nobody = redbeat(crew.url, "health", "--pid", "1")
    assert (nobody.returncode, nobody.stderr) == (1, "")
    assert " with pid 1 is known (" in nobody.stdout
    asked = json.loads(redbeat(crew.url, "health", "--cluster", "--json").stdout)
    assert asked["healthy"] is True
    by_file = redbeat("redis://127.0.0.1:1/0", "health", heartbeat_file=crew.file)
    assert (by_file.returncode, f"(pid {crew.leader.pid})" in by_file.stdout) == (0, True)


def test_the_doctor_has_nothing_to_say_of_beats_that_are_well_and_names_the_entries_that_are_not(crew: Crew) -> None:
    sound = redbeat(crew.url, "doctor", **OF_CREW)
    assert (sound.returncode, sound.stdout) == (0, "0 errors, 0 warnings, 0 notes\n"), sound.stderr
    app = Celery("other", broker=crew.url, set_as_current=False)
    schedules = Schedules(app)
    assert [*schedules] == ["minutely"], "there is something to look at"
    schedules.add("misspelt", "proj.ad", every(60))
    try:
        told = redbeat(crew.url, "doctor", "--json", **OF_CREW)
    finally:
        schedules.remove("misspelt")
        app.close()
    [finding] = json.loads(told.stdout)
    assert (told.returncode, finding["check"], finding["entries"]) == (3, "task", ["misspelt"]), told.stderr


def test_without_a_server_they_say_so_in_one_line() -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    for words in (["status"], ["health"], ["health", "--cluster"]):
        failed = redbeat(nowhere, *words)
        assert failed.returncode == 2, failed.stderr
        assert len(failed.stderr.splitlines()) == 1
        assert failed.stderr.startswith(f"Error: cannot use {nowhere}: ")
        assert not failed.stdout


def test_what_makes_no_sense_is_refused(server: Server) -> None:
    for words, expected in (
        (
            ["health", "--limit", "nan"],
            "--limit: expected seconds, a timedelta or a text such as \"1h30m\", not negative, got 'nan'",
        ),
        (["health", "--cluster", "--pid", "7"], "give only one of --cluster, --incidents and --pid"),
    ):
        failed = redbeat(server.url, *words)
        assert (failed.returncode, failed.stderr) == (1, f"Error: {expected}\n")


def test_the_probe_of_a_file_loads_neither_celery_nor_redis(tmp_path: Path) -> None:
    file = tmp_path / "beat"
    command = [sys.executable, "-X", "importtime", "-m", "redbeat_lite", "health", str(file)]
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert (failed.returncode, failed.stdout) == (1, f"{file} does not exist: no beat runs, or none has begun\n")
    loaded = {line.rsplit("|", 1)[-1].strip() for line in failed.stderr.splitlines()}
    assert "redbeat_lite.beat.heartbeat" in loaded
    assert not {"celery", "kombu", "redis"} & loaded


@together(
    "words", [["--limit", "nan"], ["--limit", "inf"], ["--limit", "0"], ["--limit", "0.5s"], ["--limit"], ["--nothing"]]
)
def test_the_probe_of_a_file_refuses_wrong_words_with_a_code_that_docker_knows(
    tmp_path: Path, words: list[str]
) -> None:
    file = tmp_path / "beat"
    HeartbeatFile(str(file)).write("leader", None, "")
    for limit in ([], ["--limit", "30"], ["--limit", "1m30s"]):
        assert CliRunner().invoke(main, ["health", str(file), *limit]).exit_code == 0
    refused = CliRunner().invoke(main, ["health", str(file), *words])
    assert refused.exit_code == 1
    assert "Error: " in refused.output
    assert words[0] in refused.output
