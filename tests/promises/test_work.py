"""What redbeat_lite promises of tasks, pipelines, runs and people who look and act."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from redbeat_lite import (
    InvalidEntry,
    Once,
    OnceRejected,
    OnceSkipped,
    Pause,
    Pipeline,
    PipelineTask,
    Task,
    acting_as,
    cron,
    every,
    lock,
    locks,
    manual,
)
from redbeat_lite.web import Access, Request, Site
from tests.promises.conftest import Stage
from tests.support.process_table import descendants
from tests.support.proxy import Proxy
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually, never
from tests.support.webhook import Webhook


class Child(NamedTuple):
    """A process that a worker has started."""

    pid: int


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class TestOnce:
    def test_a_worker_that_is_killed_frees_its_key(self, stage: Stage, tmp_path: Path) -> None:
        """A lock whose holder died expires after the lease."""
        journal = tmp_path / "bodies"
        worker = stage.worker()
        send(stage, "proj.sleep", 60, str(journal), once_key="sleeper")
        held = eventually(lambda: locks(stage.app).list())
        assert held[0].key == "sleeper"

        def seconds_left() -> float:
            [lock_info] = locks(stage.app).list()
            return lock_info.expires_in or 0.0

        # The lease of ``proj.sleep`` is three seconds. The worker renews it every second.
        eventually(lambda: seconds_left() < 2.5)
        eventually(lambda: seconds_left() > 2.5, what="a renewal")
        with Stopwatch(stage.server) as watch:
            for pid in [worker.pid, *descendants(worker.pid)]:
                with suppress(ProcessLookupError):  # A child may end as its worker dies.
                    os.kill(pid, signal.SIGKILL)
            eventually(lambda: not locks(stage.app).list())
        watch.at_most(3.3)

    def test_who_waits_runs_in_order(self, stage: Stage, tmp_path: Path) -> None:
        """Waiting keeps the order of the queue."""
        journal = tmp_path / "texts"
        worker = stage.worker()
        wait = {"once_key": "key", "on_conflict": "wait"}
        with lock(stage.app, "key"):
            for number in range(8):
                # The worker has two processes, which may take two messages at once.
                send(stage, "proj.note", str(journal), str(number), **wait)
                eventually(lambda: len(waiters(stage)) > number)  # noqa: B023
        children = [Child(pid) for pid in descendants(worker.pid)]
        with Stopwatch(worker, stage.server, *children) as watch:
            eventually(lambda: len(lines(journal)) == 8)
        # The end of each task wakes the next one. Otherwise a sweeper would, once a second.
        watch.at_most(4)
        assert lines(journal) == [str(number) for number in range(8)]

    def test_who_comes_while_a_task_waits_does_not_overtake_it(self, stage: Stage, tmp_path: Path) -> None:
        """Waiting keeps the order of the queue."""
        journal = tmp_path / "texts"
        once = Once(key="key", scope="queue", on_conflict="raise")

        @stage.app.task(name="proj.note", base=Task, once=once, shared=False)
        def note(path: str, text: str) -> None: ...

        worker = stage.worker()
        with lock(stage.app, "key"):
            send(stage, "proj.note", str(journal), "first", once_key="key", on_conflict="wait")
            eventually(lambda: waiters(stage))
            worker.stop()
        # Nobody holds the lock, and no worker takes the message of the task that waits for it.
        with pytest.raises(OnceRejected):
            note.delay(str(journal), "second")
        stage.worker()
        eventually(lambda: lines(journal) == ["first"])

    def test_a_skipped_call_hangs_nobody(self, stage: Stage, tmp_path: Path) -> None:
        """Skipping hangs nobody: ``get()`` ends with OnceSkipped."""
        backend = {"result_backend": stage.server.url}
        stage.app.conf.update(backend)
        stage.worker(**backend)
        first = send(stage, "proj.note", str(tmp_path / "a"), "first", 2, once_key="key")
        eventually(lambda: locks(stage.app).list())
        with pytest.raises(OnceSkipped):
            send(stage, "proj.note", str(tmp_path / "a"), "second", once_key="key").get(timeout=60)
        first.get(timeout=60)
        assert lines(tmp_path / "a") == ["first"]

    def test_a_task_that_runs_long_is_not_run_twice(self, stage: Stage, tmp_path: Path) -> None:
        """Long tasks are not redelivered."""
        journal = tmp_path / "bodies"
        visible = {"broker_transport_options": {"visibility_timeout": 2}}
        for _ in range(2):
            stage.worker(**visible)
        send(stage, "proj.slow", str(journal), 6)
        eventually(lambda: any("ended" in line for line in lines(journal)))
        assert len(lines(journal)) == 2

    def test_a_block_that_lasts_for_longer_than_the_lease_keeps_its_lock(self, stage: Stage) -> None:
        """Two bodies of one key never overlap while the lease holds, which is renewed."""
        with lock(stage.app, "key", lease=3) as held:
            never(lambda: held.lost, during=3.5)
            with lock(stage.app, "key") as second:
                assert not second

    def test_the_end_of_a_block_that_lost_its_lock_frees_nothing(self, stage: Stage) -> None:
        """A holder that lost its lock learns so, and its release does nothing."""
        with ExitStack() as blocks:
            with lock(stage.app, "key") as first:
                assert locks(stage.app).clear("key")
                second = blocks.enter_context(lock(stage.app, "key"))
                assert second
                assert second.fence > first.fence
            with lock(stage.app, "key") as third:
                assert not third

    def test_a_block_holds_a_lock(self, stage: Stage) -> None:
        """``lock(app, key)``: a block holds a once-lock, and frees it at its end."""
        with lock(stage.app, "key", lease=5) as held:
            assert held
            with lock(stage.app, "key") as second:
                assert not second
        with lock(stage.app, "key") as third:
            assert third


def waiters(stage: Stage) -> Sequence[str]:
    """The tasks that wait for the key "key"."""
    info = locks(stage.app).get("key")
    return info.waiters if info else ()


def send(stage: Stage, task: str, *args: Any, **options: Any) -> Any:
    return stage.app.send_task(task, args, **options)


class TestPipelines:
    @pytest.fixture
    def app(self, stage: Stage) -> Any:
        @stage.app.task(name="proj.step", base=PipelineTask, shared=False)
        def step(params: dict[str, Any], name: str) -> None: ...

        @stage.app.task(name="proj.broken", base=PipelineTask, shared=False)
        def broken(params: dict[str, Any]) -> None: ...

        return stage.app

    def test_stages_run_by_priority_and_hand_on_their_params(self, stage: Stage, app: Any) -> None:
        """Steps of lower priority start when all higher ones have succeeded. The results of each stage reach
        the next one.
        """
        stage.worker()
        step = app.tasks["proj.step"]
        steps = [("last", step.s("c"), 1), ("first", step.s("a"), 3), ("middle", step.s("b"), 2)]
        run = Pipeline(app, steps).start()
        assert run.wait(30).state == "SUCCEEDED"
        assert run.params()["done"] == ["a", "b", "c"]

    def test_a_step_that_fails_ends_the_run_with_its_reason(self, stage: Stage, app: Any) -> None:
        """A failure stops the rest, and the run says why."""
        stage.worker()
        run = Pipeline(app, [("bad", "proj.broken", 2), ("next", "proj.broken", 1)]).start()
        status = run.wait(30)
        assert status.state == "FAILED"
        assert "broken as asked" in (status.error or "")


class TestRecords:
    def test_a_backfill_waits_for_the_lock_of_its_entry(self, stage: Stage) -> None:
        """A backfill waits for the entry's once-lock and is never left out."""
        now = datetime.now(UTC)
        begin = now - timedelta(days=2)
        schedules = stage.schedules
        schedules.add("hourly", "proj.add", cron("0 * * * *", tz="UTC"), start_at=begin, once=True)
        stage.beat()
        three_hours = (now - timedelta(hours=27), now - timedelta(hours=24))
        backfill = schedules.backfills.start("hourly", *three_hours, max_active=None, rate=1000)
        stage.waits_for("hourly")
        stage.worker()
        eventually(lambda: schedules.backfills[backfill.id].ended == "done")
        eventually(lambda: len(schedules.runs("hourly", outcome="succeeded")) == 3)

    def test_a_retry_that_is_due_after_the_next_run_runs(self, stage: Stage) -> None:
        """Workers with ``install(app)`` let retries of scheduled tasks run."""
        stage.worker()
        stage.schedules.add("retried", "proj.again", every(1))
        stage.beat(redbeat_lite_clock_slack=0)

        def has_run() -> bool:
            runs = stage.schedules.runs("retried", outcome="succeeded")
            return any(run.attempts == 2 for run in runs)

        eventually(has_run, what="a retry that ran")

    def test_a_report_that_is_sent_twice_counts_once(self, stage: Stage, proxy: Proxy) -> None:
        """A late copy never overwrites a newer fate."""
        worker = stage.worker(redbeat_lite_url=proxy.url)
        stage.beat()
        expect = {"finish_within": 600}

        def is_recorded(name: str) -> bool:
            return bool(stage.schedules.runs(name, outcome="failed"))

        # The server has loaded the scripts of the worker after this run.
        stage.add_due("first", "proj.break", expect=expect)
        eventually(lambda: is_recorded("first"))
        # The worker reports begin and end of the second run together when the server is back, and
        # the reply to that report is lost.
        proxy.refuse()
        stage.add_due("second", "proj.break", expect=expect)
        eventually(lambda: len(worker.lines("proj.break.* raised")) == 2)
        proxy.lose_reply_to = re.compile(rb"broken without a lock")
        proxy.accept()
        eventually(lambda: proxy.lost)
        stage.add_due("third", "proj.break", expect=expect)
        eventually(lambda: is_recorded("third"))
        # The beat counts failures from this feed.
        ends = stage.client.xrange("{redbeat-lite}:runs:feed")
        assert [fields[b"name"] for _, fields in ends] == [b"first", b"second", b"third"]


