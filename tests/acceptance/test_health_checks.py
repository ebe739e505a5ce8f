"""redis-py looks after its connections by a PING before a command, if the last reply is some seconds old."""

from __future__ import annotations

import json
from collections.abc import Callable

import redis
from celery import Celery

from redbeat_lite import Entry, Schedules, every
from tests.harness.queues import check_queue
from tests.support.kombus import needs_batches
from tests.support.processes import Process
from tests.support.waiting import eventually

#: More than one batch of the smallest size.
ENTRIES = 250


@needs_batches
def test_a_health_check_before_each_command_takes_no_reply_from_another_command(
    beat: Callable[..., Process], app: Celery, client: redis.Redis
) -> None:
    Schedules(app).add_many(
        Entry(f"e{number}", "proj.add", every(1), misfire="all", expires=None) for number in range(ENTRIES)
    )
    # A check falls due a microsecond after each reply, so one comes before every command.
    options = {"redbeat_lite_redis_options": {"health_check_interval": 1e-6}}
    process = beat(PROJ_CONF=json.dumps(options))
    process.says("messages go out in one step")
    eventually(lambda: client.llen("celery") >= 2 * ENTRIES or not process.alive, what="two runs of each entry")
    process.stop()
    assert "Traceback" not in process.output
    check_queue(client, [f"e{number}" for number in range(ENTRIES)], 1000)
    runs = sum(entry.total_run_count for entry in Schedules(app).values())
    assert client.llen("celery") == runs
