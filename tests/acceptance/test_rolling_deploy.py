"""A deploy in steps: processes of the release before beside those of this one, and a step back.

Workers of both releases take the messages, and the release before does not note what it runs. So there
is no history for the audit, and the test asks the schedule.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat_lite import Schedules, UnsupportedFormat, every
from tests.acceptance.newer import Interval
from tests.harness.workers import Worker
from tests.support.beats import KEYS
from tests.support.processes import ROOT, Process, run_celery
from tests.support.server import Server
from tests.support.waiting import eventually

CONF = json.dumps({"redbeat_lite_lease": 1})

#: The last commit that knows no record of runs and none of changes.
BEFORE = "8520b7a"


@pytest.fixture
def older(tmp_path: Path) -> dict[str, str]:
    """What makes a process run the package of the release before."""
    command = ["git", "-C", str(ROOT), "archive", BEFORE, "redbeat_lite"]
    archive = subprocess.run(command, capture_output=True)
    if archive.returncode:
        pytest.skip("the release before is not to be had: this is no clone with a history")
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
    eventually(lambda: schedules["report"].known_state.attempts >= 2, what="another try")
    assert schedules.quarantined() == {}
    assert old.output.count("entry 'report' cannot run here") == 1
    old.stop()
    beat(PROJ_CONF=json.dumps({"redbeat_lite_lease": 1, "include": ["tests.acceptance.newer"]}))
    eventually(lambda: schedules["report"].total_run_count >= 2, what="runs")
    assert schedules["report"].last_error is None


@pytest.mark.soak
def test_the_release_before_and_this_one_beside_each_other(
    beat: Callable[..., Process],
    worker: Callable[..., Process],
    older: dict[str, str],
    server: Server,
    schedules: Schedules,
    client: redis.Redis,
) -> None:
    def former(*words: str) -> str:
        """What the command line of the release before says."""
        done = run_celery("tests.acceptance.proj", "redbeat", *words, env={**older, "PROJ_URL": server.url})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def goes_on(*names: str) -> None:
        before = {name: schedules[name].total_run_count for name in names}
        eventually(lambda: all(schedules[name].total_run_count >= before[name] + 2 for name in names))

    takers = [worker("old", **older)]
    beats = [beat(**older)]
    beats[0].says("beat: leading")
    former("add", "old", "proj.add", "--every", "0.5")
    schedules.add("new", "proj.add", every(0.5), history=5)  # what the release before does not know
    goes_on("old", "new")
    takers[0].says("proj.add.* succeeded")

    # What it does not know, it must not be trusted with; or it waits for one that does.
    with pytest.raises(UnsupportedFormat, match="would send what is frozen"):
        schedules.freezes.add("new", seconds=600)
    assert [*schedules.freezes] == []
    now = datetime.now(UTC)
    past = now - timedelta(seconds=9), now - timedelta(seconds=1)
    backfill = schedules.backfills.start("old", *past, max_active=None, rate=100)
    goes_on("old", "new")
    assert schedules.backfills[backfill.id].sent == 0

    takers.append(worker("new"))
    takers[0].terminate()
    # The beat of the release before says what its messages are for, and that is enough.
    eventually(lambda: schedules["old"].last_success_at and schedules["new"].last_success_at)

    beats.append(beat(PROJ_CONF=CONF))
    beats[1].says("standing by")
    beats[0].terminate()
    beats[1].says("beat: leading")
    goes_on("old", "new")
    eventually(lambda: schedules.backfills[backfill.id].ended == "done")
    assert len(schedules["new"].known_state.sent) <= 5
    eventually(lambda: len(schedules["new"].known_state.sent) == 5)
    assert [change.action for change in schedules.changes("new")] == ["added"]

    former("pause", "new", "--note", "by the release before")
    assert schedules["new"].paused_note == "by the release before"
    former("resume", "new")
    assert "new" in former("list")
    goes_on("new")

    beats.append(beat(**older))
    beats[2].says("standing by")
    beats[1].terminate()
    beats[2].says("beat: leading")
    goes_on("old", "new")
    eventually(lambda: schedules.runs("new", outcome="succeeded"))
    assert not client.exists(KEYS.quarantine)

    beats.append(beat(PROJ_CONF=CONF))
    beats[3].says("standing by")
    beats[2].terminate()
    beats[3].says("beat: leading")
    freeze = schedules.freezes.add("new", seconds=600)
    sent = schedules["new"].total_run_count
    beats.append(beat(**older))
    beats[4].says("has format 2; this redbeat_lite reads up to 1")
    assert beats[4].wait() == 1
    goes_on("old")
    assert schedules["new"].total_run_count == sent
    schedules.freezes.thaw(freeze.id)
    goes_on("new")
    for process in (*beats[1:], takers[1]):
        assert "Traceback" not in process.output