class TestInput:
    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"schedule": 0.01}, "schedule"),
            ({"jitter": -1}, "jitter"),
            ({"misfire": "never"}, "misfire"),
            ({"kwargs": {"x": object()}}, "kwargs"),
            ({"max_runs": 0}, "max_runs"),
        ],
    )
    def test_what_cannot_be_stored_fails_at_add_with_its_field(
        self, stage: Stage, fields: dict[str, Any], field: str
    ) -> None:
        """What cannot be stored fails at ``add()`` with the field's name, never later."""
        with pytest.raises(InvalidEntry, match=field):
            stage.schedules.add("e", "proj.add", **{"schedule": every(60), **fields})
        assert "e" not in stage.schedules


class TestPeople:
    def test_each_change_says_who_made_it(self, stage: Stage) -> None:
        """The record of changes says who changed what, when and why."""
        with acting_as("alice"):
            stage.schedules.add("entry", "proj.add", every(60))
        stage.schedules.pause("entry", "the disk is full")
        changes = stage.schedules.changes("entry")
        assert [change.action for change in changes] == ["paused", "added"]
        assert changes[1].actor == "alice"
        assert changes[0].note == "the disk is full"

    def test_an_incident_opens_when_a_run_does_not_begin(self, stage: Stage) -> None:
        """Where an entry says what must become of its runs, an incident opens when it does not."""
        stage.beat()
        late = datetime.now(UTC) - timedelta(seconds=1)
        expect = {"start_within": 0.5}
        worker = stage.worker()
        worker.terminate()
        worker.wait()
        stage.schedules.add("entry", "proj.add", every(1), expect=expect, start_at=late)

        def about_the_entry() -> bool:
            return any(incident.entry == "entry" for incident in stage.schedules.incidents())

        eventually(about_the_entry, what="an incident")

    def test_an_incident_opens_when_a_run_fails_or_takes_too_long(self, stage: Stage, tmp_path: Path) -> None:
        """Where an entry says what must become of its runs, an incident opens when it does not."""
        stage.worker()
        stage.beat()
        sleep = {"args": (3, str(tmp_path / "bodies"))}
        stage.schedules.add("fails", "proj.fail", every(1), expect={"failures": 2})
        stage.add_due("lasts", "proj.sleep", expect={"finish_within": 1}, **sleep)

        def kinds() -> set[tuple[str, str | None]]:
            return {(incident.kind, incident.entry) for incident in stage.schedules.incidents()}

        eventually(lambda: kinds() >= {("failed", "fails"), ("too_long", "lasts")}, what="two incidents")

    def test_an_incident_alerts_you(self, stage: Stage) -> None:
        """An incident can alert you. ``redbeat_lite_notify``: mail, Slack, Teams, PagerDuty, webhooks and more."""
        with Webhook() as web:
            stage.beat(redbeat_lite_notify=[f"json://{web.address}/hook"])
            stage.client.hset("{redbeat-lite}:entries", "spoilt", "rubbish")
            stage.client.zadd("{redbeat-lite}:due", {"spoilt": 0})
            stage.add_due("wakes the beat")
            notice = eventually(lambda: web.posts, what="a notice")[0]
        [incident] = stage.schedules.incidents()
        assert notice["title"] == f"[{incident.id}] quarantined spoilt"

    def test_an_entry_whose_runs_fail_is_paused(self, stage: Stage) -> None:
        """Failure policy. The leader pauses the entry once three of its runs in a row have failed. The incident
        ``paused``, the entry's ``paused_note`` and the record of changes say so. After ``resume``, it takes
        three failures again.
        """
        stage.worker()
        stage.beat()
        schedules = stage.schedules
        schedules.add("thrice", "proj.fail", every(3600), on_failure=Pause(after=3))
        schedules.add("last", "proj.fail", every(3600), on_failure=Pause(after=1))
        # A leader counts the ends that come after its first look.
        eventually(lambda: stage.client.hexists("{redbeat-lite}:meta", "feed"), what="the first look of the leader")

        def fail(name: str) -> None:
            task = schedules.run_now(name)
            eventually(lambda: task in {run.task_id for run in schedules.runs(name, outcome="failed")})

        for _ in range(3):
            fail("thrice")
        eventually(lambda: schedules["thrice"].status == "paused", what="the pause")
        assert schedules["thrice"].paused_note
        change = schedules.changes("thrice")[0]
        assert (change.action, change.actor) == ("paused", "beat")
        assert [(incident.kind, incident.entry) for incident in schedules.incidents()] == [("paused", "thrice")]
        schedules.resume("thrice")
        for name in ("thrice", "thrice", "last"):
            fail(name)
        # The leader reads the ends of runs in their order.
        eventually(lambda: schedules["last"].status == "paused", what="the pause")
        assert schedules["thrice"].status == "waiting"
        fail("thrice")
        eventually(lambda: schedules["thrice"].status == "paused", what="the second pause")

    def test_a_run_by_hand_is_sent_at_once(self, stage: Stage) -> None:
        """``run_now`` sends one extra task, with arguments of its own if you like."""
        stage.schedules.add("entry", "proj.add", manual())
        stage.schedules.run_now("entry", kwargs={"x": 7})
        [message] = stage.messages("entry")
        assert message.kwargs == {"x": 7}

    def test_the_page_is_read_only_unless_granted(self, stage: Stage) -> None:
        """You can look instead of type. The page is read-only unless you grant more."""
        stage.schedules.add("entry", "proj.add", every(60))
        same_site = {"sec-fetch-site": "same-origin"}
        post = Request("POST", "/pause", "", same_site, b"name=entry")
        for rights, status in ((frozenset({"view"}), 403), (frozenset({"view", "pause"}), 303)):
            site = Site(stage.app, access=lambda _, rights=rights: Access("ada", rights))
            assert site.handle(Request("GET", "/entries", "", {})).status == 200
            assert site.handle(post).status == status
        assert stage.schedules["entry"].status == "paused"

    def test_the_page_is_for_this_machine_alone_unless_told_otherwise(self, stage: Stage) -> None:
        """Without ``access`` the page is read-only, and for those at this machine alone; and whoever
        is let in may only look unless more is granted.
        """
        stage.schedules.add("entry", "proj.add", every(60))
        headers = {"host": "localhost:8000", "sec-fetch-site": "same-origin"}
        for site in (Site(stage.app), Site(stage.app, access=lambda _: Access("ada"))):
            looks = Request("GET", "/entries", "", headers, client="127.0.0.1")
            assert site.handle(looks).status == 200
            acts = Request("POST", "/pause", "", headers, b"name=entry", client="127.0.0.1")
            assert site.handle(acts).status == 403
        others = (
            Request("GET", "/entries", "", headers, client="192.0.2.1"),
            Request("GET", "/entries", "", {**headers, "host": "example.org"}, client="127.0.0.1"),
            Request("GET", "/entries", "", {**headers, "x-forwarded-for": "192.0.2.1"}, client="127.0.0.1"),
        )
        assert [Site(stage.app).handle(other).status for other in others] == [403] * 3
        assert stage.schedules["entry"].status != "paused"
