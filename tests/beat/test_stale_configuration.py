"""A leader of an old release keeps its schedule; whoever has another one at hand says so."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from celery.schedules import crontab
from click.testing import CliRunner

from redbeat_lite import Schedules, cron, every
from redbeat_lite.cli import redbeat
from redbeat_lite.operate.doctor import examine
from tests.support.in_process import MakeApp, MakeBeat

SAME: dict[str, Any] = {
    "same": {"task": "t", "schedule": crontab(minute=5), "kwargs": {"a": [1]}},
    "spread": {"task": "t", "schedule": cron("H 3 * * *")},
    "refused": {"task": ""},
}
OLD = {
    **SAME,
    "report": {"task": "t", "schedule": crontab(hour=3), "args": ("v1",)},
    "gone": {"task": "t", "schedule": 9.0},
}
NEW = {
    **SAME,
    "report": {"task": "t", "schedule": crontab(hour=5), "args": ("v2",)},
    "billing": {"task": "t", "schedule": 2.0},
}
LEADER = f"pid {os.getpid()} on {socket.gethostname()}"


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redbeat_lite.beat.leadership._SETTLING", 0)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "of beat_schedule are not stored as here" in message]


def status(app: Celery, *words: str) -> str:
    run = CliRunner().invoke(redbeat, ["status", *words], obj=CLIContext(app=app, no_color=True, workdir=None))
    assert run.exit_code == 0, run.output
    return run.output


def test_a_stand_by_of_another_release_says_once_what_differs(
    make_app: MakeApp, make_beat: MakeBeat, caplog: pytest.LogCaptureFixture
) -> None:
    make_beat(make_app(beat_schedule=OLD)).run_due()
    twin, newer = make_beat(make_app(beat_schedule=OLD)), make_beat(make_app(beat_schedule=NEW))
    for _ in range(3):
        twin.run_due()
    assert not told(caplog)
    for _ in range(3):
        newer.run_due()
    [message] = told(caplog)
    assert message == (
        f"beat: 3 entries of beat_schedule are not stored as here, because {LEADER} leads with the configuration "
        "of 'proj': 'billing', 'gone', 'report'"
    )


def test_the_doctor_names_what_differs(make_app: MakeApp, make_beat: MakeBeat) -> None:
    old, new = make_app(beat_schedule=OLD), make_app(beat_schedule=NEW)
    beat = make_beat(old)
    beat.run_due()
    Schedules(old).pause("same")
    [finding] = [finding for finding in examine(new) if finding.check == "configuration"]
    assert (finding.severity, finding.entries) == ("warning", ("billing", "gone", "report"))
    assert f"the leader, {LEADER}, has stored" in finding.what
    assert "configuration" not in {finding.check for finding in examine(old)}
    beat.close()
    assert "configuration" not in {finding.check for finding in examine(new)}, "nobody leads"


def test_a_process_without_a_configuration_finds_no_difference(make_app: MakeApp, make_beat: MakeBeat) -> None:
    make_beat(make_app(beat_schedule=OLD)).run_due()
    assert "configuration" not in {finding.check for finding in examine(make_app())}


def test_runtime_entries_and_those_in_quarantine_are_no_difference(make_app: MakeApp, make_beat: MakeBeat) -> None:
    app = make_app(beat_schedule={"a": {"task": "t", "schedule": 9.0}})
    Schedules(app).add("a", "mine", every(60))
    Schedules(app).add("b", "mine", every(60))
    make_beat(app).run_due()
    assert "configuration" not in {finding.check for finding in examine(app)}
