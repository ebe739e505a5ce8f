"""What the pages show."""

from __future__ import annotations

import html
import json
import re
import shlex
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Scheduler, Schedules, acting_as, at, cron, every
from redbeat_lite.entries.run import Outcome
from redbeat_lite.web import Request
from redbeat_lite.web.call import ReadCache
from redbeat_lite.web.rendering import short_time
from tests.cli.conftest import Said
from tests.support.beats import KEYS
from tests.support.commands import commands, round_trips
from tests.support.in_process import MakeBeat
from tests.support.incidents import incident
from tests.support.run_rows import RunRows
from tests.support.server import Server
from tests.support.waiting import eventually
from tests.web.conftest import Visitor

HOUR = timedelta(hours=1)


def recorded(
    client: redis.Redis,
    schedules: Schedules,
    name: str,
    *outcomes: Outcome,
    worker: str = "celery@w1",
    error: str = "KeyError: 7",
) -> None:
    """What workers have written of the last runs of an entry."""
    rows, last = RunRows(client, schedules), datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    times = [last - HOUR * back for back in range(len(outcomes), 0, -1)]
    for nominal, task_id, outcome in zip(times, rows.sent(name, *times), outcomes, strict=True):
        line = rows.line(name, nominal, outcome, task_id, worker=worker, error=error)
        rows.row(name, nominal, outcome, task_id, begin=10, duration=1500, feed=line)


def test_the_first_page_tells_who_leads_what_is_wrong_and_what_comes(
    visitor: Visitor, schedules: Schedules, client: redis.Redis
) -> None:
    schedules.add("soon", "add", every(60))
    schedules.add("later", "add", every(3600))
    case = incident("failed", "soon", int(time.time() * 1000), "of 2026-03-02T12:00:00+00:00: KeyError: 7")
    client.hset("{redbeat-lite}:runs:incidents", case.field, case.encode())
    seen = visitor.get()
    assert seen.status == 200
    assert "Leader nobody Nothing is sent: start a beat." in seen.text
    assert "Incidents 1" in seen.text
    assert "of 2026-03-02 12:00:00+00:00: KeyError: 7" in seen.text
    assert f"redbeat ack {case.id} --note NOTE" in seen.text
    assert 'href="entry?name=soon"' in seen.html
    assert "later" not in seen.text
    assert "stand-bys none" in seen.text
    assert "The first 30" not in seen.text


