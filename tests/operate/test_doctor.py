"""Each finding of the doctor, provoked on a real server; and none of them without its cause."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab
from freezegun import freeze_time

from redbeat_lite import Entry, Scheduler, Schedules, Task, cron, every, rrule
from redbeat_lite.entries.words import listed
from redbeat_lite.once.lock_store import OnceKeys
from redbeat_lite.operate.doctor import examine
from redbeat_lite.operate.examination import Finding
from tests.operate.test_commands import redbeat
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp
from tests.support.run_records import Worker
from tests.support.server import Server
from tests.support.waiting import eventually


def found(app: Celery, check: str) -> list[Finding]:
    return [finding for finding in examine(app) if finding.check == check]


def the(app: Celery, check: str) -> Finding:
    """The one finding of this check, which says all it has to."""
    [finding] = found(app, check)
    assert all(text.strip().endswith((".", "?")) for text in (finding.why, finding.todo))
    assert finding.what
    assert not finding.what.endswith(".")
    return finding


def redelivered(app: Celery) -> set[str]:
    """The entries of which it says that their messages come twice."""
    sentences = [re.search(r"Messages of (.*?) live as long", finding.why) for finding in found(app, "queue")]
    return {name for each in sentences if each is not None for name in re.findall("'(.*?)'", each[1])}


def naive(now: datetime, **length: int) -> datetime:
    """An instant without a zone, as an app in UTC writes it."""
    return (now + timedelta(**length)).astimezone(UTC).replace(tzinfo=None)


def register(client: redis.Redis, **worker: Any) -> None:
    """A worker with ``install()`` as it reports itself."""
    seconds, _ = client.time()  # type: ignore[misc]
    said = {"queues": ["celery"], "at": float(seconds), **worker}
    workers = OnceKeys("redbeat-lite").workers
    client.hset(workers, "worker@host", json.dumps(said))
    client.expire(workers, 60)


@pytest.fixture
def plain(own_server: Callable[..., Server], make_app: MakeApp) -> Celery:
    """An app about which there is nothing to say."""
    app = make_app(broker_url=own_server(appendonly="yes").url, redbeat_lite_lease=4)

    @app.task(name="add", shared=False)
    def add() -> None: ...

    return app


def test_there_is_nothing_to_say_about_a_sound_schedule(plain: Celery, make_beat: Callable[..., Scheduler]) -> None:
    beat = make_beat(plain)
    schedules = Schedules(plain)
    schedules.add("a", "add", every(60))
    schedules.add("nightly", "add", cron("30 4 * * *", tz="Europe/Berlin"), expires=600)
    beat.run_due()
    assert examine(plain) == []


class TestServer:
    @together(("shift", "severity"), [(5, "warning"), (-120, "error")], emptied=True)
    def test_a_clock_that_differs_from_the_servers(self, app: Celery, shift: int, severity: str) -> None:
        # This machine's clock goes on meanwhile: one that stood still would be the further behind the slower all is.
        with freeze_time(datetime.now(UTC) + timedelta(seconds=shift), tick=True, ignore=["redis"]):
            finding = the(app, "clock")
        assert finding.severity == severity
        seconds = float(finding.what.split(" is ")[1].split(" s ")[0])
        assert abs(shift) - 2 < seconds < abs(shift) + 2
        assert ("ahead of" if shift > 0 else "behind") in finding.what

    def test_a_server_that_evicts(self, app: Celery, client: redis.Redis) -> None:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            finding = the(app, "eviction")
        finally:
            client.config_set("maxmemory-policy", "noeviction")
        assert finding.severity == "error"
        assert "allkeys-lru" in finding.what
        assert not found(app, "eviction")

    def test_a_server_that_keeps_nothing_on_disk(self, app: Celery) -> None:
        assert the(app, "persistence").severity == "warning"

    def test_a_server_that_is_too_old(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not found(app, "version")
        monkeypatch.setattr("redbeat_lite.store.server_check.OLDEST", (99, 1))
        finding = the(app, "version")
        assert finding.severity == "error"
        assert "99.1 or later" in finding.todo

    def test_a_server_that_may_not_be_asked_is_a_note(self, app: Celery, client: redis.Redis) -> None:
        client.execute_command("ACL", "SETUSER", "default", "-info")
        try:
            assert not [finding for finding in examine(app) if finding.check in ("version", "eviction", "persistence")]
            assert the(app, "permission").severity == "note"
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+info")


class TestLease:
    def test_a_lease_that_is_longer_than_a_leader_may_hang(self, make_app: MakeApp) -> None:
        finding = the(make_app(redbeat_lite_lease=1500, beat_max_loop_interval=300), "lease")
        assert finding.severity == "warning"
        assert "1500 s" in finding.what
        assert "beat_max_loop_interval (300 s)" in finding.why

    def test_a_server_that_is_too_slow_for_the_lease(self, make_app: MakeApp, server: Server) -> None:
        app = make_app(redbeat_lite_lease=1)
        assert not found(app, "lease")
        stop = threading.Event()

        def keep_waiting() -> None:
            with server.client() as other:
                while not stop.is_set():
                    other.client_pause(200)  # this connection too: the next one comes as soon as it is over

        thread = threading.Thread(target=keep_waiting)
        thread.start()
        try:
            # Whether a look comes when everybody waits is chance, on a machine that is busy itself.
            finding, *_ = eventually(lambda: found(app, "lease"), what="a slow answer")
        finally:
            stop.set()
            thread.join()
        assert finding.severity == "error"
        assert "a renewal of the lease of 1 s may take 0.25 s" in finding.what
        assert "redbeat_lite_lease to" in finding.todo


class TestEntries:
    def test_a_task_that_nobody_registered(self, app: Celery, schedules: Schedules) -> None:
        app.conf.redbeat_lite_expires = None
        schedules.add("a", "ad", every(60))
        schedules.add("b", "ad", every(60))
        schedules.add("c", "add", every(60))
        finding = the(app, "task")
        assert (finding.severity, finding.entries) == ("warning", ("a", "b"))
        assert "'ad', which is no task of this app" in finding.what
        assert finding.todo.startswith("Did you mean 'add'?")
        app.task(name="shop.sync", shared=False)(listed)
        schedules.add("d", "shop.gone", every(60))
        todo = {name: each.todo for each in found(app, "task") for name in each.entries}
        assert todo["d"].startswith("Correct the name"), "none is spelt like it"

    def test_overdue_entries_and_nobody_who_would_send_them(
        self, app: Celery, schedules: Schedules, clock: Clock, client: redis.Redis
    ) -> None:
        clock.set(datetime.fromtimestamp(client.time()[0] - 100, UTC))  # type: ignore[index]
        schedules.add("late", "add", every(10))
        clock.forward(100)
        schedules.add("soon", "add", every(60))
        finding = the(app, "overdue")
        assert (finding.severity, finding.entries) == ("error", ("late",))
        assert finding.what.startswith("1 entry is overdue, the first one by 9")
        assert "no beat has ever led" in the(app, "leader").what

    def test_entries_that_cannot_be_read_and_are_not_due_yet(
        self, app: Celery, schedules: Schedules, client: redis.Redis
    ) -> None:
        for name in ("definition", "state", "newer", "gone", "sound"):
            schedules.add(name, "add", every(60))
        client.hset(KEYS.entries, "definition", "{")
        client.hset(KEYS.state, "state", "x")
        client.hset(KEYS.entries, "newer", json.dumps({"v": 99}))
        client.hdel(KEYS.entries, "gone")
        client.zadd(KEYS.due, {b"\xff": 10**13})
        client.hset(KEYS.entries, b"\xff", "{}")
        finding = the(app, "unreadable")
        assert finding.severity == "error"
        assert set(finding.entries) == {"definition", "state", "newer", "gone", "\\xff"}
        assert finding.what.startswith("5 entries cannot be read: ")

    def test_entries_whose_publish_fails(
        self, app: Celery, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        for name, queue in (("first", "no list"), ("second", "no list"), ("sound", "celery")):
            schedules.add(name, "add", every(10), options={"queue": queue})
        client.set("no list", "so that messages are refused")
        clock.forward(10)
        inner_beat.run_due()
        finding = the(app, "failing")
        assert (finding.severity, set(finding.entries)) == ("warning", {"first", "second"})
        assert finding.what == "2 entries cannot be published: 'first', 'second'"
        assert f"The first one: {schedules['first'].last_error}." in finding.why
        client.delete("no list")
        clock.forward(10)
        inner_beat.run_due()
        assert not found(app, "failing")

    def test_an_entry_in_quarantine(
        self, app: Celery, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("bad", "add", every(10))
        client.hset(KEYS.entries, "bad", "{")
        clock.forward(10)
        inner_beat.run_due()
        finding = the(app, "quarantine")
        assert (finding.severity, finding.entries) == ("error", ("bad",))
        assert "not readable as JSON" in finding.why

    def test_nobody_leads_and_nothing_is_stored_of_what_the_app_has(
        self, make_app: MakeApp, make_beat: Callable[..., Scheduler], client: redis.Redis
    ) -> None:
        assert not found(make_app(), "leader"), "neither has that"
        app = make_app(beat_schedule={"a": {"task": "add", "schedule": 60}})
        assert "no beat has ever led" in the(app, "leader").what
        beat = make_beat(app)
        beat.run_due()
        assert not found(app, "leader")
        beat.close()
        client.flushall()
        assert the(app, "leader").severity == "error"

    def test_names_of_the_configuration_that_somebody_else_has(self, make_app: MakeApp) -> None:
        entry = {"task": "add", "schedule": 60}
        app = make_app(beat_schedule={"mine": entry, "runtime": entry, "theirs": entry}, redbeat_lite_owner="me")
        Schedules(app).add("runtime", "add", every(60))
        theirs = {"theirs": {**entry, "schedule": 30}}
        other = make_app(beat_schedule=theirs, redbeat_lite_owner="other")
        beat = Scheduler(other)
        beat.run_due()
        beat.close()
        finding = the(app, "refused")
        assert (finding.severity, finding.entries) == ("error", ("runtime", "theirs"))
        assert "the name is taken by a runtime entry" in finding.why
        assert "rename one of the two entries" in finding.todo
        Schedules(app).remove("runtime")
        assert "the name is taken by the configuration of 'other'" in the(app, "refused").why

    def test_names_that_clash_are_told_once(self, make_app: MakeApp, make_beat: Callable[..., Scheduler]) -> None:
        app = make_app(beat_schedule={"taken": {"task": "add", "schedule": 60}})
        Schedules(app).add("taken", "add", every(60))
        beat = make_beat(app)
        beat.run_due()
        assert {*Schedules(app).refused()} == {*the(app, "refused").entries} == {"taken"}
        beat.close()
        assert the(app, "refused").entries == ("taken",)

    def test_entries_that_the_beat_refuses_until_it_has_read_them_mended(
        self, make_app: MakeApp, make_beat: Callable[..., Scheduler]
    ) -> None:
        good, wrong = {"task": "add", "schedule": 60}, {"task": "add", "schedule": "whenever"}
        app = make_app(beat_schedule={"good": good, "typo": {**good, "expire": 5}, "wrong": wrong})
        beat = make_beat(app)
        beat.run_due()
        finding = the(app, "refused")
        assert (finding.severity, finding.entries) == ("error", ("typo", "wrong"))
        assert finding.what == "2 config entries of 'proj' refused: 'typo', 'wrong'"
        assert "expire: expected a known field, got 5" in finding.why
        app.conf.beat_schedule = {"good": good}
        assert the(app, "refused").entries == ("typo", "wrong"), "the beat that leads has not read it"
        beat.close()
        make_beat(app).run_due()
        assert not found(app, "refused")

    def test_entries_that_a_beat_would_refuse_while_none_of_this_app_leads(
        self, make_app: MakeApp, make_beat: Callable[..., Scheduler]
    ) -> None:
        def app_with(name: str) -> Celery:
            wrong = {"task": "add", "schedule": "whenever"}
            return make_app(name, beat_schedule={name: wrong, f"{name} too": {"task": "add", "schedule": 60}})

        app = app_with("ours")
        assert the(app, "refused").entries == ("ours",), "nobody leads"
        make_beat(app_with("theirs")).run_due()
        told = {each.entries: each.what for each in found(app, "refused")}
        assert told.keys() == {("ours",), ("theirs",)}
        assert "1 config entry of 'theirs' refused" in told["theirs",]

    def test_what_two_apps_both_have_is_no_clash(self, make_app: MakeApp, make_beat: Callable[..., Scheduler]) -> None:
        entries = {"cleanup": {"task": "celery.backend_cleanup", "schedule": crontab("0", "4", "*")}}
        make_beat(make_app("first", beat_schedule=entries)).run_due()
        second = make_app("second", beat_schedule=entries)
        assert not found(second, "refused")
        assert not found(second, "not-stored")

    def test_entries_that_wait_while_a_beat_of_another_app_leads(
        self, make_app: MakeApp, make_beat: Callable[..., Scheduler]
    ) -> None:
        entry: dict[str, Any] = {"task": "add", "schedule": 60}
        over = {"over": {**entry, "end_at": datetime(2020, 1, 1, tzinfo=UTC)}}
        apps = [make_app(name, beat_schedule={name: entry, **over}) for name in ("first", "second")]
        leader = make_beat(apps[0])
        leader.run_due()
        finding = the(apps[1], "not-stored")
        assert (finding.severity, finding.entries) == ("warning", ("second",))
        assert "'first' leads" in finding.why
        assert [each.entries for each in found(apps[1], "refused")] == [("over",), ("over",)], "each app's own"
        assert not found(apps[0], "not-stored")
        leader.close()
        assert not found(apps[1], "not-stored"), "nobody leads, which is another finding"

    def test_entries_of_an_owner_who_has_no_beat(self, make_app: MakeApp, make_beat: Callable[..., Scheduler]) -> None:
        old = make_app("old", beat_schedule={"gone": {"task": "add", "schedule": 60}})
        beat = make_beat(old)
        beat.run_due()
        new = make_app("new")
        assert not found(new, "owner")
        beat.close()
        finding = the(new, "owner")
        assert (finding.severity, finding.entries) == ("warning", ("gone",))
        assert "redbeat_lite_owner = 'old'" in finding.todo
        assert not found(old, "owner"), "they are its own"

    def test_a_large_schedule_is_looked_at_in_part_and_it_says_so(self, app: Celery, schedules: Schedules) -> None:
        schedules.add_many(Entry(f"e{n}", "nobody.knows", 60 + n) for n in range(3))
        findings = {finding.check: finding for finding in examine(app, limit=2)}
        assert "of 3 entries, at most 2 were looked at" in findings["entries"].what
        assert "redbeat doctor looks at 50000" in findings["entries"].todo
        assert findings["task"].entries == ("e0", "e1")


class TestTime:
    def test_a_day_of_month_beside_a_day_of_week(self, app: Celery, schedules: Schedules) -> None:
        schedules.add("both by celery", "add", crontab(0, 3, day_of_month="1-7", day_of_week="mon"))
        schedules.add("nth", "add", cron("0 3 * * mon#1"))
        assert not found(app, "either-day")
        schedules.add("first monday", "add", cron("0 3 */100,1-7 * MON"))
        finding = the(app, "either-day")
        assert finding.severity == "warning"
        assert finding.entries == ("first monday",)
        assert "on about 124 days a year" in finding.todo
        assert "write 'MON#1'" in finding.todo

    def test_a_time_at_which_many_entries_run(self, make_app: MakeApp, clock: Clock) -> None:
        app = make_app(timezone="Europe/Berlin")
        schedules = Schedules(app)
        schedules.add_many(Entry(f"midnight-{n}", "add", crontab(hour=0, minute=0)) for n in range(25))
        schedules.add_many(Entry(f"jitter-{n}", "add", crontab(hour=0, minute=0), jitter=60) for n in range(25))
        schedules.add_many(Entry(f"minute-{n}", "add", cron("* * * * *")) for n in range(25))
        schedules.add_many(Entry(f"spread-{n}", "add", cron(f"{n} 5 * * *")) for n in range(25))
        schedules.add_many(Entry(f"six-{n}", "add", cron("0 6 * * *", tz="Asia/Kolkata")) for n in range(19))
        finding = the(app, "hot-spot")
        assert finding.severity == "note"
        assert finding.what == "25 entries run next at the same times, without jitter: 25 at 00:00"
        schedules.add("six-20", "add", cron("0 6 * * *", tz="Asia/Kolkata"))
        assert the(app, "hot-spot").what.endswith("25 at 00:00, 20 at 01:30")

    def test_entries_that_run_each_minute_are_no_crowd(self, make_app: MakeApp) -> None:
        app = make_app()
        rules = {"minute": cron("* * * * *"), "seconds": cron("* * * * * 0,30"), "second": every(1)}
        hourly = {"hourly": cron("0 * * * *"), "aligned": every(3600, align=True), "rrule": rrule("FREQ=HOURLY")}
        Schedules(app).add_many(
            Entry(f"{kind}-{n}", "add", rule) for kind, rule in {**rules, **hourly}.items() for n in range(20)
        )
        crowd = {name.rpartition("-")[0] for name in the(app, "hot-spot").entries}
        assert crowd == {"hourly", "aligned", "rrule"}


class TestMessages:
    def test_messages_that_outlive_the_visibility_timeout(
        self, app: Celery, schedules: Schedules, client: redis.Redis
    ) -> None:
        app.conf.task_acks_late = True
        app.tasks["add"].acks_late = True
        schedules.add("short", "add", every(60))
        schedules.add("just short", "add", cron("0 4 * * *"), expires=3599)
        schedules.add("daily", "add", cron("0 4 * * *"))
        schedules.add("hour", "add", every(3600))
        schedules.add("never", "add", every(60), expires=None)
        schedules.add("elsewhere", "add", every(7200), options={"queue": "slow"})
        schedules.add("by option", "add", every(60), options={"expires": 7200})
        schedules.add("cleanup", "celery.backend_cleanup", cron("0 4 * * *"), options={"expires": 12 * 3600})
        assert redelivered(app) == {"daily", "hour", "never", "elsewhere", "by option"}
        assert {each.severity for each in found(app, "queue")} == {"warning"}
        register(client)
        assert redelivered(app) == {"elsewhere"}, "a worker keeps the messages of the other queue"
        register(client, queues=["celery", "slow"])
        assert not found(app, "queue")
        register(client, at=time.time() - 120)
        assert "elsewhere" in redelivered(app), "that worker has not been heard of for two minutes"
        app.conf.broker_transport_options = {"visibility_timeout": 10 * 86_400}
        assert redelivered(app) == {"never"}
        app.conf.task_acks_late = app.tasks["add"].acks_late = False
        assert not found(app, "queue"), "the message has gone when its task begins"

    def test_runs_that_nobody_records(
        self, app: Celery, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        for name, seconds in (("a", 10), ("b", 60)):
            schedules.add(name, "add", every(seconds))
        assert not found(app, "workers"), "nothing has run yet"
        clock.forward(10)
        inner_beat.run_due()
        finding = the(app, "workers")
        assert (finding.severity, finding.entries) == ("warning", ("a",))
        register(client)
        assert not found(app, "workers")

    def test_entries_whose_runs_fail(
        self, app: Celery, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        for name in ("a", "b"):
            schedules.add(name, "add", every(10))
        clock.forward(10)
        inner_beat.run_due()
        worker = Worker(client)
        worker.tells("a", "failed", error="ValueError: no such customer")
        worker.tells("b", "succeeded")
        finding = the(app, "outcomes")
        assert (finding.severity, finding.entries) == ("note", ("a",))
        clock.forward(10)
        inner_beat.run_due()
        worker.tells("a", "succeeded")
        assert not found(app, "outcomes")

    @pytest.mark.parametrize(("ahead", "severity"), [(3.0, "warning"), (7.5, "error"), (-7.5, "warning")])
    def test_workers_whose_clocks_are_wrong(
        self, app: Celery, client: redis.Redis, ahead: float, severity: str
    ) -> None:
        register(client, ahead=0.1)
        assert not found(app, "worker-clock")
        register(client, ahead=ahead)
        finding = the(app, "worker-clock")
        assert finding.severity == severity
        assert f"worker@host ({abs(ahead)} s {'ahead' if ahead > 0 else 'behind'})" in finding.what
        app.conf.redbeat_lite_clock_slack = 60
        assert the(app, "worker-clock").severity == "warning"

    def test_messages_that_live_until_an_instant(self, app: Celery, schedules: Schedules, clock: Clock) -> None:
        def until(**length: int) -> dict[str, datetime]:
            return {"expires": clock.now + timedelta(**length)}

        app.tasks["add"].acks_late = True
        schedules.add("for long", "add", every(60), options=until(hours=2))
        schedules.add("for long here", "add", every(60), options={"expires": naive(clock.now, hours=2)})
        schedules.add("soon", "add", every(60), options=until(minutes=30))
        schedules.add("over", "add", every(60), options=until(hours=-2))
        schedules.add("over when it is sent", "add", every(86_400), options=until(hours=2))
        assert redelivered(app) == {"for long", "for long here"}

    def test_a_broker_without_such_a_timeout_is_not_spoken_of(self, make_app: MakeApp, server: Server) -> None:
        app = make_app(broker_url="memory://", redbeat_lite_url=server.url, task_acks_late=True)
        Schedules(app).add("never", "add", every(60), expires=None)
        assert not found(app, "queue")

    def test_a_broker_that_is_not_asked_to_confirm(self, make_app: MakeApp, server: Server) -> None:
        app = make_app(broker_url="amqp://nobody-asks-it", redbeat_lite_url=server.url)
        finding = the(app, "confirm")
        assert finding.severity == "warning"
        assert '{"confirm_publish": True}' in finding.todo
        app.conf.broker_transport_options = {"confirm_publish": True}
        assert not found(app, "confirm")

    def test_once_locks_that_no_worker_looks_after(
        self, app: Celery, schedules: Schedules, client: redis.Redis
    ) -> None:
        app.conf.task_routes = {"routed": {"queue": "slow"}, "third": {"queue": "third"}}
        schedules.add("plain", "add", every(60))
        schedules.add("third", "third", every(60))
        assert not found(app, "queue"), "nobody reports, so nothing is known"
        schedules.add("once", "add", every(60), once=True)
        schedules.add("routed", "routed", every(60), once=True)
        findings = found(app, "queue")
        assert [finding.severity for finding in findings] == ["warning", "warning"]
        assert {finding.entries for finding in findings} == {("plain", "once"), ("routed",)}
        assert all(finding.why.startswith("Once-locks of ") for finding in findings)
        register(client)
        warned, noted = found(app, "queue")
        assert (warned.severity, warned.entries) == ("warning", ("routed",))
        assert (noted.severity, noted.entries) == ("note", ("third",))
        assert "no worker with install() reads queue 'third'" in noted.what
        assert "with -Q third" in noted.todo
        register(client, queues=["slow", "celery", "third"])
        assert not found(app, "queue")

    def test_retries_that_no_worker_keeps_from_expiring(
        self, app: Celery, schedules: Schedules, client: redis.Redis
    ) -> None:
        @app.task(name="bound", bind=True, shared=False)
        def bound(self: Any) -> None: ...

        @app.task(name="auto", autoretry_for=(OSError,), shared=False)
        def auto() -> None: ...

        @app.task(name="ours", bind=True, base=Task, shared=False)
        def ours(self: Any) -> None: ...

        for name in ("add", "bound", "auto", "ours"):
            schedules.add(name, name, every(60))
        schedules.add("for ever", "bound", every(60), expires=None)
        finding = the(app, "queue")
        assert finding.severity == "warning"
        assert re.match("Celery gives a retry of ('bound', 'auto'|'auto', 'bound') the expires of", finding.why)
        assert finding.todo.startswith("Call redbeat_lite.install(app) where the app is made")
        register(client)
        assert not found(app, "queue")


def test_names_are_told_in_short() -> None:
    assert listed("ab") == "'a', 'b'"
    assert listed("abcdefg") == "'a', 'b', 'c', 'd', 'e' and 2 more"


class TestCommand:
    def test_it_prints_findings_and_exits_by_the_gravest(
        self, own_server: Callable[..., Server], make_app: MakeApp
    ) -> None:
        server = own_server(appendonly="yes")
        sound = redbeat(server.url, "doctor")
        assert (sound.returncode, sound.stdout) == (0, "0 errors, 0 warnings, 0 notes\n"), sound.stderr
        with server.client() as client:
            client.config_set("appendonly", "no")
            warned = redbeat(server.url, "doctor", "--json")
            [finding] = json.loads(warned.stdout)
            assert warned.returncode == 3
            assert finding.keys() == {"check", "severity", "what", "why", "todo", "entries"}
            client.hset(KEYS.entries, "torn", "no JSON")  # found after that
            client.zadd(KEYS.due, {"torn": 4e12})
            found = json.loads(redbeat(server.url, "doctor", "--json").stdout)
            assert [each["check"] for each in found] == ["leader", "unreadable", "persistence"]
            client.delete(KEYS.entries, KEYS.due)
            client.config_set("maxmemory-policy", "allkeys-lru")
        grave = redbeat(server.url, "doctor")
        assert grave.returncode == 4
        assert grave.stdout.startswith("ERROR eviction: the server evicts keys when memory runs out")
        assert "\n  why:  The schedule is among the keys" in grave.stdout
        assert "\n  do:   Set maxmemory-policy noeviction" in grave.stdout
        assert grave.stdout.endswith("1 error, 1 warning, 0 notes\n")
        assert max(map(len, grave.stdout.splitlines())) <= 80

    def test_without_a_server_it_says_so(self) -> None:
        failed = redbeat("redis://127.0.0.1:1/0", "doctor")
        assert (failed.returncode, len(failed.stderr.splitlines()), failed.stdout) == (2, 1, "")
