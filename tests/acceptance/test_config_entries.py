"""The configuration owns the definition of its entries, Redis owns their state."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from redbeat_lite import Schedules, every
from tests.harness.queues import check_queue
from tests.support.beats import EACH, FAST, KEYS, STEP, conf, leads
from tests.support.messages import of_entry
from tests.support.processes import ROOT, Process, run_celery
from tests.support.server import Server
from tests.support.waiting import eventually

Beat = Callable[..., Process]

HOURLY = {"task": "proj.add", "schedule": 3600}


@pytest.fixture
def run(beat: Beat, client: redis.Redis) -> Callable[..., Process]:
    """Starts a beat that leads, with this ``beat_schedule``."""

    def start(schedule: dict[str, Any], name: str = "proj") -> Process:
        process = beat(PROJ_CONF=conf(schedule=schedule), PROJ_NAME=name)
        leads(process, client)
        process.says("beat: leading")
        return process

    return start


def stop(process: Process) -> None:
    process.stop()


def test_what_the_beat_refuses_is_seen_from_every_process_until_it_is_mended(
    run: Callable[..., Process], server: Server
) -> None:
    schedule = {"fast": FAST, "typo": {**HOURLY, "expire": 10}, "once": {**HOURLY, "one_off": True, "max_runs": 2}}
    first = run(schedule)
    elsewhere = {**os.environ, "PROJ_URL": server.url, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    here = {**elsewhere, "PROJ_CONF": conf(schedule=schedule)}

    def redbeat(*words: str, env: dict[str, str] = elsewhere) -> str:
        done = run_celery("tests.acceptance.proj", "redbeat", *words, env=env)
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    status = re.split("^refused +", redbeat("status"), flags=re.MULTILINE)[1]
    assert re.match(r"2\n +'typo': expire: expected a known field, got 10", status), status
    assert "'once': one_off: expected a known field" in status
    assert json.loads(redbeat("status", "--json"))["refused"]["errors"].keys() == {"typo", "once"}
    assert "the beat refuses the one in beat_schedule: expire: expected" in redbeat("show", "typo")
    assert "ERROR refused: 2 config entries of 'proj' refused: 'typo', 'once'" in redbeat("doctor", env=here)
    assert f"leader (pid {first.pid} on " in redbeat("health"), "whatever it refuses, the beat is well"
    stop(first)
    run({"fast": FAST, "typo": {**HOURLY, "expires": 10}})
    assert re.search("^refused +0$", redbeat("status"), flags=re.MULTILINE)
    assert "expires   10" in redbeat("show", "typo")


def test_entries_that_left_the_configuration_are_removed_and_those_of_others_stay(
    run: Callable[..., Process], client: redis.Redis, schedules: Schedules
) -> None:
    schedules.add("runtime", "proj.add", every(3600))
    stop(run({"theirs": HOURLY, "shared": HOURLY}, name="billing"))
    stop(run({"ours": HOURLY, "leaves": FAST}))
    assert set(schedules) == {"runtime", "theirs", "shared", "ours", "leaves"}
    process = run({"ours": HOURLY, "shared": HOURLY})
    assert set(schedules) == {"runtime", "theirs", "shared", "ours"}
    process.says("WARNING.*1 entry taken over from the configuration of 'billing', which has no beat: 'shared'")
    assert not process.lines("CRITICAL|Traceback")


def test_restarting_again_and_again_postpones_nothing(
    run: Callable[..., Process], client: redis.Redis, schedules: Schedules
) -> None:
    # Each life of the process is shorter than the interval, so that it would never come if it were counted anew.
    schedule = {"each": EACH, "hourly": HOURLY, "slow": {**EACH, "schedule": 2.5}}
    process = run(schedule)
    planned = schedules["hourly"].next_run_at
    generation = schedules["hourly"].generation
    first = schedules["slow"].next_run_at
    assert first is not None
    for _ in range(4):
        stop(process)
        process = run(schedule)
    assert schedules["hourly"].next_run_at == planned
    assert schedules["hourly"].generation == generation
    [message] = eventually(lambda: of_entry(client, "slow")[:1], what="an entry that is slower than the restarts")
    assert message.scheduled_at == first
    check_queue(client, ["each"], STEP)
    assert int(client.hget(KEYS.meta, "term") or 0) == 5
