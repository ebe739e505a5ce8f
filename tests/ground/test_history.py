"""The history keeps the records of all processes, also of processes that were killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import redis

from tests.harness.history import HistoryLog
from tests.support.audit import Record, check
from tests.support.processes import run_python


@pytest.fixture
def log(tmp_path: Path) -> HistoryLog:
    return HistoryLog(tmp_path / "history")


def only(log: HistoryLog) -> Record:
    [record] = log.records()
    return record


def test_a_log_without_records_is_empty(log: HistoryLog) -> None:
    assert log.records() == []


def test_a_call_is_noted_with_its_beginning_and_its_end(log: HistoryLog) -> None:
    with log.call("edit", "e", if_version=1) as call:
        assert only(log)["returned"] is None
        call["version"] = 2
    call = only(log)
    assert (call["kind"], call["act"], call["entry"]) == ("call", "edit", "e")
    assert (call["ok"], call["if_version"], call["version"]) == (True, 1, 2)
    assert call["began"] <= call["returned"]


def test_a_call_that_is_refused_was_not_made(log: HistoryLog) -> None:
    with pytest.raises(LookupError), log.call("pause", "e"):
        raise LookupError
    assert only(log)["ok"] is False


def test_a_refusal_that_may_be_that_of_a_second_try_leaves_the_call_open(log: HistoryLog) -> None:
    with pytest.raises(LookupError), log.call("pause", "e", unsure=True):
        raise LookupError
    call = only(log)
    assert call["ok"] is None
    assert call["began"] <= call["returned"]


def test_a_call_whose_reply_is_lost_may_have_been_made(log: HistoryLog) -> None:
    with pytest.raises(redis.ConnectionError), log.call("pause", "e"):
        raise redis.ConnectionError
    assert (only(log)["ok"], only(log)["returned"]) == (None, None)


def test_a_body_is_one_record_from_its_first_sign_of_life_to_its_last(log: HistoryLog) -> None:
    body = log.body("id", "key", attempt=0)
    other = log.body("other", None)
    body.lives()
    body.ends(end="well")
    first, second = log.bodies()
    assert (first["id"], first["key"], first["done"], first["end"]) == ("id", "key", True, "well")
    assert (second["id"], second["key"], second["done"]) == ("other", None, False)
    assert first["pid"] == os.getpid()
    other.ends(done=False)
    assert not log.bodies()[1]["done"]
    check(log.records())


def test_a_body_that_is_killed_is_not_done(log: HistoryLog) -> None:
    script = (
        "import os, signal\n"
        "from tests.harness.history import HistoryLog\n"
        "body = HistoryLog.of_environment().body('id', 'key')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **log.environment}
    assert run_python("-c", script, env=env).returncode == -signal.SIGKILL
    assert (only(log)["id"], only(log)["done"]) == ("id", False)


def test_a_fault_lasts_as_long_as_its_block(log: HistoryLog) -> None:
    with log.fault(what="hangs") as fault:
        fault["recovered"] = 7
    fault = only(log)
    assert (fault["kind"], fault["what"], fault["recovered"]) == ("fault", "hangs", 7)
    assert fault["began"] <= fault["ended"]
