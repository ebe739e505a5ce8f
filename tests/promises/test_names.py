"""The first use of every public name, of ``api.md`` and of ``__all__`` of each package."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule as CelerySchedule

import redbeat_lite
from redbeat_lite import (
    Backfill,
    Backfills,
    Calendar,
    Calendars,
    Change,
    Changes,
    ConfigOwned,
    ConfigurationError,
    CorruptEntry,
    Duration,
    Entry,
    EntryExists,
    EntryNotFound,
    Expect,
    ExpectFields,
    Freeze,
    Incident,
    LockHandle,
    LockInfo,
    LockLost,
    Locks,
    Misfire,
    MisfireFields,
    NotResumable,
    Once,
    OnceFields,
    OnceRejected,
    Pipeline,
    PipelineNotFound,
    PipelineRun,
    PipelineTask,
    Policies,
    Record,
    RedbeatError,
    Run,
    Schedules,
    Selected,
    Task,
    UnsupportedFormat,
    Upcoming,
    acting_as,
    at,
    cron,
    every,
    lock,
    locks,
    manual,
    register_schedule,
    rrule,
    start_task_process,
)
from redbeat_lite.events import (
    Dispatched,
    Failed,
    Hooks,
    IncidentClosed,
    IncidentOpened,
    LeaderGained,
    LeaderLost,
    Misfired,
    Quarantined,
    Skipped,
    Ticked,
)
from redbeat_lite.operate import Finding, Status, examine, status
from redbeat_lite.pipeline import RunStatus, State, StepFailed, StepStatus, progress_line, sweep
from redbeat_lite.testing import Fired, Rehearsal, ScheduleClock, rehearse, schedule_clock
from redbeat_lite.web import RIGHTS, Access, Response, Site, asgi, wsgi
from redbeat_lite.web import Request as PageRequest
from tests.promises.conftest import Stage
from tests.support.pages import document
from tests.support.waiting import eventually

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class TestSchedules:
    def test_entries_are_read_in_many_ways(self, stage: Stage) -> None:
        """Schedules is a mapping from names to entries; ``upcoming`` and ``soonest`` say what comes."""
        schedules = stage.schedules
        schedules.add_many([Entry("first", "proj.add", "1m"), Entry("second", "proj.add", "1h", description="slow")])
        assert [entry.name for entry in schedules.list()] == ["first", "second"]
        assert [name for name, _ in schedules.items()] == ["first", "second"]
        assert len([*schedules.values()]) == len(schedules) == 2
        soon = datetime.now(UTC) + timedelta(minutes=30)
        upcoming = schedules.upcoming(soon, limit=5)
        assert isinstance(upcoming[0], Upcoming)
        assert [run.name for run in upcoming] == ["first"] * 5
        assert [run.name for run, _ in schedules.soonest(soon)] == ["first"]
        assert schedules.due_counts([soon]) == [1, 1]
        record = schedules.record_of("first")
        assert isinstance(record, Record)
        assert isinstance(record.changes[0], Change)
        assert record.changes[0].action == "added"

    def test_a_mapping_of_entries_is_changed_as_a_dict(self, stage: Stage) -> None:
        """``schedules[name] = Entry(…)`` stores an entry, ``del schedules[name]`` removes it, and ``clear()``
        removes all.
        """
        schedules = stage.schedules
        schedules["entry"] = Entry("entry", "proj.add", every(60))
        schedules["entry"] = schedules["entry"].replace(description="another")
        assert schedules["entry"].description == "another"
        with pytest.raises(EntryExists):
            schedules.add("entry", "proj.add", every(60))
        del schedules["entry"]
        with pytest.raises(EntryNotFound):
            schedules["entry"]
        schedules.add("entry", "proj.add", every(60))
        schedules.clear()
        assert not schedules

    def test_entries_are_changed_together(self, stage: Stage) -> None:
        """``select(name, tag=, task=)`` returns a Selected, which pauses, resumes, removes or runs the entries."""
        for name in ("billing-a", "billing-b", "other"):
            stage.schedules.add(name, "proj.add", every(60), tags=("tagged",))
        selected = stage.schedules.select("billing-*", tag="tagged", task="proj.*")
        assert isinstance(selected, Selected)
        assert selected.names() == ["billing-a", "billing-b"]
        assert selected.pause("for a while") == ["billing-a", "billing-b"]
        assert stage.schedules["other"].status == "waiting"
        assert selected.among(["billing-a"]).resume() == ["billing-a"]
        assert list(selected.run_now()) == ["billing-a", "billing-b"]
        assert selected.remove() == ["billing-a", "billing-b"]
        assert list(stage.schedules) == ["other"]

    def test_calendars_leave_days_out(self, stage: Stage) -> None:
        """``calendar``: name of a stored calendar, on whose days the entry does not run."""
        calendars = stage.schedules.calendars
        assert isinstance(calendars, Calendars)
        calendars["off"] = Calendar({date(2030, 1, 2)}, date(2031, 12, 31))
        calendars["de"] = Calendar.of_holidays("DE", 2030, 2031)
        assert sorted(calendars.all()) == ["de", "off"]
        assert date(2030, 12, 25) in calendars["de"].days
        entry = stage.schedules.add("daily", "proj.add", cron("0 3 * * *"), start_at=NOON, calendar="off")
        assert entry.next_run_at == datetime(2030, 1, 3, 3, tzinfo=UTC)
        stage.schedules.remove("daily")
        del calendars["off"]
        assert "off" not in calendars.all()

    def test_a_freeze_and_a_pause_with_an_end_say_until_when_and_why(self, stage: Stage) -> None:
        """A freeze says until when and why, and so does the entry of a pause with an end."""
        freeze = stage.schedules.freeze("2h", "deploy")
        assert isinstance(freeze, Freeze)
        assert (freeze.until - freeze.since, freeze.note) == (timedelta(hours=2), "deploy")
        assert stage.schedules.frozen() == freeze
        stage.schedules.add("entry", "proj.add", every(60))
        before = datetime.now(UTC) - timedelta(milliseconds=1)
        paused = stage.schedules.pause("entry", "disk", seconds="2h")
        assert paused.paused_until is not None
        assert paused.paused_until >= before + timedelta(hours=2)
        assert (paused.status, paused.paused_note) == ("paused", "disk")

    def test_backfills_are_paused_resumed_and_cancelled(self, stage: Stage) -> None:
        """The past is run again by a backfill, which can be paused, resumed and cancelled."""
        backfills = stage.schedules.backfills
        assert isinstance(backfills, Backfills)
        stage.schedules.add("entry", "proj.add", every(60))
        end = datetime.now(UTC) - timedelta(hours=1)
        backfill = backfills.start("entry", end - timedelta(hours=1), end, max_active=None)
        assert isinstance(backfill, Backfill)
        assert backfill.left == backfill.total
        assert backfills.pause(backfill.id).paused
        assert not backfills.resume(backfill.id).paused
        assert backfills.cancel(backfill.id).ended == "cancelled"

    def test_what_was_set_aside_is_released_or_discarded(self, stage: Stage) -> None:
        """One bad entry is set aside with its error."""
        schedules = stage.schedules
        past = at(datetime.now(UTC) - timedelta(hours=1))
        for name in ("released", "discarded"):
            schedules.add(name, "proj.add", past)
        stage.client.hset("{redbeat-lite}:state", "released", "rubbish")
        stage.client.hset("{redbeat-lite}:entries", "discarded", "rubbish")
        with pytest.raises(CorruptEntry):
            schedules["discarded"]
        stage.beat()
        eventually(lambda: len(schedules.quarantined()) == 2)
        incident = eventually(schedules.incidents, what="an incident")[0]
        assert isinstance(incident, Incident)
        assert schedules.acknowledge(incident.id, "alice").acknowledged == "alice"
        assert schedules.release("released").name == "released"
        schedules.discard("discarded")
        assert not schedules.quarantined()

    def test_config_entries_that_are_refused_are_listed(self, stage: Stage) -> None:
        """One bad config entry never blocks the others."""
        stage.beat(beat_schedule={"bad": {"task": "proj.add", "schedule": -1}})
        assert "schedule" in stage.schedules.refused()["bad"]

    def test_each_change_tells_who_made_it(self, stage: Stage) -> None:
        """The last change of each entry stands beside its state."""
        with acting_as("alice"):
            stage.schedules.add("entry", "proj.add", every(60))
        change = stage.schedules["entry"].last_change
        assert isinstance(change, Change)
        assert change.actor == "alice"

    def test_a_newer_format_is_refused(self, stage: Stage) -> None:
        """A newer format version is refused with a clear message, not guessed at."""
        stage.client.hset("{redbeat-lite}:meta", "format", 10**6)
        with pytest.raises(UnsupportedFormat):
            stage.schedules.add("entry", "proj.add", every(60))

    def test_what_a_configuration_owns_is_changed_there(self, stage: Stage) -> None:
        """The configuration owns the definition of its entries, so an edit from elsewhere is refused."""
        stage.beat(beat_schedule={"mine": {"task": "proj.add", "schedule": 3600.0}})
        with pytest.raises(ConfigOwned):
            stage.schedules.update("mine", description="another")

    def test_a_wrong_setting_is_an_error_with_the_nearest_name(self, make_app: Any) -> None:
        """An unknown setting is an error with the nearest known name."""
        with pytest.raises(ConfigurationError, match="redbeat_lite_lease"):
            Schedules(make_app(redbeat_lite_leese=4)).list()
        assert issubclass(ConfigurationError, RedbeatError)


class TestEntries:
    def test_an_entry_says_what_became_of_it(self, stage: Stage) -> None:
        """You can ask what became of a run."""
        stage.worker()
        stage.beat()
        stage.schedules.add("fails", "proj.fail", every(0.2))
        eventually(lambda: stage.schedules["fails"].failures_in_a_row >= 2)
        entry = stage.schedules["fails"]
        assert isinstance(entry.last_run, Run)
        assert entry.last_success_at is None
        failed = stage.schedules.runs("fails", outcome="failed")
        assert failed[0].ended_at is not None
        stage.add_due("due")
        eventually(lambda: stage.schedules["due"].finished)
        due = stage.schedules["due"]
        assert due.total_run_count == 1
        assert due.last_run_at == due.schedule.instant
        assert due.last_task_id
        assert due.source == "runtime"
        assert due.generation
        stage.schedules.load_runs([due])

    def test_an_entry_is_a_value(self) -> None:
        """An Entry is read-only: to call ``save()`` raises an AttributeError that says what to call."""
        entry = Entry("entry", "proj.add", "1h", misfire=Misfire("all", limit=5), expect=Expect(start_within="5m"))
        assert entry.as_dict()["schedule"] == {"schedule": 3600.0}
        assert Entry.from_mapping("entry", {"task": "proj.add", "schedule": "1h"}).name == "entry"
        with pytest.raises(AttributeError, match=r"schedules\.update"):
            entry.save()

    def test_fields_have_types_for_annotations(self, stage: Stage) -> None:
        """The Python API has types for the annotations of your own functions."""
        once: OnceFields = {"lease": 5}
        misfire: MisfireFields = {"policy": "all"}
        expect: ExpectFields = {"start_within": "5m"}
        jitter: Duration = "5s"
        policies: Policies = {"once": once, "misfire": misfire, "expect": expect, "jitter": jitter}
        changes: Changes = {"description": "another"}
        stage.schedules.add("entry", "proj.add", every(60), **policies)
        assert stage.schedules.update("entry", **changes).jitter == 5


class Fortnight(CelerySchedule):  # type: ignore[misc]  # Celery ships no types
    """A schedule class of a user's."""

    def __init__(self) -> None:
        super().__init__(timedelta(days=14))


