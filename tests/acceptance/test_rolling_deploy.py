"""A deploy in steps: processes of a version that stores schedules in another format beside those of this one.

The older version does not note what it runs. So there is no history for the audit, and the test asks the schedule.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat_lite import Schedules, UnsupportedFormat
from tests.acceptance.newer import Interval
from tests.harness.workers import Worker
from tests.support.processes import ROOT, Process, run_celery, run_python
from tests.support.server import Server
from tests.support.waiting import eventually

CONF = json.dumps({"redbeat_lite_lease": 1})

#: The last commit that stores schedules in format 1.
BEFORE = "46adb000"

#: A script that adds entries by the older version. A fresh interpreter takes long, so it does all of them.
ADDS = """
from redbeat_lite import Schedules, cron, every
from tests.acceptance.proj import app

schedules = Schedules(app)
schedules.add("job", "proj.add", every(0.5))
schedules.add("paused", "proj.add", cron("0 3 * * *"))
schedules.pause("paused", note="for the new disk")
"""


def of_schedule() -> list[str]:
    """The keys that the page about upgrades has people remove."""
    [command] = re.findall(r"redis-cli DEL (.*?)```", (ROOT / "docs/do/upgrading.md").read_text(), re.DOTALL)
    groups = re.findall(r"'({redbeat-lite}:\S*)'{(\S+)}", command)
    return [f"{prefix}{name}" for prefix, names in groups for name in names.split(",")]


@pytest.fixture
def older(tmp_path: Path) -> dict[str, str]:
    """The environment in which a process runs the older version of the package."""
    command = ["git", "-C", str(ROOT), "archive", BEFORE, "redbeat_lite"]
    archive = subprocess.run(command, capture_output=True)
    if archive.returncode:
        pytest.skip("the older version is missing, because this is no clone with a history")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        tar.extractall(tmp_path)
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONSAFEPATH": "1", "PROJ_CONF": CONF}


@pytest.fixture
def worker(server: Server, owned: ExitStack) -> Callable[..., Process]:
    """Starts workers with ``install()``."""

    def start(name: str, **env: Any) -> Process:
        env = {"PROJ_URL": server.url, "PROJ_CONF": CONF, **env}
        return owned.enter_context(Worker("tests.acceptance.onceproj", pool="solo", name=name, **env))

    return start


def test_an_entry_of_a_schedule_class_that_only_newer_code_knows_waits_for_a_beat_that_knows_it(
    beat: Callable[..., Process], schedules: Schedules, client: redis.Redis
) -> None:
    old = beat(PROJ_CONF=CONF)
    old.says("beat: leading")
    schedules.add("report", "proj.add", Interval(0.5))
    old.says("entry 'report' cannot run here, trying again later: schedule: expected a registered schedule")
    eventually(lambda: schedules["report"].state.attempts >= 2, what="another try")
    assert schedules.quarantined() == {}
    assert old.output.count("entry 'report' cannot run here") == 1
    old.stop()
    beat(PROJ_CONF=json.dumps({"redbeat_lite_lease": 1, "include": ["tests.acceptance.newer"]}))
    eventually(lambda: schedules["report"].total_run_count >= 2, what="runs")
    assert schedules["report"].last_error is None


def test_versions_with_another_format_refuse_each_others_schedule_until_it_is_carried_over(
    beat: Callable[..., Process],
    worker: Callable[..., Process],
    older: dict[str, str],
    server: Server,
    schedules: Schedules,
    client: redis.Redis,
    tmp_path: Path,
) -> None:
    def redbeat(*words: str, **env: str) -> str:
        done = run_celery("tests.acceptance.proj", "redbeat", *words, env={**env, "PROJ_URL": server.url})
        return f"{done.stdout}{done.stderr}"

    export = str(tmp_path / "export.json")
    leader = beat(**older)
    leader.says("beat: leading")
    added = run_python("-c", ADDS, env={**os.environ, **older, "PROJ_URL": server.url})
    assert added.returncode == 0, added.stderr
    assert "has format 1; this redbeat_lite reads format 3: export the schedule" in redbeat("pause", "job")
    with pytest.raises(UnsupportedFormat, match="has format 1"):
        schedules.freeze(600)
    stand_by = beat(PROJ_CONF=CONF)
    stand_by.says("has format 1; this redbeat_lite reads format 3: export the schedule with the older version")
    assert stand_by.wait() == 1

    # The tasks of either version run in workers of the other.
    new_worker = worker("new")
    new_worker.says("proj.add.* succeeded")
    new_worker.stop()
    leader.stop()
    redbeat("export", export, **older)
    client.delete(*of_schedule())
    redbeat("import", export, "--apply")
    assert schedules["paused"].paused_note == "for the new disk"
    sent = schedules["job"].total_run_count
    assert sent > 0
    beat(PROJ_CONF=CONF).says("beat: leading")
    worker("old", **older).says("proj.add.* succeeded")
    eventually(lambda: schedules["job"].total_run_count > sent, what="another run")

    stand_by = beat(**older)
    stand_by.says("has format 3; this redbeat_lite reads up to 2")
    assert stand_by.wait() == 1
    assert "Traceback" not in stand_by.output
