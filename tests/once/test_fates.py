"""What becomes of runs is recorded: by real workers, for guarded tasks and for others."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redbeat_lite import Schedules
from redbeat_lite.entries.message import run_headers
from redbeat_lite.entries.run import Row
from redbeat_lite.runs.run_store import RunStore
from tests.once.client import OnceClient
from tests.once.pools import BOTH, Crew, Stage, in_pools
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(60)

#: A class of ours, and one that knows nothing of locks.
KINDS = ("plain", "foreign")


class Record:
    """What is recorded of entries whose names begin with a key."""

    def __init__(self, proj: OnceClient, key: str) -> None:
        self.proj, self.key = proj, key
        self.store = RunStore(proj.client, "t")

    def send(self, task: str, entry: str = "", *, how: str = "", queue: str = "once", **options: Any) -> Any:
        """Send what an entry of this name would, as one of its runs."""
        told = run_headers(f"{self.key}-{entry}", round(time.time() * 1000))
        return self.proj.task(task).apply_async(
            (f"{self.key}-{entry}",), {"how": how}, queue=queue, headers=told, **options
        )

    def rows(self, entry: str = "") -> list[Row]:
        return self.store.rows([f"{self.key}-{entry}"], 10)[0]

    def outcomes(self, entry: str = "") -> list[str]:
        return [row.outcome for row in self.rows(entry)]

    def comes_to(self, outcome: str, entry: str = "") -> Row:
        """Wait until the one run of an entry has come to this, and no line of the feed says otherwise."""
        eventually(lambda: self.outcomes(entry) == [outcome], what=f"{entry} {outcome}, not {self.outcomes(entry)}")
        return self.rows(entry)[0]

    def feed(self, entry: str = "") -> list[dict[str, str]]:
        lines: Any = self.proj.client.xrange(self.store.keys.feed)
        return [fields for _, fields in lines if fields["name"] == f"{self.key}-{entry}"]


@pytest.fixture
def record(proj: OnceClient, key: str) -> Record:
    return Record(proj, key)


@in_pools(*BOTH)
def test_what_a_body_came_to_in_every_pool(stages: Any, pools: Any) -> None:
    def play(stage: Stage) -> None:
        worker = stage.worker()
        record = Record(stage.proj, stage.key)
        for kind in KINDS:
            stage.proj.go(f"{stage.key}-{kind}-again")
            ids = [record.send(kind, f"{kind}-good", queue=stage.queue).id for _ in range(3)]
            record.send(kind, f"{kind}-bad", how="fail", queue=stage.queue)
            record.send(kind, f"{kind}-again", how="retry until", queue=stage.queue)
            record.send(kind, f"{kind}-quiet", how="ignore", queue=stage.queue)
        for kind in KINDS:
            eventually(lambda kind=kind: record.outcomes(f"{kind}-good") == ["succeeded"] * 3)
            record.comes_to("failed", f"{kind}-bad")
            row = record.comes_to("succeeded", f"{kind}-again")
            assert row.attempts == 2
            record.comes_to("unknown", f"{kind}-quiet")
            [line] = record.feed(f"{kind}-bad")
            assert (line["error"], line["worker"]) == ("ValueError: as asked", worker.name)
            outcomes = [line["outcome"] for line in record.feed(f"{kind}-again")]
            # On a busy machine the child of the first attempt may report after that of the second one.
            assert outcomes == ["y", "s"] or (stage.pool == "prefork" and outcomes == ["s"])
        assert {row.task_id for row in record.rows("foreign-good")} == set(ids)

    stages(pools, play)


def test_a_task_that_replaces_itself_stays_one_run(record: Record, proj: OnceClient, prefork: Crew) -> None:
    replaced = record.send("plain", "replaced", how="replace")
    proj.go(f"{record.key}-replaced")
    row = record.comes_to("succeeded", "replaced")
    assert (row.task_id, row.attempts) == (replaced.id, 1)
    assert [line["outcome"] for line in record.feed("replaced")] == ["s"], "one end"


def test_what_a_worker_says_of_messages_that_no_body_gets(record: Record, proj: OnceClient, prefork: Crew) -> None:
    past, later = datetime.now(UTC) - timedelta(seconds=1), datetime.now(UTC) + timedelta(seconds=1)
    for kind in KINDS:
        record.send(kind, f"{kind}-late", expires=past)
        proj.app.control.revoke(waits := record.send(kind, f"{kind}-unwanted", eta=later).id)
        assert waits
    proj.app.send_task("once.gone", queue="once", headers=run_headers(f"{record.key}-gone", 0))
    proj.app.send_task("once.plain", queue="once", headers={"periodic_task_name": record.key}, args=[record.key])
    for kind in KINDS:
        record.comes_to("expired", f"{kind}-late")
        record.comes_to("revoked", f"{kind}-unwanted")
    record.comes_to("rejected", "gone")
    assert "knows no task 'once.gone'" in record.feed("gone")[0]["error"]
    proj.ended(record.key)
    assert not record.store.rows([record.key], 1)[0], "somebody else's"


@pytest.mark.parametrize("kind", [*KINDS, "late"])
def test_what_is_told_of_a_child_that_is_gone(record: Record, proj: OnceClient, prefork: Crew, kind: str) -> None:
    died = record.send(kind, "died", how="until")
    revoked = record.send(kind, "revoked", how="until")
    [start] = proj.started(f"{record.key}-died")
    proj.started(f"{record.key}-revoked")
    if kind == "foreign":
        assert not record.outcomes("died")
    else:
        eventually(lambda: record.outcomes("died") == ["running"])
    os.kill(start["pid"], signal.SIGKILL)
    revoked.revoke(terminate=True)
    row = record.comes_to("lost", "died")
    assert (row.task_id, row.attempts) == (died.id, 1)
    assert row.begin is not None
    assert record.comes_to("revoked", "revoked").duration is not None
    assert [line["outcome"] for line in record.feed("revoked")] == ["v"]
    record.send(kind, "stuck", how="until", time_limit=0.5)
    record.comes_to("failed", "stuck")
    assert "TimeLimitExceeded" in record.feed("stuck")[0]["error"]
    assert "raised exception" not in prefork.output, "Celery's own handlers of the end"


@pytest.mark.parametrize("kind", [*KINDS, "late"])
def test_a_body_that_raises_what_is_no_exception_has_failed(
    record: Record, proj: OnceClient, prefork: Crew, kind: str
) -> None:
    record.send(kind, how="cancelled")
    assert record.comes_to("failed").begin is not None
    assert record.feed()[0]["error"] == "CancelledError"


def test_a_thread_whose_body_raises_what_is_no_exception_has_failed(stages: Any) -> None:
    def play(stage: Stage) -> None:
        stage.worker()
        record = Record(stage.proj, stage.key)
        for kind in (*KINDS, "kept"):
            record.send(kind, kind, how="cancelled", queue=stage.queue)
        for kind in (*KINDS, "kept"):
            record.comes_to("failed", kind)

    stages(["threads"], play)


def test_a_greenlet_at_its_time_limit_has_failed(stages: Any) -> None:
    def play(stage: Stage) -> None:
        stage.worker()
        record = Record(stage.proj, stage.key)
        ids = {}
        for kind in (*KINDS, "late"):
            ids[kind] = record.send(kind, kind, how="until", queue=stage.queue, time_limit=0.5).id
        for kind in ids:
            record.comes_to("failed", kind)
            [line] = record.feed(kind)
            assert line["error"].startswith("Timeout"), "one end, and its reason"
        assert stage.proj.client.hget(f"{{t}}:guard:{ids['late']}", "state") == "done", "no copy runs"
        record.send("kept", "again", how="hang once", queue=stage.queue, time_limit=1)
        record.comes_to("succeeded", "again")

    stages(["gevent"], play)


@pytest.mark.parametrize(
    ("task", "how", "limit"),
    [("skip_requeue", "die once", None), ("kept", "hang once", 1)],
    ids=["death", "time limit"],
)
def test_a_message_that_is_requeued_for_its_child_is_no_failure(
    record: Record, prefork: Crew, task: str, how: str, limit: float | None
) -> None:
    record.send(task, "again", how=how, time_limit=limit)
    record.comes_to("succeeded", "again")
    assert [line["outcome"] for line in record.feed("again")] == ["s"]


def test_a_cold_shutdown_fails_no_message_that_goes_back_to_its_queue(stages: Any) -> None:
    def play(stage: Stage) -> None:
        record, schedules = Record(stage.proj, stage.key), Schedules(stage.proj.app)
        entries = ("late", "plain")
        worker = stage.worker()
        for entry in entries:
            record.send(entry, entry, how="until", queue=stage.queue)
            stage.proj.started(f"{stage.key}-{entry}")
        worker.signal(signal.SIGQUIT)
        assert worker.wait() == 0, worker.output
        # Celery acknowledges the message of the other one before its body begins.
        record.comes_to("lost", "plain")
        assert [run.outcome for run in schedules.runs(f"{stage.key}-late")] == ["waiting"]
        stage.worker()
        stage.proj.go(f"{stage.key}-late")
        record.comes_to("succeeded", "late")
        assert [line["outcome"] for line in record.feed("late")] == ["s"]

    stages(["prefork"], play)


def test_a_run_that_finds_its_key_taken_is_left_out(record: Record, proj: OnceClient, prefork: Crew) -> None:
    record.send("skip", "taken", how="until")
    proj.started(f"{record.key}-taken")
    record.send("skip", "taken")
    eventually(lambda: record.outcomes("taken") == ["left out", "running"])
    proj.go(f"{record.key}-taken")
    eventually(lambda: record.outcomes("taken") == ["left out", "succeeded"])
    assert [row.begin is None for row in record.rows("taken")] == [True, False]


def test_a_copy_changes_nothing_and_one_that_waits_says_nothing(
    record: Record, proj: OnceClient, prefork: Crew
) -> None:
    first = record.send("late", "copied", how="until")
    proj.started(f"{record.key}-copied")
    proj.copy(first.id)
    proj.copy(first.id, expired=True)
    eventually(lambda: f"expired copy of task {first.id}" in prefork.output)
    eventually(lambda: proj.client.hexists(f"{{t}}:guard:{first.id}", "standby"))
    assert record.outcomes("copied") == ["running"]
    record.send("wait", "parked", how="until")
    proj.started(f"{record.key}-parked")
    record.send("wait", "parked")
    eventually(lambda: proj.waiters(f"{record.key}-parked"))
    assert record.outcomes("parked") == ["running"]
    for entry in ("copied", "parked"):
        proj.go(f"{record.key}-{entry}")
    record.comes_to("succeeded", "copied")
    eventually(lambda: record.outcomes("parked") == ["succeeded"] * 2)


def test_workers_whose_clocks_are_off_agree(proj: OnceClient, key: str, stages: Any) -> None:
    def play(stage: Stage) -> None:
        for skew in (-60, 60):
            stage.worker(name=f"off{skew}", ONCE_SKEW=skew, concurrency=1)
        record = Record(proj, stage.key)
        for kind in KINDS * 3:
            record.send(kind, queue=stage.queue)
        eventually(lambda: record.outcomes() == ["succeeded"] * 6)
        assert all(0 <= (row.begin or 0) < 20_000 for row in record.rows())

    stages(["prefork"], play)