class TestRules:
    def test_every_kind_of_rule_is_stored_and_comes_back(self, stage: Stage) -> None:
        """A rule is stored and comes back as it was, also of a schedule class of yours."""
        register_schedule(Fortnight, lambda schedule: None, lambda data: Fortnight(), name="fortnight")
        rules = {
            "every": every("1h30m", align=True),
            "cron": cron("H H(0-5) * * *", tz="Asia/Tokyo"),
            "at": at(NOON),
            "rrule": rrule("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=18"),
            "manual": manual(),
            "own": Fortnight(),
        }
        for name, rule in rules.items():
            added = stage.schedules.add(name, "proj.add", rule)
            assert stage.schedules[name].schedule == added.schedule
        assert stage.schedules["manual"].next_run_at is None


class TestLocks:
    def test_a_lock_is_held_listed_and_lost(self, stage: Stage) -> None:
        """A holder that lost its lock learns so."""
        assert isinstance(locks(stage.app), Locks)
        with lock(stage.app, "key", lease=1) as held:
            assert isinstance(held, LockHandle)
            assert held.fence
            held.check()
            info = locks(stage.app).get("key")
            assert isinstance(info, LockInfo)
            assert info.state == "running"
            locks(stage.app).clear("key")
            eventually(lambda: held.lost, what="the loss of the lock")
            with pytest.raises(LockLost):
                held.check()

    def test_a_conflict_is_a_failure_if_asked_for(self, stage: Stage, tmp_path: Path) -> None:
        """``"raise"`` ends the second call as FAILURE with OnceRejected."""
        backend = {"result_backend": stage.server.url}
        stage.app.conf.update(backend)
        stage.worker(**backend)
        note = stage.app.task(name="proj.note", base=Task, shared=False)(note_text)
        path = str(tmp_path / "texts")
        first = note.apply_async((path, "first", 1), once_key="key")
        eventually(lambda: locks(stage.app).list())
        with pytest.raises(OnceRejected):
            note.apply_async((path, "second"), once_key="key", on_conflict="raise").get(timeout=60)
        first.get(timeout=60)

    def test_a_policy_is_a_value(self) -> None:
        """``Once.but`` returns the same policy with some fields changed."""
        assert Once(key="key", lease=5).but(on_conflict="raise") == Once(key="key", lease=5, on_conflict="raise")


