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
from redbeat_lite.entries.run import Outcome
from redbeat_lite.web import Request
from tests.cli.conftest import Said
from tests.support.cases import together
from tests.support.incidents import incident
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
        assert (refused.status, "for: expected seconds" in refused.text) == (400, True)
        assert f'name="for" aria-invalid="true" aria-describedby="error" value="{length or "x"}"' in refused.html
        assert 'value="a deploy"' in refused.html
        assert re.search(f'<details open><summary data-key="{page}', refused.html)
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


def test_a_backfill_shows_how_much_it_is_before_it_starts(visitor: Visitor, schedules: Schedules) -> None:
    first = MIDNIGHT - timedelta(days=3)
    form = {"name": "nightly", "from": f"{first:%Y-%m-%dT%H:%M}", "to": f"{MIDNIGHT:%Y-%m-%dT%H:%M}"}
    form |= {"max_active": "none", "rate": "10", "again": "0", "note": "the outage"}
    asked = visitor.post("backfills", **form)
    assert "Send 3 runs of nightly?" in asked.text
    line = f"redbeat backfill nightly --from {form['from']} --to {form['to']} --max-active none --note 'the outage'"
    assert line in asked.text
    assert [*schedules.backfills] == []
    for name, text in form.items():
        assert f'<input type="hidden" name="{name}" value="{text}">' in asked.html
    assert visitor.post("backfills", save="1", **form).location == "backfills?did=backfill"
    [found] = schedules.backfills
    assert (found.total, found.max_active, found.note, found.actor) == (3, None, "the outage", "ada")
    seen = visitor.get("backfills", name="nightly")
    for words in ("0 of 3", "running", "the outage", f"redbeat backfills pause {found.id}"):
        assert words in seen.text
    assert '<input name="name" value="nightly" required>' in seen.html


@together(
    ("form", "said"),
    [
        ({}, "--from"),
        ({"from": "yesterday"}, "from: expected"),
        ({"from": "2026-01-01", "rate": "fast"}, "rate: expected a number"),
        ({"from": "2026-01-01", "max_active": "-1"}, "max_active: expected"),
        ({"from": "2026-01-01"}, "no worker that records runs has reported"),
        ({"from": "2026-01-01", "max_active": "none", "name": "nope"}, "no entry 'nope' is stored"),
    ],
)
def test_a_backfill_that_cannot_start_says_why(
    visitor: Visitor, schedules: Schedules, form: dict[str, str], said: str
) -> None:
    refused = visitor.post("backfills", save="1", **{"name": "nightly", "to": "2026-01-09", **form})
    assert (refused.status in (400, 404), said in refused.text) == (True, True), refused.text
    assert [*schedules.backfills] == []


def test_a_backfill_of_what_is_missing_alone(
    visitor: Visitor, schedules: Schedules, client: redis.Redis, run_cli: Callable[..., Said]
) -> None:
    schedules.add("nightly", "add", cron("30 2 * * *", tz="UTC"), replace=True)
    rows, fates = RunRows(client, schedules), dict[int, Outcome]({4: "succeeded", 3: "failed", 2: "succeeded"})
    for back, outcome in fates.items():
        rows.row("nightly", MIDNIGHT - timedelta(days=back) + timedelta(hours=2.5), outcome, f"id {back}")
    form = {"name": "nightly", "from": f"{MIDNIGHT - timedelta(days=3):%Y-%m-%dT00:00Z}", "to": f"{MIDNIGHT:%FT00:00Z}"}
    form |= {"max_active": "none", "missing": "on"}
    asked = visitor.post("backfills", **form)
    assert "Send 2 runs of nightly?" in asked.text
    assert '<input type="hidden" name="missing" value="on">' in asked.html
    [command] = re.findall("redbeat (backfill nightly .*?)</code>", asked.html)
    words = shlex.split(html.unescape(command))
    assert run_cli(visitor.site.parts.app, *words, "--dry-run", "--json").json["total"] == 2
    assert visitor.post("backfills", **form, save=1).status == 303
    assert [each.total for each in schedules.backfills] == [2]
    refused = visitor.post("backfills", **{**form, "again": "1", "from": "2020-01-01"})
    assert ("missing: expected" in refused.text, 'name="missing" checked' in refused.html) == (True, True)


def test_a_form_that_cannot_be_done_keeps_what_was_typed(visitor: Visitor) -> None:
    for page, form, said in (
        (
            "backfills",
            {"name": "nope", "from": "2026-01-01", "to": "2026-01-02", "rate": "7", "note": "why not"},
            "nope",
        ),
    ):
        refused = visitor.post(page, **form)
        assert (refused.status in (400, 404), said in refused.text) == (True, True)
        assert "<h1>This cannot be done" not in refused.html
        for name, text in form.items():
            typed = re.search(f'name="{name}"[^>]* value="{re.escape(text)}"', refused.html)
            assert typed or f'name="{name}" checked' in refused.html


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
    assert 'href="backfills?name=nightly"' in visitor.get("entry", name="nightly").html


def test_who_watches_shares_one_read(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add("poll", "add", every(60))
    pages = [Request("GET", f"/{page}") for page in ("", "backfills", "changes", "timeline")]
    first = [visitor.site.handle(page).body for page in pages]
    schedules.freeze(60)
    assert [visitor.site.handle(page).body for page in pages] == first
