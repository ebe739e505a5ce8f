"""What the server may hold at the end of a seed."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redbeat_lite import Freeze
from redbeat_lite._base.ids import random_hex
from redbeat_lite.beat.freezing import Freezing
from redbeat_lite.entries.freezes import Freezes
from tests.simulation.bounds import Amounts, excesses
from tests.simulation.scenario import Scenario
from tests.simulation.test_seeds import at, by_user, changed_script, quiet
from tests.simulation.test_work import busy, laws
from tests.simulation.users import User
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


def test_freezes_that_no_beat_can_have_removed_are_no_excess() -> None:
    """Found by seed 30202: freezes that have ended stay while everything is frozen."""
    since = datetime(2026, 3, 2, tzinfo=UTC)
    freezes = [
        Freeze(
            random_hex(3), "config-0", None, "*", since, since + timedelta(milliseconds=1), actor="user", thawed=since
        )
        for _ in range(10)
    ]
    database = Database(lambda: 0)
    meta: Any = database.create(b"{redbeat-lite}:meta", dict)
    meta[b"freezes"] = Freezes().replaced(*freezes).text
    assert list(excesses(database, replace(NOTHING, freezes=10))) == []
    (excess,) = excesses(database, replace(NOTHING, freezes=5))
    assert excess == "keys of meta freezes hold 1896 bytes, more than 1320"


@pytest.mark.parametrize("are_removed", [True, False])
def test_freezes_that_have_ended_are_removed(monkeypatch: pytest.MonkeyPatch, are_removed: bool) -> None:
    if not are_removed:
        monkeypatch.setattr(Freezing, "_drop_ended", lambda _freezing, _now: None)
    scenario = quiet(1, calm=30.0)

    def freeze_often(user: User) -> None:
        for _ in range(10):
            user.freeze("config", 0.5)
            scenario.world.wait(1.0)

    at(scenario, 3.0, by_user(scenario, freeze_often))
    broken = laws(scenario)
    assert any("keys of meta freezes hold" in violation for violation in broken) != are_removed
    assert len(broken) == (not are_removed)


GROWS = {
    "rows are not trimmed": (
        "shared/record",
        {"redis.call('ZREMRANGEBYRANK', rows, 0, -(history + 1))": ""},
        "keys of runs:of: hold",
    ),
    "guards do not expire": (
        "once/end",
        {"redis.call('PEXPIREAT', guard, ": "local _ = math.max("},
        "keys live for ever",
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("script", "changes", "found"), GROWS.values(), ids=GROWS)
def test_what_grows_with_each_run_is_found(script: str, changes: dict[str, str], found: str) -> None:
    with changed_script(script, changes):
        assert any(found in violation for violation in laws(Scenario(1, busy(history=1))))