def note_text(path: str, text: str, seconds: float = 0.0) -> None:
    """The task of the worker's app."""


class TestPipelines:
    @pytest.fixture
    def app(self, stage: Stage) -> Celery:
        """The app of the stage, with steps."""
        for name in ("proj.step", "proj.broken", "proj.refuse", "proj.process"):
            stage.app.task(name=name, base=PipelineTask, shared=False)(load)
        return stage.app

    def test_runs_end_and_tell_how(self, stage: Stage, app: Celery) -> None:
        """An exception or ``(False, …)`` stops the pipeline."""
        stage.worker()
        broken = Pipeline(app, [("proj.broken", 1)]).start("run-1")
        assert isinstance(broken, PipelineRun)
        ended_run = broken.wait(30)
        assert isinstance(ended_run, RunStatus)
        assert ended_run.ended
        assert ended_run.state == State.FAILED
        assert ended_run.percent == 0
        assert ended_run.as_json()["state"] == "FAILED"
        assert isinstance(ended_run.steps[0], StepStatus)
        assert ended_run.step(ended_run.steps[0].name) == ended_run.steps[0]
        assert "run-1" in progress_line(ended_run)
        assert [listed.id for listed in PipelineRun.list(app)] == ["run-1"]
        assert [brief.state for brief in PipelineRun.brief(app)] == [State.FAILED]
        broken.resume()
        assert broken.wait(30).state == State.FAILED

        refused = Pipeline(app, [("proj.refuse", 1)]).start().wait(30)
        assert StepFailed.__name__ in (refused.error or "")
        assert refused.steps[0].percent == 50

        # The form of data that dispatchers of sub-tasks use.
        run = start_task_process({"sub_tasks": [["proj.process", 1]], "params": {"day": "today"}}, app=app)
        assert run.wait(30).state == State.SUCCEEDED
        assert run.params() == {"day": "today", "seen": True}
        with pytest.raises(NotResumable):
            run.resume()

    def test_a_run_is_cancelled(self, app: Celery) -> None:
        """``run.cancel()``: start nothing more. An unknown id raises PipelineNotFound."""
        run = Pipeline(app, [("proj.step", 1)]).start()
        run.cancel()
        assert run.status().state == State.ABORTED
        assert sweep(app) >= 0
        with pytest.raises(PipelineNotFound):
            PipelineRun(app, "no-such-run").params()


