"""The doctor and the beat in set-ups as real projects have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dateutil.tz
import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat_lite import Schedules, cron, every, rrule
from redbeat_lite.operate.doctor import examine
from redbeat_lite.operate.examination import Finding
from tests.support.cases import together
from tests.support.in_process import MakeApp, MakeBeat, one_turn
from tests.support.server import Server
from tests.support.waiting import eventually


def found(app: Celery, check: str) -> list[Finding]:
    return [finding for finding in examine(app) if finding.check == check]


def test_a_zone_of_dateutil_which_has_no_hash_is_as_good_as_any_other(make_app: MakeApp, make_beat: MakeBeat) -> None:
    schedule = {
        "crontab": {"task": "t", "schedule": crontab(minute=0)},
        "cron": {"task": "t", "schedule": cron("0 3 * * *")},
        "rrule": {"task": "t", "schedule": rrule("FREQ=DAILY;BYHOUR=3")},
    }
    app = make_app(timezone=dateutil.tz.gettz("Europe/Berlin"), beat_schedule=schedule)
    schedules = one_turn(app, make_beat)
    assert (schedules.refused(), {*schedules}) == ({}, {"crontab", "cron", "rrule"})
    berlin = one_turn(make_app(timezone="Europe/Berlin", beat_schedule=schedule), make_beat)
    assert {entry.name: entry.next_run_at for entry in schedules.values()} == {
        entry.name: entry.next_run_at for entry in berlin.values()
    }
    assert not found(app, "doctor")


def test_a_task_of_a_module_that_was_not_imported_is_known(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doctortasks.py").write_text(
        "from celery import shared_task\n@shared_task(name='shop.count')\ndef count(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    app = make_app(include=["doctortasks"])
    Schedules(make_app()).add("known", "shop.count", every(60))
    assert not found(app, "task")
    assert found(make_app(include=["gone"]), "doctor"), "its modules cannot be imported"


def test_one_schedule_that_fails_does_not_end_the_doctor(
    make_app: MakeApp, make_beat: MakeBeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    Schedules(app).add("a", "t", every(60))

    def fail(*_: object) -> None:
        raise TypeError("unhashable type: 'tzfile'")

    monkeypatch.setattr("redbeat_lite.operate.entry_checks.either_day_words", fail)
    [finding] = found(app, "doctor")
    assert finding.severity == "warning"
    assert "unhashable type" in finding.what
    assert found(app, "leader"), "the other checks go on"


@pytest.mark.parametrize("form", [list, ";".join])
def test_a_failover_of_the_broker_that_the_schedule_has_not_is_told(
    server: Server,
    make_app: MakeApp,
    make_beat: MakeBeat,
    caplog: pytest.LogCaptureFixture,
    form: Callable[[list[str]], Any],
) -> None:
    brokers = form([server.url, "redis://127.0.0.1:1/0"])
    app = make_app(broker_url=brokers)
    what = "broker_url names 2 servers, and the schedule lies on the first one alone"
    [finding] = found(app, "failover")
    assert (finding.severity, finding.what) == ("warning", what)
    beat = make_beat(app)
    for _ in range(2):
        beat.run_due()
    assert caplog.text.count(what) == 1
    assert not found(make_app(broker_url=brokers, redbeat_lite_url=server.url), "failover")
    assert not found(make_app(), "failover")


def test_it_is_told_at_the_start_too_where_the_first_server_is_down(
    make_app: MakeApp, make_beat: MakeBeat, caplog: pytest.LogCaptureFixture
) -> None:
    beat = make_beat(make_app(broker_url=["redis://127.0.0.1:1/0", "redis://127.0.0.1:2/0"]))
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            beat.run_due()
    assert caplog.text.count("the schedule lies on the first one alone") == 1


def test_two_environments_that_share_a_queue_are_told(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
) -> None:
    def environment(name: str, **settings: Any) -> Celery:
        app = make_app(redbeat_lite_key_prefix=name, redbeat_lite_lease=4, **settings)
        beat = make_beat(app)
        beat.run_due()
        eventually(lambda: client.hget(f"{{{name}}}:leader", "report"), what="a report")
        return app

    production = environment("production")
    assert not found(production, "shared-queue")
    apart = environment("apart", broker_transport_options={"global_keyprefix": "apart:"})
    assert not found(production, "shared-queue") + found(apart, "shared-queue")
    staging = environment("staging")
    for app, other in ((production, "{staging}"), (staging, "{production}")):
        [finding] = found(app, "shared-queue")
        assert finding.severity == "warning"
        assert f"under {other} go to the same queue: celery on 127.0.0.1" in finding.what
    client.execute_command("ACL", "SETUSER", "default", "-scan")
    try:
        assert not found(production, "shared-queue")
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+scan")
        for name in ("production", "apart", "staging"):
            client.delete(*client.keys(f"{{{name}}}*"))


@together("name", ["CELERYBEAT_SCCHEDULE", "CELERY_BEAT_SHEDULE", "BEAT_SCHEDULE_"], emptied=True)
def test_a_schedule_under_a_name_that_celery_does_not_read_is_told(make_app: MakeApp, name: str) -> None:
    schedule = {"a": {"task": "t", "schedule": 2.0}}
    app = make_app(**{name: schedule})
    [finding] = found(app, "misspelt")
    assert (finding.severity, finding.what.split()[0]) == ("note", name)
    app.conf.beat_schedule = schedule
    assert not found(app, "misspelt")


def test_settings_of_celery_redbeat_that_are_left_are_told(make_app: MakeApp) -> None:
    app = make_app(redbeat_redis_url="redis://old", CELERY_REDBEAT_LOCK_TIMEOUT=5)
    [finding] = found(app, "left-over")
    assert finding.severity == "note"
    assert finding.what.endswith(": CELERY_REDBEAT_LOCK_TIMEOUT, redbeat_redis_url")
    assert not found(make_app(), "left-over")


def test_a_small_limit_holds_for_the_configuration_too(make_app: MakeApp) -> None:
    """The page looks at some entries, whatever the configuration holds."""
    schedule = {f"e{number}": {"task": "t", "schedule": -1} for number in range(4)}
    app = make_app(beat_schedule=schedule)
    all_refused = [finding for finding in examine(app) if finding.check == "refused"]
    some = [finding for finding in examine(app, limit=3) if finding.check in ("refused", "entries")]
    assert len(all_refused) == 1
    [finding] = some
    assert finding.what == "of 4 entries, at most 3 were looked at, those that are due next"
    assert "A beat_schedule with more entries than that is not compared" in finding.why
