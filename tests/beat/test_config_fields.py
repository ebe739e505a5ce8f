"""Fields of other schedulers in ``beat_schedule``: taken in our words, or refused with what to write instead."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from redbeat_lite import Entry, every
from tests.support.cases import together
from tests.support.frozen import NOW
from tests.support.in_process import MakeApp, MakeBeat, one_turn

pytestmark = pytest.mark.usefixtures("clock")

BASE: dict[str, Any] = {"task": "t", "schedule": every(60)}
SOON = NOW + timedelta(seconds=90)


@together(
    ("theirs", "ours"),
    [
        ({"one_off": True}, {"max_runs": 1}),
        ({"one_off": False}, {}),
        ({"start_time": SOON}, {"start_at": SOON}),
        ({"queue": "q", "priority": 0}, {"options": {"queue": "q", "priority": 0}}),
        ({"exchange": "e", "routing_key": "k"}, {"options": {"exchange": "e", "routing_key": "k"}}),
        ({"headers": {"a": 1}, "options": {"queue": "q"}}, {"options": {"queue": "q", "headers": {"a": 1}}}),
        ({"expire_seconds": 30}, {"options": {"expires": 30}}),
        ({"options": {"expire_seconds": 30}}, {"options": {"expires": 30}}),
        ({"queue": None, "one_off": None, "start_time": None, "expire_seconds": None, "options": None}, {}),
        ({"queue": None, "options": {"queue": "q"}}, {"options": {"queue": "q"}}),
        ({"crontab": None, "last_run_at": None, "max_interval": None}, {}),
        ({"expires": None, "expire_seconds": 30}, {"expires": None, "options": {"expires": 30}}),
        ({"expires": 3, "expire_seconds": None}, {"expires": 3}),
        ({"expires": 3, "options": {"expire_seconds": 30}}, {"expires": 3, "options": {"expires": 30}}),
        ({"enabled": False, "description": "why"}, {"enabled": False, "description": "why"}),
    ],
    ids=str,
    emptied=True,
)
def test_what_has_a_meaning_here_is_taken(
    make_app: MakeApp, make_beat: MakeBeat, theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    schedules = one_turn(make_app(beat_schedule={"a": {**BASE, **theirs}}), make_beat)
    assert schedules["a"] == Entry.from_mapping("a", {**BASE, **ours})


@together(
    ("theirs", "complaint"),
    [
        ({"last_run_at": NOW}, r"last_run_at: expected a known field, .*\(Redis keeps it; leave it out\)"),
        ({"total_run_count": 3}, "Redis keeps it"),
        ({"crontab": "0 9 * * *"}, "it belongs into schedule"),
        ({"name": "b"}, "the key is the name"),
        ({"max_interval": 5}, "beat_max_loop_interval"),
        ({"one_off": True, "max_runs": 3}, "one_off: .*write max_runs instead: 1 for once"),
        ({"one_off": "yes"}, "write max_runs instead"),
        ({"start_time": SOON, "start_at": NOW}, "start_time: .*write start_at instead"),
        ({"queue": "p", "options": {"queue": "q"}}, r"queue: .*it belongs into options: {'queue': \.\.\.}"),
        ({"queue": "p", "options": "fast"}, "queue"),
        ({"expire_seconds": 5, "options": {"expires": 9}}, r"it belongs into options: {'expires': \.\.\.}"),
        ({"expire_seconds": 9, "expires": 3}, r"it belongs into options: {'expires': \.\.\.}"),
        ({"expires": SOON}, "expires: .*the last instant of an entry is its end_at"),
    ],
    ids=str,
    emptied=True,
)
def test_anything_else_is_refused_with_what_to_write_instead(
    make_app: MakeApp,
    make_beat: MakeBeat,
    caplog: pytest.LogCaptureFixture,
    theirs: dict[str, Any],
    complaint: str,
) -> None:
    schedules = one_turn(make_app(beat_schedule={"a": {**BASE, **theirs}, "b": BASE}), make_beat)
    assert [*schedules] == ["b"]
    [line] = [each for each in caplog.messages if "config entry 'a'" in each]
    assert re.search(complaint, line), line