def load(params: dict[str, Any]) -> dict[str, Any]:
    """A step that does nothing."""
    return {}


class TestWatching:
    def test_the_status_and_the_doctor_report_on_beats(self, stage: Stage) -> None:
        """``status`` says who leads, and ``doctor`` says what to mend."""
        beat = stage.beat()
        report = status(stage.app)
        assert isinstance(report, Status)
        assert report.leader is not None
        assert report.leader.pid == beat.pid
        findings = list(examine(stage.app))
        assert isinstance(findings[0], Finding)
        assert "the server keeps nothing on disk" in [finding.what for finding in findings]

    def test_celery_knows_the_scheduler_by_a_short_name(self, stage: Stage) -> None:
        """The entry point ``redbeat_lite`` of ``celery.beat_schedulers`` is the scheduler."""
        beat = stage.start("beat", "-S", "redbeat_lite", "-l", "INFO")
        beat.says(r"scheduler -> redbeat_lite\.Scheduler")
        beat.says("beat: leading")

    def test_hooks_hear_of_what_a_beat_does(self, stage: Stage, tmp_path: Path) -> None:
        """A beat reports what it does to hooks, in an event for each method."""
        journal = tmp_path / "heard"
        schedules = stage.schedules
        past = at(datetime.now(UTC) - timedelta(hours=1))
        schedules.add("late", "proj.add", past, misfire="skip")
        schedules.add("spoilt", "proj.add", past)
        stage.client.hset("{redbeat-lite}:entries", "spoilt", "rubbish")
        stage.client.set("odd", "not a list")
        stage.add_due("refused", options={"queue": "odd"})
        schedules.add("single", "proj.add", every(0.2), once=True)
        beat = stage.beat(proj_heard=str(journal))
        at_the_end = {Hooks.incident_closed, Hooks.leader_lost}
        eventually(lambda: heard(journal) >= calls(EVENTS.keys() - at_the_end), what="events")
        schedules.discard("spoilt")
        eventually(lambda: heard(journal) >= calls({Hooks.incident_closed}), what="the end of the incident")
        stage.usurp()
        beat.says("no longer leading")
        eventually(lambda: heard(journal) == calls(EVENTS.keys()), what="all events")

    def test_the_hooks_are_all_heard_of_here(self) -> None:
        """A beat reports what it does to hooks, in an event for each method."""
        methods = {name for name in vars(Hooks) if not name.startswith("_")}
        assert {hook.__name__ for hook in EVENTS} == methods


