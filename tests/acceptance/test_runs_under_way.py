"""What is told of runs before they end, and of those that end in unusual ways, with a real worker.

All runs are sent by hand, one at a time, so the audit would have nothing to judge.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Expect, Once, Schedules, every, manual
from redbeat_lite.beat.status import status
from tests.harness.workers import Worker
from tests.support.processes import Process, run_celery
from tests.support.server import Server
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(90)

APP = "tests.acceptance.retryproj"


@pytest.fixture
def worker(server: Server, owned: ExitStack) -> Callable[[], Process]:
    """Starts workers that record what becomes of runs."""
    options: dict[str, Any] = {"pool": "threads", "concurrency": 8, "PROJ_URL": server.url, "PROJ_INSTALL": "1"}
    return lambda: owned.enter_context(Worker(APP, **options))


@pytest.fixture
def why(server: Server) -> Callable[[str], str]:
    """What ``redbeat why`` says of an entry, in one line."""

    def ask(name: str) -> str:
        asked = run_celery(APP, "redbeat", "why", name, env={"PROJ_URL": server.url})
        assert asked.returncode == 0, asked.stderr
        return " ".join(asked.stdout.split())

    return ask


def outcomes(schedules: Schedules, name: str) -> list[str]:
    return [run.outcome for run in schedules.runs(name)]


def test_a_run_is_told_while_it_waits_while_it_runs_and_after_its_worker_was_killed(
    schedules: Schedules, worker: Callable[[], Process], why: Callable[[str], str]
) -> None:
    schedules.add("by hand", "retries.held", manual())
    schedules.add("hourly", "retries.held", every(3600))
    schedules.add("watched", "retries.held", every(3600), expect=Expect(finish_within=600))
    names = ("by hand", "hourly", "watched")
    ids = {name: schedules.run_now(name) for name in names}
    for name in names:
        [run] = schedules.runs(name)
        assert (run.outcome, run.task_id, run.attempts) == ("waiting", ids[name], 0)
        assert "no worker has reported that it began" in why(name)
    first = worker()
    for name in names:
        eventually(lambda name=name: outcomes(schedules, name) == ["running"], what=f"{name!r} runs")
        assert f"'{name}' runs for" in why(name)
    first.kill()
    for name in names:
        eventually(lambda name=name: outcomes(schedules, name) == ["lost"], what=f"{name!r} is lost")
    assert "the process that ran it died" in why("by hand")


def test_a_plain_task_runs_for_longer_than_a_lease_and_ends(
    schedules: Schedules, worker: Callable[[], Process], client: redis.Redis
) -> None:
    worker()
    schedules.add("held", "retries.held", every(3600), expect=Expect(finish_within=600))
    schedules.run_now("held")
    eventually(lambda: outcomes(schedules, "held") == ["running"], what="it runs")
    alive = "{redbeat-lite}:runs:alive"
    [(member, until)] = eventually(lambda: client.zrange(alive, 0, -1, withscores=True), what="a sign of life")
    eventually(lambda: (client.zscore(alive, member) or 0) > until + 2_000, what="signs for more than a lease")
    assert outcomes(schedules, "held") == ["running"]
    client.set("go", 1)
    eventually(lambda: outcomes(schedules, "held") == ["succeeded"], what="its end")
    eventually(lambda: not client.exists(alive), what="no sign is left of what has ended")


def test_why_tells_what_became_of_unusual_runs(
    schedules: Schedules, worker: Callable[[], Process], why: Callable[[str], str], client: redis.Redis
) -> None:
    for name in ("rejects", "ignores", "locked", "far"):
        schedules.add(name, f"retries.{name}", manual())
    schedules.add("holder", "retries.held", manual(), once=Once(key="k"))
    working = worker()
    schedules.run_now("holder")
    eventually(lambda: outcomes(schedules, "holder") == ["running"], what="the lock is held")
    for name in ("rejects", "ignores", "locked", "far"):
        schedules.run_now(name)
    came = {"rejects": "rejected", "ignores": "unknown", "locked": "failed", "far": "retrying"}
    for name, outcome in came.items():
        eventually(
            lambda name=name, outcome=outcome: [run.outcome for run in schedules.runs(name) if run.worker] == [outcome],
            what=f"{name!r} {outcome}",
        )
    assert " ran for " in why("rejects")
    assert "and rejected its message" in why("rejects")
    assert " ran for " in why("ignores")
    assert "not recorded" not in why("ignores")
    [locked] = schedules.runs("locked")
    assert (locked.began_at, locked.attempts) == (None, 0)
    assert schedules["locked"].failures_in_a_row == 1
    assert "'locked' did not run for" in why("locked")
    assert "OnceRejected" in why("locked")
    assert "failed; it waits for its retry, due at" in why("far")
    client.set("go", 1)
    eventually(lambda: outcomes(schedules, "holder") == ["succeeded"], what="its end")
    working.terminate()


def test_the_retry_of_a_plain_task_is_told_while_it_runs_and_after_its_worker_was_killed(
    schedules: Schedules, worker: Callable[[], Process]
) -> None:
    first = worker()
    schedules.add("again", "retries.held_again", manual())
    schedules.run_now("again")
    eventually(lambda: outcomes(schedules, "again") == ["retrying"], what="its first attempt has failed")
    assert schedules.runs("again")[0].retry_at is not None
    eventually(lambda: outcomes(schedules, "again") == ["running"], what="its retry runs")
    [run] = schedules.runs("again")
    assert (run.began_at, run.seconds, run.attempts) == (None, None, 2)
    first.kill()
    eventually(lambda: outcomes(schedules, "again") == ["lost"], what="its retry is lost")


def test_a_worker_reports_the_queues_that_it_takes_from_now(worker: Callable[[], Process], app: Celery) -> None:
    worker()
    eventually(lambda: status(app).queues == ("celery",), what="the first report")
    app.control.add_consumer("extra")
    app.control.cancel_consumer("celery")
    # A worker reports every ten seconds.
    eventually(lambda: status(app).queues == ("extra",), what="a report that names the queue of now")


def test_runs_of_celerys_own_tasks_are_recorded(schedules: Schedules, worker: Callable[[], Process]) -> None:
    worker()
    schedules.add("cleanup", "celery.backend_cleanup", manual())
    schedules.run_now("cleanup")
    eventually(lambda: outcomes(schedules, "cleanup") == ["succeeded"], what="its end")
