"""Requests that make no sense raise an error of ours that says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redbeat_lite import ConfigurationError, InvalidEntry, Schedules, every
from tests.support.cases import together


@together(
    ("ask", "message"),
    [
        (
            lambda schedules: schedules.runs("a", outcome="fail"),
            'outcome: expected one of "waiting", "running", .*fail',
        ),
        (lambda schedules: schedules.list(limit=-1), "limit: expected a whole number from 0, got -1"),
        (lambda schedules: schedules.update("a", if_version="1"), "if_version: expected None or a whole number, got"),
        (lambda schedules: schedules.add("b", "add", every("5 minutes")), 'a text such as "1h30m", at least 0.05 s'),
    ],
    ids=["outcome", "limit", "version", "interval"],
    emptied=True,
)
def test_a_wrong_request_is_an_invalid_entry(
    schedules: Schedules, ask: Callable[[Schedules], Any], message: str
) -> None:
    schedules.add("a", "add", every(60))
    with pytest.raises(InvalidEntry, match=message):
        ask(schedules)


@together("app", [None, "tasks"])
def test_what_is_no_app_is_refused(app: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"app: expected a Celery app, got {app!r}"):
        Schedules(app)
