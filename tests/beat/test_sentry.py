"""Sentry's beat monitoring sees every run, however messages are made and sent."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat_lite import cron
from redbeat_lite.rules.celery_schedules import as_crontab
from tests.support.cases import together
from tests.support.kombus import needs_batches
from tests.support.messages import queued
from tests.support.processes import ROOT, run_python
from tests.support.server import Server


@pytest.mark.parametrize(
    "dispatch", [pytest.param("auto", marks=needs_batches), pytest.param("plain", marks=pytest.mark.soak)]
)
def test_every_run_gives_a_check_in_that_its_message_refers_to(
    server: Server, client: redis.Redis, dispatch: str
) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = run_python("sentryproj.py", server.url, dispatch, cwd=Path(__file__).parent, env=env)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout.splitlines()[-1])
    if dispatch == "auto":
        before, *after = seen["modes"]
        assert before.endswith("(exactly once), prepared")
        assert set(after) == {
            "in one step with the schedule (exactly once), each made in full, because apply_entry is not the function "
            "of Celery or kombu"
        }
    check_ins: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for check_in in seen["check_ins"]:
        check_ins[check_in["monitor_slug"]].append(check_in)
    messages = defaultdict(list)
    for message in queued(client):
        messages[message.entry].append(message)
    assert {each["status"] for each in seen["check_ins"]} == {"in_progress"}
    assert set(check_ins) == {"interval", "cron", "weekday", "unregistered", "config"}
    for name, sent in check_ins.items():
        ids = [each["check_in_id"] for each in sent]
        carried = [m.headers.get("sentry-monitor-check-in-id") for m in messages[name]]
        assert [each for each in carried if each] == ids, f"{name}: a run without a check-in, or the other way round"
        # Those of before Sentry was there, in the first minute.
        early = {"interval": 1, "unregistered": 1}.get(name, len(carried) - len(ids))
        assert len(carried) - len(ids) == early <= 1
    assert len(check_ins["interval"]) == 1 + 1 + 60
    assert all(message.headers["own"] == 1 for message in messages["cron"]), "headers of one's own are kept"
    configs = {name: sent[0]["monitor_config"] for name, sent in check_ins.items()}
    assert configs["interval"]["schedule"] == {"type": "interval", "value": 1, "unit": "minute"}
    assert configs["cron"] == {"schedule": {"type": "crontab", "value": "*/2 * * * *"}, "timezone": "Asia/Tokyo"}
    assert configs["weekday"]["schedule"] == {"type": "crontab", "value": "0 14 * * mon-fri"}
    assert configs["config"] == {"schedule": {"type": "crontab", "value": "*/2 * * * *"}, "timezone": "Europe/Berlin"}


@together(
    ("expression", "fields"),
    [
        ("0 3 * * *", "0 3 * * *"),
        ("@daily", "0 0 * * *"),
        ("*/5 9-17 1,15 jan-mar MON-FRI", "*/5 9-17 1,15 jan-mar mon-fri"),
        ("5 4 * * * 0", "5 4 * * *"),
    ],
)
def test_a_cron_rule_is_shown_as_a_crontab_to_tools_that_know_no_other(expression: str, fields: str) -> None:
    shown = as_crontab(cron(expression, tz="Asia/Tokyo"))
    assert shown is not None
    written = (shown._orig_minute, shown._orig_hour, shown._orig_day_of_month, shown._orig_month_of_year)
    assert " ".join((*written, shown._orig_day_of_week)) == fields
    assert str(shown.tz) == "Asia/Tokyo"


@together(
    "expression",
    ["0 3 L * *", "0 3 15W * *", "0 3 * * fri#2", "0 3 * * L5", "0 3 * * 5L", "*/10 * * * * *", "0 3 * * * 30"],
)
def test_what_a_crontab_cannot_say_is_shown_as_it_is(expression: str) -> None:
    seconds = "first" if expression.startswith("*/10") else "last"
    assert as_crontab(cron(expression, seconds=seconds)) is None
