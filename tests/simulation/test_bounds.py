"""What the server may hold at the end of a seed."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, replace
from typing import Any

import pytest

from tests.simulation.bounds import Amounts, excesses
from tests.simulation.scenario import Scenario
from tests.simulation.test_seeds import changed_script
from tests.simulation.test_work import busy, laws
from tests.simulation.values import Database, SortedSet

NOTHING = Amounts(*[0] * len(fields(Amounts)))


def test_what_lives_on_without_a_cause_is_an_excess() -> None:
    database = Database(lambda: 0)
    database.put(b"{redbeat-lite}:guard:task-1", b"x")
    database.put(b"{redbeat-lite}:unheard-of", b"x")
    database.put(b"elsewhere", b"x")
    assert list(excesses(database, NOTHING)) == [
        "elsewhere is a key of no known kind",
        "keys of guard: hold 28 bytes, more than 0",
        "{redbeat-lite}:unheard-of is a key of no known kind",
    ]
    database.delete(b"elsewhere")
    database.delete(b"{redbeat-lite}:unheard-of")
    assert list(excesses(database, replace(NOTHING, sent=1))) == []


def test_messages_that_wait_for_a_worker_are_no_excess() -> None:
    """Seeds 1177 and 1308: a clock that leapt made a beat send hundreds of runs, more than the workers took."""
    database = Database(lambda: 0)
    database.put(b"celery", deque([b"x" * 1000] * 200))
    assert list(excesses(database, NOTHING)) == []


def test_a_token_that_a_beat_could_not_take_back_is_no_excess() -> None:
    """Found by seed 5232: the reply to its release of the lease came too late, and it led again under another token."""
    database = Database(lambda: 0)
    beats: Any = database.create(b"{redbeat-lite}:beats", SortedSet)
    for token in (b"beat-1:102:0123456789abcdef:project", b"beat-1:102:fedcba9876543210:project"):
        beats.put(token, 0)
    assert list(excesses(database, replace(NOTHING, beats=1, terms=2))) == []
    assert list(excesses(database, replace(NOTHING, beats=1))) != []


GROWS = {
    "rows are not trimmed": (
        "shared/record",
        {"redis.call('ZREMRANGEBYRANK', rows, 0, -(history + 1))": ""},
        "keys of runs:of: hold",
    ),
    "guards do not expire": (
        "once/end",
        {"'HDEL', guard, 'token', 'until', 'tries', 'resend'": "'DEL', guard", "'PEXPIREAT', guard, ": "'EXISTS', "},
        "keys live for ever",
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("script", "changes", "found"), GROWS.values(), ids=GROWS)
def test_what_grows_with_each_run_is_found(script: str, changes: dict[str, str], found: str) -> None:
    with changed_script(script, changes):
        assert any(found in violation for violation in laws(Scenario(1, busy(history=1))))
