"""Freezes, backfills and incidents, as the page shows them and acts on them."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis

from redbeat_lite import Schedules, cron, every
from redbeat_lite.web import Request
from tests.cli.conftest import Said
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.changes import forget_changes
from tests.support.incidents import incident
from tests.support.run_records import Worker
from tests.support.run_rows import RunRows
from tests.web.conftest import Visitor

MIDNIGHT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
"""No run of `nightly` is at an end of a span from here to three days before, at whatever time of day these run."""


@pytest.fixture(autouse=True)
def nightly(schedules: Schedules) -> None:
    schedules.add("nightly", "add", cron("30 2 * * *"), tags=["a"])


def test_a_freeze_is_made_shown_and_ended(visitor: Visitor, schedules: Schedules) -> None:
    assert 'action="freeze"' in visitor.get().html
    made = visitor.post("freeze", note="a deploy", **{"for": "1h30m"})
    assert made.location == "./?did=freeze"
    found = schedules.frozen()
    assert found is not None
    assert (found.until - found.since, found.note, found.actor) == (timedelta(minutes=90), "a deploy", "ada")
    seen = visitor.get()
    for words in ("All entries are frozen", "a deploy", "redbeat thaw"):
        assert words in seen.text
    assert 'action="thaw"' in seen.html
    assert visitor.post("thaw").status == 303
    assert schedules.frozen() is None
    assert visitor.post("thaw").status == 404


def test_only_the_freeze_that_the_page_has_shown_is_thawed(visitor: Visitor, schedules: Schedules) -> None:
    schedules.freeze(10)
    [shown] = re.findall('name="since" value="([^"]+)"', visitor.get().html)
    freeze = schedules.freeze(7200, "migration")
    refused = visitor.post("thaw", since=shown)
    assert (refused.status, "somebody else has made another freeze" in refused.text) == (400, True)
    assert schedules.frozen() == freeze
    assert visitor.post("thaw", since="yesterday").status == 400
    [shown] = re.findall('name="since" value="([^"]+)"', visitor.get().html)
    assert visitor.post("thaw", since=shown).location == "./?did=thaw"
    assert schedules.frozen() is None
    assert visitor.post("thaw", since=shown).location == "./", "somebody has done it before"


@together("length", ["", "soon", "-1"], emptied=True)
def test_a_freeze_of_no_length_is_refused(visitor: Visitor, schedules: Schedules, length: str) -> None:
    schedules.add("nightly", "add", every(60))
    for page, form in (("freeze", {}), ("pause", {"name": "nightly"})):
        refused = visitor.post(page, note="a deploy", **form, **{"for": length or "x"})
        assert (refused.status, "seconds: expected seconds" in refused.text) == (400, True)
    assert visitor.post("freeze").status == 400
    assert (schedules.frozen(), schedules["nightly"].status) == (None, "waiting")


def test_an_entry_is_paused_for_a_time(visitor: Visitor, schedules: Schedules) -> None:
    assert visitor.post("pause", name="nightly", note="disk", **{"for": "soon"}).status == 400
    assert schedules["nightly"].status == "waiting"
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    assert visitor.post("pause", name="nightly", note="disk", **{"for": "2h"}).status == 303
    until = schedules["nightly"].paused_until
    assert until is not None
    assert until >= before + timedelta(hours=2)
    assert ": disk" in visitor.get("entry", name="nightly").text
    schedules.add("other", "add", every(60))
    schedules.pause("other", seconds=60)
    assert re.search("Paused until <time[^>]*>[^<]*</time></p>", visitor.get("entry", name="other").html)


def test_a_pause_of_many_for_a_time_is_confirmed_with_its_length(visitor: Visitor) -> None:
    asked = visitor.post("pause-all", pick=["nightly"], **{"for": "2h"})
    assert "redbeat pause nightly --for 2h --note NOTE" in asked.text


def test_an_incident_is_taken_up_with_a_note(visitor: Visitor, schedules: Schedules, client: redis.Redis) -> None:
    case = incident("failed", "nightly", 1_700_000_000_000, "KeyError: 7")
    client.hset("{redbeat-lite}:runs:incidents", case.field, case.encode())
    [found] = schedules.incidents()
    assert visitor.post("ack", id=found.id, note="").status == 400
    assert visitor.post("ack", id=found.id, note="bob: they know").location == "./?did=ack"
    seen = visitor.get(did="ack")
    assert "(bob: they know)" in seen.text
    assert "Acknowledged." in seen.text
    assert 'action="ack"' not in seen.html
    assert visitor.post("ack", id="nope", note="x").status == 404


def test_the_command_of_a_backfill_is_shown(
    visitor: Visitor, schedules: Schedules, client: redis.Redis, run_cli: Callable[..., Said]
) -> None:
    # Within the last day but for the last hour, which the command names, whatever the time is.
    twelve_hours_ago = datetime.now(UTC) - timedelta(hours=12)
    schedules.update("nightly", schedule=cron(f"{twelve_hours_ago.minute} {twelve_hours_ago.hour} * * *", tz="UTC"))
    RunRows(client, schedules).row("nightly", MIDNIGHT - timedelta(days=9), "succeeded", "id")
    Worker(client).reports("celery")
    forget_changes(client, KEYS)  # it was added before the record begins
    for page, form in (("entry", {"name": "nightly"}), ("backfills", {})):
        [command] = re.findall("redbeat (backfill .*?)</code>", visitor.get(page, **form).html)
        [planned] = run_cli(visitor.site.parts.app, *shlex.split(html.unescape(command))).lines
        assert planned.startswith("1 run of 'nightly'")
    assert "also those that ran when they were due. --missing leaves these out" in visitor.get("backfills").text
    assert [*schedules.backfills] == []


def test_a_backfill_is_paused_resumed_and_cancelled(visitor: Visitor, schedules: Schedules) -> None:
    found = schedules.backfills.start("nightly", MIDNIGHT - timedelta(days=3), MIDNIGHT, max_active=None)
    for does, status, offered in (
        ("pause", "paused", {"resume", "cancel"}),
        ("resume", "running", {"pause", "cancel"}),
        ("cancel", "cancelled", set()),
    ):
        assert visitor.post(f"backfills-{does}", id=found.id).status == 303
        seen = visitor.get("backfills")
        assert f'<span class="state {status}">' in seen.html
        assert {each for each in ("pause", "resume", "cancel") if f'action="backfills-{each}"' in seen.html} == offered
    assert visitor.post("backfills-pause", id=found.id).status == 404


def test_who_watches_shares_one_read(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add("poll", "add", every(60))
    pages = [Request("GET", f"/{page}") for page in ("", "backfills", "changes", "timeline")]
    first = [visitor.site.handle(page).body for page in pages]
    schedules.freeze(60)
    assert [visitor.site.handle(page).body for page in pages] == first