#: Each hook, and the class of its events.
EVENTS: dict[Callable[..., None], type] = {
    Hooks.dispatched: Dispatched,
    Hooks.misfired: Misfired,
    Hooks.skipped: Skipped,
    Hooks.failed: Failed,
    Hooks.quarantined: Quarantined,
    Hooks.leader_gained: LeaderGained,
    Hooks.leader_lost: LeaderLost,
    Hooks.ticked: Ticked,
    Hooks.incident_opened: IncidentOpened,
    Hooks.incident_closed: IncidentClosed,
}


def calls(hooks: Iterable[Callable[..., None]]) -> set[str]:
    """The calls of these hooks, as ``proj.Journal`` writes them down."""
    return {f"{hook.__name__} {EVENTS[hook].__name__}" for hook in hooks}


def heard(journal: Path) -> set[str]:
    """The calls of hooks that are written down."""
    return set(journal.read_text().splitlines()) if journal.exists() else set()


class TestTesting:
    def test_a_day_of_the_schedule_passes_at_once(self, stage: Stage) -> None:
        """A test can ask what runs on a day, without a beat, a server or a wait."""
        clock = schedule_clock("2026-03-29", app=stage.app, entries=[Entry("hourly", "proj.add", "1h")])
        assert isinstance(clock, ScheduleClock)
        day = clock.run("3h")
        assert isinstance(day[0], Fired)
        assert [fired.name for fired in day].count("hourly") == 2
        assert next(iter(clock.walk("1h"))).nominal > day[-1].nominal
        assert clock.now > day[-1].at

    def test_a_pipeline_is_rehearsed_without_a_worker(self, stage: Stage) -> None:
        """``rehearse()`` runs a pipeline at once, in the process of the test."""
        stage.app.task(name="proj.step", base=PipelineTask, shared=False)(count)
        rehearsal = rehearse(Pipeline(stage.app, [("proj.step", 1)], params={"rows": 1}))
        assert isinstance(rehearsal, Rehearsal)
        assert rehearsal.params == {"rows": 2}


