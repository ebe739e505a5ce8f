"""The configuration owns the definition of its entries, Redis owns their state."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from redbeat_lite import ConfigOwned, Schedules, every
from tests.harness.queues import check_queue
from tests.support.beats import EACH, FAST, INTERVAL, KEYS, STEP, conf, leads
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


def test_a_bad_config_entry_is_refused_alone(
    run: Callable[..., Process], client: redis.Redis, schedules: Schedules
) -> None:
    process = run(
        {
            "fast": FAST,
            "unknown field": {**HOURLY, "expire": 10},
            "bad schedule": {"task": "proj.add", "schedule": "whenever"},
            "no task": {"schedule": 10},
            "no mapping": "proj.add",
        }
    )
    eventually(lambda: of_entry(client, "fast"), what="the sound entry")
    assert "expire: " in process.says("ERROR.*config entry 'unknown field' is refused: ")
    assert "schedule: " in process.says("ERROR.*config entry 'bad schedule' is refused: ")
    assert "task: " in process.says("ERROR.*config entry 'no task' is refused: ")
    process.says("ERROR.*config entry 'no mapping' is refused: ")
    assert len(process.lines("ERROR")) == 4
    assert "Traceback" not in process.output
    assert set(schedules) == {"fast"}


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
    assert re.search("^REFUSED +WHY\ntypo +expire: expected", redbeat("list"), flags=re.MULTILINE)
    assert "the beat refuses the one in beat_schedule: expire: expected" in redbeat("show", "typo")
    assert "ERROR refused: 2 config entries of 'proj' refused: 'typo', 'once'" in redbeat("doctor", env=here)
    assert f"leader (pid {first.pid} on " in redbeat("health"), "whatever it refuses, the beat is well"
    stop(first)
    run({"fast": FAST, "typo": {**HOURLY, "expires": 10}})
    assert re.search("^refused +0$", redbeat("status"), flags=re.MULTILINE)
    assert "REFUSED" not in redbeat("list")
    assert "expires   10" in redbeat("show", "typo")


def test_a_config_entry_whose_name_is_taken_is_an_error_for_that_name(
    run: Callable[..., Process], client: redis.Redis, schedules: Schedules
) -> None:
    schedules.add("taken", "proj.add", every(INTERVAL), kwargs={"x": 1})
    process = run({"taken": {**FAST, "kwargs": {"x": 2}}, "free": FAST})
    process.says("ERROR.*config entry 'taken' is refused: the name is taken by a runtime entry")
    eventually(lambda: of_entry(client, "free") and len(of_entry(client, "taken")) > 2, what="both entries")
    assert all(message.kwargs == {"x": 1} for message in of_entry(client, "taken"))
    assert schedules["taken"].source != schedules["free"].source
    with pytest.raises(ConfigOwned):
        schedules.update("free", kwargs={"x": 3})


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
    process.says("WARNING.*1 entry belongs to the configuration of 'billing', which has no beat: 'theirs'")
    assert not process.lines("CRITICAL|Traceback")


def test_a_pause_and_the_history_of_a_config_entry_outlive_restarts(
    run: Callable[..., Process], client: redis.Redis, schedules: Schedules
) -> None:
    process = run({"fast": FAST})
    eventually(lambda: len(of_entry(client, "fast")) >= 3, what="a few runs")
    schedules.pause("fast", note="data centre move")
    before = schedules["fast"]
    stop(process)
    # A changed definition takes effect, and is still paused.
    process = run({"fast": {**FAST, "kwargs": {"x": 7}}, "other": FAST})
    sent = len(of_entry(client, "fast"))
    eventually(lambda: len(of_entry(client, "other")) >= 3, what="another entry")
    after = schedules["fast"]
    assert (after.paused_note, after.kwargs) == ("data centre move", {"x": 7})
    assert (after.total_run_count, after.last_run_at) == (before.total_run_count, before.last_run_at)
    assert len(of_entry(client, "fast")) == sent == before.total_run_count
    schedules.resume("fast")
    eventually(lambda: len(of_entry(client, "fast")) > sent, what="the resumed entry")
    assert of_entry(client, "fast")[-1].kwargs == {"x": 7}


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