def test_what_comes_next_has_each_entry_once_however_often_it_runs(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add_many(Entry(f"often-{number}", "add", every(1)) for number in range(10))
    schedules.add("rare", "add", every(800))
    seen = visitor.get()
    assert all(seen.html.count(f">{name}</bdi>") == 1 for name in ("rare", "often-0", "often-9"))
    assert ("every 1s" in seen.text, "The first 30" in seen.text) == (True, False)
    schedules.add_many(Entry(f"more-{number}", "add", every(60)) for number in range(30))
    assert "The first 30 entries; the timeline has the others." in visitor.get().text
    assert 'href="entries?state=failed"' in visitor.get().html


def test_a_freeze_is_told_and_puts_off_what_comes(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add("soon", "add", every(60))
    schedules.freeze(600, "a deploy")
    seen = visitor.get()
    for words in ("All entries are frozen", "a deploy", "redbeat thaw"):
        assert words in seen.text
    assert "entry?name=soon" in seen.html, "it comes when the freeze ends"
    assert "All entries are frozen until" in visitor.get("entry", name="soon").text
    schedules.freeze(7200)
    assert "entry?name=soon" not in visitor.get().html


def test_a_pause_with_an_end_is_told_and_puts_off_what_comes(visitor: Visitor, schedules: Schedules) -> None:
    for name in ("soon", "other", "parked"):
        schedules.add(name, "add", every(60))
    schedules.pause("soon", "a deploy", seconds=7200)
    schedules.pause("parked")
    seen = visitor.get()
    assert "entry?name=soon" not in seen.html
    assert "entry?name=other" in seen.html
    assert "Paused until" in visitor.get("entry", name="soon").text
    listed = visitor.get("entries", state="paused").text
    assert "soon" in listed
    assert "parked" in listed
    assert "other" not in listed


def test_a_time_tells_what_does_not_go_without_saying() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    now = datetime(2026, 11, 23, 12, tzinfo=berlin)
    for instant, shown in (
        (datetime(2026, 11, 23, 2, 30), "02:30:00"),
        (datetime(2026, 11, 24, 2, 30), "24 Nov 02:30:00"),
        (datetime(2026, 10, 25, 2, 30), "25 Oct 02:30:00 +02:00"),
        (datetime(2026, 10, 25, 2, 30, fold=1), "25 Oct 02:30:00"),
        (datetime(2024, 11, 23, 2, 30), "2024-11-23 02:30:00"),
    ):
        assert short_time(instant.replace(tzinfo=berlin), now) == shown


def test_a_paused_entry_tells_its_rule_and_until_when(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add("nightly", "add", cron("30 2 * * *", tz="Europe/Berlin"))
    assert "rule cron 30 2 * * * Europe/Berlin next run" in visitor.get("entry", name="nightly").text
    schedules.pause("nightly", "disk", seconds=90_000)
    text = visitor.get("entry", name="nightly").text
    assert "cron 30 2 * * * Europe/Berlin next run" in text
    assert re.search("Paused until [^:]+:[^:]+:[^:]+: disk", text)


def test_it_names_the_leader_and_counts_who_stands_by_and_what_is_overdue(
    visitor: Visitor, schedules: Schedules, app: Celery, make_beat: MakeBeat
) -> None:
    beats = [make_beat(app) for _ in range(3)]
    for beat in beats:
        beat.run_due()
    seen = visitor.get()
    assert "term 1" in seen.text
    assert ("Stand-bys 2" in seen.text, "Overdue 0" in seen.text) == (True, True)
    schedules.add("late", "add", at(datetime.now(UTC)))

    def now() -> str:
        visitor.site.parts.cache.forget()
        return visitor.get().text

    eventually(lambda: re.search(r"Overdue 1 the first by \d\.\d s", now()), what="nobody sends it")
    beats[0].run_due()
    assert "Overdue 0" in now()


def test_entries_are_listed_with_their_last_outcomes_and_their_next_run(
    visitor: Visitor, schedules: Schedules, client: redis.Redis
) -> None:
    schedules.add("nightly", "add", cron("0 3 * * *", tz="Europe/Berlin"), tags=["finance"])
    schedules.add("off", "add", every(60), enabled=False)
    recorded(client, schedules, "nightly", "failed", "succeeded")
    seen = visitor.get("entries")
    assert "2 stored." in seen.text
    assert seen.text.index("✗") < seen.text.index("✓")
    assert "cron 0 3 * * * Europe/Berlin" in seen.text
    assert "disabled" in seen.text
    assert 'href="entries?tag=finance"' in seen.html


@pytest.mark.parametrize(
    ("query", "left", "words"),
    [
        ({"q": "night"}, "nightly", "'night*'"),
        ({"q": "*ll"}, "poll", "'*ll'"),
        ({"tag": "finance"}, "nightly", "'*' --tag finance"),
        ({"task": "mul"}, "poll", "'*' --task mul"),
        ({"task": "mu"}, "", ""),
        ({"state": "paused"}, "poll", "--status paused"),
        ({"state": "failed", "q": "n"}, "nightly", "'n*' --status failed"),
        ({"state": "waiting", "q": "poll"}, "", ""),
    ],
)
def test_a_filter_in_the_address_leaves_some(
    visitor: Visitor, schedules: Schedules, client: redis.Redis, query: dict[str, str], left: str, words: str
) -> None:
    schedules.add("nightly", "add", every(60), tags=["finance"])
    schedules.add("poll", "mul", every(60))
    schedules.pause("poll")
    recorded(client, schedules, "nightly", "failed")
    seen = visitor.get("entries", **query)
    assert [name for name in ("nightly", "poll") if f"entry?name={name}" in seen.html] == ([left] if left else [])
    assert seen.text.endswith(f"redbeat list {words}") or not left


def test_no_pattern_of_a_filter_reaches_the_server(visitor: Visitor, schedules: Schedules, server: Server) -> None:
    schedules.add_many(Entry(f"tenant-{n:03d}", "add", every(60 + n)) for n in range(300))
    stars = "*" + "t*" * 290
    visitor.get("entries", q=stars, task=stars)  # connects
    with commands(server) as seen:
        for page in ("entries", "timeline"):
            assert "matches this filter" in visitor.get(page, q=stars, task="*" + "}*]*" * 140).text
    assert all(len(command) < 500 for command in seen), "none has the pieces of a pattern"


def test_a_filter_that_stops_says_at_how_many_entries_it_looked(
    visitor: Visitor, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat_lite.api.selected.READ", 20)
    schedules.add_many(Entry(f"e{n:02}", "add", every(60 + n), tags=["late"] * (n > 50)) for n in range(60))
    seen = visitor.get("entries", tag="late")
    assert "60 stored; the filter looked at the first 20 of them, in due order." in seen.text
    schedules.pause("e03", seconds=10)
    seen = visitor.get("entries", state="paused")
    assert "1 of 60 stored; the filter looked at 10 of them, those that are due first and last." in seen.text
    assert "e03" in seen.text
    assert "looked at" not in visitor.get("entries", q="e5").text
    schedules.select("e4*").pause()
    assert "e41" in visitor.get("entries", state="paused").text


def test_more_entries_than_fit_are_on_further_pages(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add_many(Entry(f"e{number:02}", "add", every(60 + number), tags=["all"]) for number in range(60))
    for query in ({}, {"tag": "all"}):
        first, second = visitor.get("entries", **query), visitor.get("entries", offset=50, **query)
        assert "offset=50" in first.html
        assert "e49" in first.text
        assert "e50" not in first.text
        assert "e50" in second.text
        assert "more →" not in second.text
    assert "e00" in visitor.get("entries", offset="-1").text


def test_an_entry_has_all_about_it_on_its_page(visitor: Visitor, schedules: Schedules, client: redis.Redis) -> None:
    schedules.add("a/b?c&d", "add", cron("30 2 * * *", tz="Europe/Berlin"), kwargs={"x": 7}, description="For Monday")
    recorded(client, schedules, "a/b?c&d", "failed", "succeeded")
    schedules.pause("a/b?c&d", "until the disk is replaced")
    seen = visitor.get("entry", name="a/b?c&d")
    assert seen.status == 200
    for words in (
        *("a/b?c&d paused", "Paused: until the disk is replaced", "For Monday", '{"x": 7}'),
        *("✗ failed", "KeyError: 7", "celery@w1", "paused by"),
        "celery -A proj redbeat resume 'a/b?c&d'",
    ):
        assert words in seen.text


def test_a_clock_change_is_told_where_a_run_meets_it(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add("nightly", "add", cron("30 2 28 3 *", tz="Europe/Berlin"))  # a Sunday in 2027, 2032 and 2038
    assert "! runs in place of 02:30" in visitor.get("entry", name="nightly").text


def test_why_and_who_are_told_when_asked(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add("nightly", "add", every(60))
    schedules.pause("nightly", "the disk")
    paused = schedules.changes("nightly")[0]
    seen = visitor.get("why", name="nightly").text
    assert "'nightly' has had no occurrence yet." in seen
    assert f" paused nightly by {paused.actor} (api): the disk" in seen, "in the timeline"
    assert "It has no next run, because it is paused: the disk." in seen
    assert "the disk" in visitor.get("changes", q="nightly").text


def test_runs_of_all_entries_are_told_and_those_that_failed_apart(
    visitor: Visitor, schedules: Schedules, client: redis.Redis, run_cli: Callable[..., Said]
) -> None:
    schedules.add("nightly", "add", every(60))
    recorded(client, schedules, "nightly", "failed", "succeeded", "expired", "lost")
    for wanted, many in {"": 4, "failed": 3, "expired": 1, "lost": 1, "nonsense": 4}.items():
        seen = visitor.get("runs", outcome=wanted)
        assert seen.html.count("<tr><td>") == many
        [command] = re.findall("redbeat (runs.*)</code>", seen.html)
        assert len(run_cli(visitor.site.parts.app, *command.split(), "--json").json) == many
    assert visitor.get("runs", since="5h").html.count("<tr><td>") == 4
    none = visitor.get("runs", until="9h", outcome="failed")
    assert "None of these." in none.text
    assert "redbeat runs --failed --limit 100 --until 9h" in none.text
    assert "since: expected" in visitor.get("runs", since="yesterday night").text


def test_the_tabs_of_runs_keep_the_rest_of_the_filter(visitor: Visitor) -> None:
    page = visitor.get("runs", since="22:00", until="06:00", q="a*").html
    assert page.count("q=a%2A&amp;since=22%3A00&amp;until=06%3A00") == 4


def test_runs_are_told_of_one_entry_or_of_several(
    visitor: Visitor, schedules: Schedules, client: redis.Redis, run_cli: Callable[..., Said]
) -> None:
    for name, task in (("nightly", "add"), ("nightly-2", "add"), ("poll", "mul")):
        schedules.add(name, task, every(60))
        recorded(client, schedules, name, "failed", "succeeded")
    schedules.add("waits", "add", every(60))
    RunRows(client, schedules).sent("waits", datetime.now(UTC) - HOUR)
    for query, names in (
        ({"q": "nightly"}, ["nightly"] * 2),
        ({"q": "nightly", "outcome": "failed"}, ["nightly"]),
        ({"q": "waits"}, ["waits"]),  # no worker has told of it
        ({"q": "night*"}, ["nightly"] * 2 + ["nightly-2"] * 2),
        ({"q": "*l*", "outcome": "failed"}, ["nightly", "nightly-2", "poll"]),
        ({"q": "nightly", "since": "2h"}, ["nightly"]),
        ({"q": "night"}, []),
    ):
        seen = visitor.get("runs", **query)
        assert sorted(re.findall(r"<td><a href=\"entry\?name=([\w-]+)", seen.html)) == names, query
        [command] = re.findall("redbeat (runs.*)</code>", seen.html)
        if names:
            told = run_cli(visitor.site.parts.app, *shlex.split(html.unescape(command)), "--json").json
            assert sorted(each["name"] for each in told) == names
    assert "night* is for all that begin so" in visitor.get("runs", q="night").text
    [row, *_] = re.findall("<tr><td>.*?</tr>", visitor.get("runs", q="nightly").html, flags=re.DOTALL)
    began = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - HOUR + timedelta(milliseconds=10)
    assert f'datetime="{(began + timedelta(seconds=1.5)).isoformat(timespec="milliseconds")}"' in row, "when it ended"
    assert 'href="runs?q=nightly"' in visitor.get("entry", name="nightly").html


def test_of_many_incidents_the_number_is_told(visitor: Visitor, client: redis.Redis) -> None:
    cases = [incident("failed", f"e{number}", 1_700_000_000_000 + number, "x") for number in range(130)]
    client.hset("{redbeat-lite}:runs:incidents", mapping={case.field: case.encode() for case in cases})
    seen = visitor.get()
    assert ("Incidents 130" in seen.text, "The oldest 100" in seen.text, "e100" in seen.text) == (True, True, False)


def test_a_leader_that_fares_badly_is_not_shown_as_good(
    visitor: Visitor, inner_beat: Scheduler, client: redis.Redis
) -> None:
    inner_beat.run_due()
    assert '<div class="card good"><b>Leader' in visitor.get().html
    report = json.loads(client.hget(KEYS.leader, "report") or b"{}")
    client.hset(KEYS.leader, "report", json.dumps({**report, "failing_for": 300, "why": "the broker is away"}))
    visitor.site.parts.cache.forget()
    assert '<div class="card bad"><b><a href="#status">Leader' in visitor.get().html


def test_a_key_of_another_type_is_not_called_a_server_that_is_away(visitor: Visitor, client: redis.Redis) -> None:
    client.set(KEYS.quarantine, "x", px=60_000)
    seen = visitor.get("quarantine")
    assert (seen.status, "Redis refuses this" in seen.text, KEYS.quarantine in seen.text) == (503, True, True)


def test_of_an_entry_that_is_gone_is_told_who_removed_it_and_what_became_of_its_runs(
    visitor: Visitor, schedules: Schedules, client: redis.Redis
) -> None:
    schedules.add("a b", "add", every(60))
    recorded(client, schedules, "a b", "failed", "succeeded")
    with acting_as("bob@laptop"):
        schedules.remove("a b")
    assert visitor.get("entry", name="a b").location == "why?name=a+b"
    seen = visitor.get("why", name="a b")
    assert seen.status == 404
    for words in ("'a b' does not run: it is not stored.", "removed by bob@laptop", "✗ failed", "redbeat log 'a b'"):
        assert words in seen.text
    assert 'href="changes?q=a+b"' in seen.html
    client.hset(KEYS.quarantine, "aside", json.dumps({"error": "x"}))
    assert 'href="quarantine">Quarantine' in visitor.get("why", name="aside").html


def test_what_is_not_there_is_404(visitor: Visitor) -> None:
    assert visitor.get("entry", name="nope").location == "why?name=nope"
    seen = visitor.get("why", name="nope")
    assert (seen.status, "no entry 'nope' is stored" in seen.text) == (404, True)
    assert visitor.get("nope").status == 404
    assert visitor.get("entry", **{f"f{number}": "" for number in range(200)}).status == 400


def test_all_who_look_share_one_read(look: Callable[..., Visitor], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    visitor = look()
    count = Schedules.incidents
    monkeypatch.setattr(Schedules, "incidents", lambda self, **how: asked.append("once") or count(self, **how))
    first = visitor.get()
    for _ in range(20):
        assert visitor.site.handle(Request("GET", "/")).body.decode() == first.html
    assert asked == ["once"]


def test_without_redis_the_page_lives_and_says_so(
    make_app: Callable[..., Celery], own_server: Callable[..., Server]
) -> None:
    server = own_server()
    options = {"retry": None, "socket_timeout": 0.2, "socket_connect_timeout": 0.2}
    visitor = Visitor(make_app(broker_url=server.url, redbeat_lite_redis_options=options), "pause")
    assert visitor.get().status == 200
    server.stop(kill=True)
    others = ("timeline", "backfills", "changes", "pipelines", "locks", "quarantine", "doctor")
    for page in ("", "entries", "entry", "runs", *others):
        seen = visitor.get(page, name="x", examine="1")
        assert seen.status == 503
        assert "Redis cannot be reached; what is shown may be old" in seen.text
        assert 'aria-label="Pages"' in seen.html
        assert str(server.port) not in seen.html, "where it is, is for those who may edit"
    refused = visitor.post("pause", name="x")
    assert (refused.status, str(server.port) in refused.html) == (503, False)
    editor = Visitor(visitor.site.parts.app, "edit")
    assert str(server.port) in editor.get("runs").html


def test_a_server_that_hangs_holds_up_one_page_and_not_each(
    make_app: Callable[..., Celery], own_server: Callable[..., Server]
) -> None:
    server = own_server()
    options = {"retry": None, "socket_timeout": 0.5, "socket_connect_timeout": 0.5}
    visitor = Visitor(make_app(broker_url=server.url, redbeat_lite_redis_options=options))
    assert visitor.get("entries").status == 200
    server.freeze()
    try:
        assert visitor.get("entries").status == 503
        with round_trips() as trips:
            for page in ("runs", "backfills", "timeline"):
                assert visitor.site.handle(Request("GET", f"/{page}")).status == 503
        assert trips == []
    finally:
        server.thaw()
    eventually(lambda: visitor.get("entries").status == 200, what="the page again")


def test_what_takes_long_to_read_is_not_read_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, asked, shared = [0.0], list[float](), ReadCache()
    monkeypatch.setattr("redbeat_lite.web.call.elapsed", lambda: seconds[0])

    def takes_a_second() -> None:
        asked.append(seconds[0])
        seconds[0] += 1

    for _ in range(60):
        shared.read("list", takes_a_second)
        seconds[0] += 0.5
    assert asked == [0, 11, 22]
    shared.forget()
    shared.read("list", takes_a_second)
    assert len(asked) == 4


def test_what_could_not_be_read_is_read_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, shared, answers = [0.0], ReadCache(), [ConnectionError("away"), ConnectionError("away")]
    monkeypatch.setattr("redbeat_lite.web.call.elapsed", lambda: seconds[0])

    def fails_at_first() -> str:
        seconds[0] += 4
        if answers:
            raise answers.pop()
        return "back"

    for _ in range(4):
        with pytest.raises(ConnectionError):
            shared.read("list", fails_at_first)
        seconds[0] += 1
    assert shared.read("list", fails_at_first) == "back"


def test_each_page_says_which_schedule_it_shows(app: Celery, look: Callable[..., Visitor], server: Server) -> None:
    for page in ("", "entries", "backfills"):
        seen = look("edit").get(page)
        assert f"proj on 127.0.0.1:{server.port}/0, keys {{redbeat-lite}}:*" in seen.text
        assert re.search(r"<title>\w+ · proj on [^<]+ · redbeat</title>", seen.html)
        others = look().get(page).text
        assert "proj, database 0, keys {redbeat-lite}:*" in others
        assert f":{server.port}" not in others


def test_a_password_of_the_server_is_not_on_the_page(look: Callable[..., Visitor], app: Celery) -> None:
    app.conf.redbeat_lite_url = "redis://ada:secret@127.0.0.1:1/3"
    text = look("edit").get("backfills").text
    assert "proj on 127.0.0.1:1/3, keys" in text
    assert "secret" not in text