def count(params: dict[str, Any]) -> dict[str, Any]:
    """A step that counts one row more."""
    return {"rows": params["rows"] + 1}


class TestPage:
    """You can look instead of type: the page, in whatever serves it."""

    def test_a_site_answers_requests(self, stage: Stage) -> None:
        """``Site.handle`` answers a request of any host with a response."""
        site = Site(stage.app, access=lambda request: Access("ada", frozenset(RIGHTS)))
        answer = site.handle(PageRequest("GET", "/entries", "", {}))
        assert isinstance(answer, Response)
        assert answer.status == 200

    def test_wsgi_serves_it(self, stage: Stage) -> None:
        """Flask and other WSGI hosts mount the page."""
        page = wsgi(stage.app, access=lambda request: Access("ada", frozenset({"view"})))
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/entries", "QUERY_STRING": ""}
        began: list[str] = []
        body = b"".join(page(environ, lambda status, headers: began.append(status)))
        assert began == ["200 OK"]
        assert b"<html" in body

    def test_asgi_serves_it(self, stage: Stage) -> None:
        """FastAPI and other ASGI hosts mount the page."""
        page = asgi(stage.app, access=lambda request: Access("ada", frozenset({"view"})))
        scope = {"type": "http", "method": "GET", "path": "/entries", "query_string": b"", "headers": []}
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(page(scope, receive, send))
        assert sent[0]["status"] == 200


#: Public name that no test of this folder uses -> the reason.
ELSEWHERE = {
    "urls": "Django is set up once for a process; tests/web has a project with it",
    "view": "as urls",
    "access": "as urls",
    "LockUnavailable": "a server that is away is asked for eight seconds; tests/once has it",
}


def test_the_version_is_that_of_the_distribution() -> None:
    """``__version__`` is the version of the installed distribution."""
    assert redbeat_lite.__version__ == metadata.version("redbeat_lite")


def test_every_public_name_is_used_here() -> None:
    """Names on the page of the Python API and in ``__all__`` are public, and each of them is used by a test."""
    modules = ("", ".operate", ".pipeline", ".testing", ".web")
    listed = {name for module in modules for name in import_module(f"redbeat_lite{module}").__all__}
    page = document("api.md").read_text()
    named = re.findall(r"^\.\. (?:auto\w+|data):: (?:\w+\.)+(\w+)", page, re.MULTILINE)
    public = {*listed, *named}
    for members in re.findall(r":members: ([^:`]*?)\n(?:   :|\n|\.\.|```)", page):
        public.update(re.split(r",\s+", members.strip()))
    assert len(public) > 150
    missing = sorted(public - used_names() - {*ELSEWHERE})
    assert not missing


def used_names() -> set[str]:
    """The names and attributes that code of this folder uses.

    An import, a definition, and an annotation of a function are no use.
    """
    used: set[str] = set()
    for path in Path(__file__).parent.glob("*.py"):
        for node in walk_code(ast.parse(path.read_text())):
            if isinstance(node, ast.Name):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
    return used


def walk_code(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, without the annotations of functions."""
    yield node
    for field, value in ast.iter_fields(node):
        is_annotation = field == "returns" or (field == "annotation" and isinstance(node, ast.arg))
        if is_annotation:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from walk_code(child)
