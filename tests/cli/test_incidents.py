"""``incidents``, ``ack`` and ``health --incidents``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from celery import Celery
from msgspec.structs import replace

from redbeat_lite import Incident
from redbeat_lite._base.times import from_ms
from redbeat_lite.runs.incident_fold import Decision
from redbeat_lite.runs.incident_store import IncidentStore
from redbeat_lite.store.records import Term
from tests.cli.conftest import Said
from tests.support.incidents import incident

OPENED = 1_772_452_800_000


@pytest.fixture
def cli(app: Celery, run_cli: Callable[..., Said]) -> Callable[..., Said]:
    return lambda *words, code=0: run_cli(app, *words, code=code)


@pytest.fixture
def cases(client: redis.Redis) -> list[Incident]:
    """Two that are open, and one that was closed."""
    store = IncidentStore(client, "redbeat-lite")
    behind = incident("behind", "", OPENED + 5, "an hour")
    failed = incident("failed", "e", OPENED, "KeyError: \x1b[31m")
    over = incident("late", "e", OPENED, "began late")
    assert all(store.open_incident(case) for case in (behind, failed, over))
    client.hset("{redbeat-lite}:leader", mapping={"token": "leader", "term": 1})
    decision = Decision([replace(over, until=from_ms(OPENED + 9))], {}, {})
    assert store.write_decision(Term("leader", 1), store.read_facts(OPENED), decision, "0")
    client.delete("{redbeat-lite}:leader")
    return [failed, behind, over]


def test_incidents_are_listed_the_open_ones_first(cli: Callable[..., Said], cases: list[Incident]) -> None:
    found = cli("incidents", "--json").json
    assert [each["id"] for each in found] == [case.id for case in cases]
    assert [each["entry"] for each in found] == ["e", None, "e"]
    assert [each["until"] is None for each in found] == [True, True, False]
    assert [each["id"] for each in cli("incidents", "--open", "--json").json] == [case.id for case in cases[:2]]
    assert cli("incidents", "--open", "--limit", "1").lines[2:] == ["There are more: --limit 2"]
    assert "\x1b" not in cli("incidents").out


def test_where_there_is_none_that_is_said(cli: Callable[..., Said]) -> None:
    assert cli("incidents").out == "No incident is open, and none was closed.\n"
    assert cli("incidents", "--open").out == "No incident is open.\n"


def test_an_incident_is_taken_up_and_stays_open(cli: Callable[..., Said], cases: list[Incident]) -> None:
    failed, _, over = cases
    assert cli("ack", failed.id, "--note", "mine").out == f"acknowledged {failed.id}\n"
    assert "(mine)" in cli("incidents", "--open").out
    assert "no incident" in cli("ack", over.id, "--note", "mine", code=1).err
    assert "no incident " in cli("ack", failed.id[:-1] + "x", "--note", "mine", code=1).err
    assert "note: expected text of 1 to 1000 characters" in cli("ack", failed.id, "--note", "", code=1).err


def test_health_is_red_while_an_incident_is_open(cli: Callable[..., Said], client: redis.Redis) -> None:
    assert cli("health", "--incidents").out == "no incident is open\n"
    case = incident("failed", "e", OPENED, "KeyError: 7")
    assert IncidentStore(client, "redbeat-lite").open_incident(case)
    said = cli("health", "--incidents", code=1)
    assert said.out == f"incident {case.id} is open, failed:e: KeyError: 7\n"
    assert "only one of" in cli("health", "--incidents", "--cluster", code=1).err
