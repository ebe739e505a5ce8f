"""What is done from a page, by whom, and what is refused."""

from __future__ import annotations

import html
import re
import shlex
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from redbeat_lite import Schedules, cron, every
from redbeat_lite.web import RIGHTS, Access, Request, Site, actions
from redbeat_lite.web.site import ROUTES
from tests.cli.conftest import Said
from tests.support.cases import together
from tests.support.incidents import incident
from tests.support.messages import queued
from tests.support.server import Server
from tests.web.conftest import OWN, Seen, Visitor
from tests.web.test_pipelines import Runs, runs

__all__ = ["runs"]

ACTIONS = [(path[1:], right) for (method, path), (_, right) in ROUTES.items() if method == "POST"]


@pytest.fixture
def nightly(schedules: Schedules) -> Callable[[], Any]:
    """The entry as it is now."""
    schedules.add("nightly", "add", cron("30 2 * * *", tz="Europe/Berlin"), kwargs={"x": 7}, tags=["a"])
    return lambda: schedules["nightly"]


def test_one_extra_run_is_sent(
    visitor: Visitor, nightly: Callable[[], Any], schedules: Schedules, client: redis.Redis
) -> None:
    assert visitor.post("run", name="nightly", note="once more").location == "entry?name=nightly&did=run"
    [message] = queued(client)
    assert message.kwargs == {"x": 7}
    assert "One extra run was sent." in visitor.get("entry", name="nightly", did="run").text
    [change, _] = schedules.changes("nightly")
    assert (change.action, change.actor, change.way) == ("run now", "ada", "web")
    assert change.note.endswith("once more")


def test_an_entry_is_paused_and_resumed(visitor: Visitor, nightly: Callable[[], Any]) -> None:
    assert visitor.post("pause", name="nightly", note="the disk").status == 303
    assert nightly().paused_note == "the disk"
    assert nightly().last_change.actor == "ada"
    assert visitor.post("resume", name="nightly").status == 303
    assert nightly().paused_note is None


def test_a_resumption_makes_up_for_what_was_missed_if_one_says_so(
    visitor: Visitor, schedules: Schedules, clock: Any
) -> None:
    schedules.add("poll", "add", every(60))
    for form, is_behind in (({}, False), ({"catch_up": "on"}, True)):
        visitor.post("pause", name="poll")
        clock.forward(600)
        visitor.post("resume", name="poll", **form)
        assert (schedules["poll"].next_run_at < clock.now) is is_behind


def test_a_pause_takes_the_place_of_another(visitor: Visitor, nightly: Callable[[], Any]) -> None:
    for form, has_end in (({"for": "10m"}, True), ({"for": "2h"}, True), ({}, False)):
        seen = visitor.post("pause", name="nightly", note=f"pause {form}", **form)
        assert seen.location == "entry?name=nightly&did=pause"
        assert (nightly().paused_note, nightly().paused_until is not None) == (f"pause {form}", has_end)


@together("part", ["entries", "state"], emptied=True)
def test_an_entry_that_cannot_be_read_is_removed(
    visitor: Visitor, schedules: Schedules, client: redis.Redis, part: str
) -> None:
    schedules.add("nightly", "add", every(60))
    client.hset(f"{{redbeat-lite}}:{part}", "nightly", "{garbage")
    assert visitor.post("remove", name="nightly").location == "entries?did=remove"
    assert "nightly" not in schedules


@together("url", ["nope://x", "sqs://", "confluentkafka://x", "redis://[::1"], emptied=True)
def test_only_a_run_needs_the_broker(server: Server, schedules: Schedules, url: str) -> None:
    schedules.add("nightly", "add", every(3600))
    app = Celery("no broker", broker=url)
    app.conf.redbeat_lite_url = server.url
    site = Site(app, access=lambda request: Access("ada", RIGHTS))
    assert site.handle(Request("GET", "/entries")).status == 200
    assert site.handle(Request("POST", "/pause", "", OWN, b"name=nightly")).status == 303
    refused = site.handle(Request("POST", "/run", "", OWN, b"name=nightly"))
    assert (refused.status, b"broker_url: " in refused.body) == (500, True)


def test_a_sentinel_whose_master_is_not_named_is_a_wrong_setting(server: Server, schedules: Schedules) -> None:
    schedules.add("nightly", "add", every(3600))
    app = Celery("no master", broker="sentinel://127.0.0.1:1")
    app.conf.redbeat_lite_url = server.url
    site = Site(app, access=lambda request: Access("ada", RIGHTS))
    refused = site.handle(Request("POST", "/run", "", OWN, b"name=nightly"))
    assert (refused.status, b"broker_transport_options: " in refused.body) == (500, True)


def test_an_entry_is_removed(visitor: Visitor, nightly: Callable[[], Any], schedules: Schedules) -> None:
    assert visitor.post("remove", name="nightly", note="moved out").location == "entries?did=remove"
    assert ("nightly" in schedules, schedules.changes("nightly")[0].note) == (False, "moved out")
    assert "Removed." in visitor.get("entries", did="remove").text


def test_an_edit_shows_what_it_changes_before_it_is_saved(visitor: Visitor, nightly: Callable[[], Any]) -> None:
    form = {"cron": "30 2 * * mon", "jitter": "10s", "tags": "b,a"}
    shown = visitor.post("edit", name="nightly", version=1, **form)
    assert shown.status == 200
    assert "30 2 * * * 30 2 * * mon" in shown.text
    assert "redbeat edit nightly --cron '30 2 * * mon' --tz Europe/Berlin --jitter 10s --tags b,a" in shown.text
    assert "Its next runs:" in shown.text
    assert nightly().version == 1
    for name, text in form.items():
        assert f'<input type="hidden" name="{name}" value="{text}">' in shown.html
    saved = visitor.post("edit", name="nightly", version=1, save=1, note="less load", **form)
    assert (saved.location, nightly().last_change.note) == ("entry?name=nightly&did=edit", "less load")
    assert (nightly().schedule, nightly().jitter) == (cron("30 2 * * mon", tz="Europe/Berlin"), 10)
    assert (nightly().tags, nightly().kwargs, nightly().last_change.way) == (("a", "b"), {"x": 7}, "web")


def test_an_edit_of_what_was_changed_meanwhile_is_not_saved(
    visitor: Visitor, nightly: Callable[[], Any], schedules: Schedules
) -> None:
    schedules.update("nightly", jitter=5)
    refused = visitor.post("edit", name="nightly", version=1, save=1, max_runs="3")
    assert refused.status == 400
    assert "somebody else has changed this entry" in refused.text
    assert 'name="max_runs" value="3"' in refused.html
    assert 'name="version" value="2"' in refused.html
    assert nightly().max_runs is None


def test_the_note_of_a_form_comes_back_with_it_and_from_no_link(
    visitor: Visitor, nightly: Callable[[], Any], schedules: Schedules
) -> None:
    schedules.update("nightly", jitter=5)
    refused = visitor.post("edit", name="nightly", version=1, save=1, max_runs="3", note="less load")
    assert (refused.status, refused.html.count('name="note" maxlength="500" value="less load"')) == (400, 1)
    shown = visitor.post("edit", name="nightly", version=2, max_runs="3", note="less load")
    assert shown.html.count('value="less load"') == 2
    added = visitor.post("add", name="weekly", task="add", every="soon", note="as asked")
    assert (added.status, 'value="as asked"' in added.html) == (400, True)
    for page in ("entry", "edit"):
        assert "as asked" not in visitor.get(page, name="nightly", note="as asked").html


def test_what_has_gone_since_its_form_was_shown_is_told_once(
    visitor: Visitor, nightly: Callable[[], Any], schedules: Schedules
) -> None:
    schedules.remove("nightly")
    refused = visitor.post("edit", name="nightly", version=1, save=1, max_runs="3")
    assert (refused.status, refused.html.count('role="alert"')) == (404, 0)
    assert "<h1>This cannot be done" in refused.html


def test_an_edit_that_is_overtaken_while_it_is_saved_is_not_saved(
    visitor: Visitor, nightly: Callable[[], Any], schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = actions._changes

    def overtaken(options: Any, site: Any) -> dict[str, Any]:
        schedules.update("nightly", jitter=5)
        return read(options, site)

    monkeypatch.setattr(actions, "_changes", overtaken)
    assert visitor.post("edit", name="nightly", version=1, save=1, max_runs="3").status == 400
    assert nightly().max_runs is None


def test_what_was_done_is_seen_at_once(look: Callable[..., Visitor], nightly: Callable[[], Any]) -> None:
    site = look("pause").site
    asked = Request("GET", "/entry", "name=nightly")
    assert b"disk" not in site.handle(asked).body
    assert site.handle(Request("POST", "/pause", "", OWN, b"name=nightly&note=disk")).status == 303
    assert b"disk" in site.handle(asked).body


@together(
    ("form", "said"),
    [
        ({"cron": "30 25 * * *"}, "cron: expected"),
        ({"kwargs": "{"}, "expected JSON object"),
        ({"max_runs": "many"}, "max_runs: expected"),
        ({"max_runs": "9" * 5000}, "max_runs: expected"),
        ({"cron": ""}, "schedule: expected one of every,"),
        ({"every": "60"}, "every: expected one schedule, got 'every and cron'"),
        ({"cron": "", "tz": "", "schedule": "[" * 99_000}, "schedule: expected JSON"),
        ({"calendar": "nope"}, "no calendar 'nope' is stored"),
        ({"task": ""}, "task: expected"),
        ({"cron_seconds": "nonsense"}, "cron"),
        ({}, "entry: expected a change"),
    ],
)
def test_an_edit_that_cannot_be_saved_says_why(
    visitor: Visitor, nightly: Callable[[], Any], form: dict[str, str], said: str
) -> None:
    for save in ({}, {"save": "1"}):
        refused = visitor.post("edit", name="nightly", version=1, **form, **save)
        assert refused.status == 400
        assert said in refused.text
    assert nightly().version == 1


def test_the_form_explains_its_inputs_by_their_names(visitor: Visitor) -> None:
    form = visitor.get("add")
    assert "With every: at round multiples, not counted from now." in form.text
    assert "Zone of cron, rrule and at." in form.text
    assert "--" not in form.text


@together(
    "fields",
    [
        {"schedule": every(90, align=True), "once": True, "expect": {"start_within": 30}, "misfire": {"grace": 5}},
        {"schedule": cron("0 0 3 * * *", seconds="first"), "expires": None, "history": 3, "description": "two\nlines"},
        {
            "schedule": every(60),
            "start_at": datetime(2030, 1, 1, tzinfo=UTC),
            "on_failure": "pause:3",
            "tags": ["b", "a"],
            "enabled": False,
            "args": [1, "two"],
            "options": {"queue": "slow"},
            "max_runs": 9,
        },
    ],
    emptied=True,
)
def test_a_form_that_is_posted_as_it_came_changes_nothing(
    visitor: Visitor, schedules: Schedules, fields: dict[str, Any]
) -> None:
    before = schedules.add("e", "add", **fields)
    typed = _typed(visitor.get("edit", name="e"))
    assert "entry: expected a change" in visitor.post("edit", name="e", version=1, **typed).text
    assert visitor.post("edit", name="e", version=1, save=1, **{**typed, "history": "7"}).status == 303
    assert schedules["e"] == before.replace(history=7)


def _typed(seen: Seen) -> dict[str, str]:
    """The fields of the form, as a browser posts them."""
    form = seen.html[seen.html.index('class="edit"') :]
    found = dict(re.findall(r'<input name="(\w+)" value="([^"]*)"', form))
    found |= dict(re.findall(r'<textarea name="(\w+)" rows="2">\n([^<]*)</textarea>', form))
    for name, choices in re.findall(r'<select name="(\w+)">(.*?)</select>', form):
        chosen = re.findall(r"<option selected>([^<]*)", choices)
        found[name] = chosen[0] if chosen else ""
    return {name: html.unescape(text).replace("\n", "\r\n") for name, text in found.items()}


def test_a_config_entry_is_not_edited_here(make_app: Callable[..., Celery], make_beat: Callable[..., Any]) -> None:
    app = make_app(beat_schedule={"tick": {"task": "add", "schedule": 60}})
    make_beat(app).run_due()
    visitor = Visitor(app, *RIGHTS)
    assert 'href="edit?' not in visitor.get("entry", name="tick").html
    assert visitor.get("edit", name="tick").status == 400
    assert visitor.post("edit", name="tick", version=1, save=1, jitter="3").status == 400
    assert "Its configuration stores it again" in visitor.get("entry", name="tick").text


@pytest.mark.parametrize(("page", "needs"), ACTIONS)
def test_who_has_all_rights_but_one_may_not_do_what_takes_it(
    look: Callable[..., Visitor],
    nightly: Callable[[], Any],
    schedules: Schedules,
    client: redis.Redis,
    page: str,
    needs: str,
) -> None:
    others, before = look(*(right for right in RIGHTS if right != needs)), datetime.now(UTC) - timedelta(days=3)
    case = incident("failed", "nightly", 1_700_000_000_000, "")
    client.hset("{redbeat-lite}:runs:incidents", case.field, case.encode())
    begun = schedules.backfills.start("nightly", before, before + timedelta(days=1), max_active=None)
    freeze = schedules.freeze(9)
    ids = {"ack": case.id}
    ids |= {f"backfills-{does}": begun.id for does in ("pause", "resume", "cancel")}
    form = {"name": "nightly", "version": "1", "save": "1", "jitter": "9", "q": "night", "for": "1h"}
    form |= {"from": before.isoformat(), "to": datetime.now(UTC).isoformat(), "max_active": "none", "note": "why"}
    form |= {"id": ids.get(page, ""), "again": "1"}
    form |= {"name": "other", "every": "60", "task": "add"} if page == "add" else {}
    assert others.post(page, **form).status == 403
    assert (nightly().version, nightly().jitter, queued(client)) == (1, 0, [])
    assert [*schedules.backfills] == [begun]
    assert (schedules.frozen(), schedules.incidents()[0].acknowledged) == (freeze, None)
    assert "other" not in schedules
    for shown in ("", "entry", "entries", "backfills"):
        seen = others.get(shown, name="nightly", q="nightly")
        assert f'action="{page}"' not in seen.html
        assert page != "add" or 'href="add"' not in seen.html
        assert shown != "entry" or f'href="{page}?' not in seen.html
    there = page.startswith(("pipelines-", "locks-", "quarantine-"))  # of these there is none
    if page.endswith("-all"):
        form.pop("save")
        assert look(needs).confirm(page, **form).status == 303
    else:
        assert look(needs).post(page, **form).status in ((400, 404) if there else (303,))


NEW = {"name": "weekly", "task": "add", "cron": "30 2 * * mon", "tz": "Europe/Berlin", "tags": "b,a"}


def test_an_entry_is_added_once_it_was_seen_what_it_will_be(
    visitor: Visitor, nightly: Callable[[], Any], schedules: Schedules, run_cli: Callable[..., Said]
) -> None:
    assert 'href="add"' in visitor.get("entries").html
    typed = {**_typed(visitor.get("add")), **NEW, "kwargs": '{"x": 7}'}
    shown = visitor.post("add", **typed)
    assert (shown.status, "Its next runs:" in shown.text, "weekly" in schedules) == (200, True, False)
    assert "cron 30 2 * * mon" in shown.text
    [command] = re.findall("redbeat (add weekly .*)</code>", shown.html)
    posted = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', shown.html))
    saved = visitor.post("add", **{name: html.unescape(text) for name, text in posted.items()}, save=1, note="as asked")
    assert saved.location == "entry?name=weekly&did=add"
    made = schedules["weekly"]
    assert (made.schedule, made.tags, made.kwargs) == (cron("30 2 * * mon", tz="Europe/Berlin"), ("a", "b"), {"x": 7})
    change = schedules.changes("weekly")[0]
    assert (change.actor, change.way, change.note) == ("ada", "web", "as asked")
    schedules.remove("weekly")
    run_cli(visitor.site.parts.app, *shlex.split(html.unescape(command)))
    assert schedules["weekly"] == made


def test_spaces_around_what_was_pasted_are_no_part_of_a_new_entry(visitor: Visitor, schedules: Schedules) -> None:
    typed = {**NEW, "name": " weekly", "task": "add "}
    assert "redbeat add weekly add --cron" in visitor.post("add", **typed).text
    assert visitor.post("add", **typed, save=1).location == "entry?name=weekly&did=add"
    assert schedules["weekly"].task == "add"


@together(
    ("form", "status", "said"),
    [
        ({"name": "nightly"}, 400, "entry 'nightly' is stored already"),
        ({"name": ""}, 400, "name: expected"),
        ({"task": ""}, 400, "task: expected"),
        ({"cron": ""}, 400, "schedule: expected one of every,"),
        ({"every": "60"}, 400, "every: expected one schedule"),
        ({"kwargs": "{"}, 400, "expected JSON object"),
        ({"cron": "", "at": "2020-01-01", "tags": ""}, 400, "expected"),
    ],
)
def test_an_entry_that_cannot_be_added_says_why_and_keeps_what_was_typed(
    visitor: Visitor, nightly: Callable[[], Any], schedules: Schedules, form: dict[str, str], status: int, said: str
) -> None:
    for save in ({}, {"save": "1"}):
        refused = visitor.post("add", **{**NEW, "jitter": "7s", **form}, **save)
        assert (refused.status, said in refused.text) == (status, True), refused.text
        assert 'name="jitter" value="7s"' in refused.html
    assert ([*schedules], nightly().version) == (["nightly"], 1)


@pytest.mark.parametrize(
    "form",
    [
        {"tz": ""},
        {"cron": "0 4 * * *"},
        {"cron": "", "every": "90", "tz": ""},
        {"cron": "", "rrule": "FREQ=DAILY", "tz": ""},
        {"jitter": "5s"},
    ],
)
def test_the_command_of_an_edit_does_what_is_saved(
    visitor: Visitor,
    schedules: Schedules,
    nightly: Callable[[], Any],
    run_cli: Callable[..., Said],
    form: dict[str, str],
) -> None:
    shown = visitor.post("edit", name="nightly", version=1, **form)
    [command] = re.findall("redbeat (edit nightly .*)</code>", shown.html)
    assert visitor.post("edit", name="nightly", version=1, save=1, **form).status == 303
    saved = nightly().replace()
    schedules.remove("nightly")
    schedules.add("nightly", "add", cron("30 2 * * *", tz="Europe/Berlin"), kwargs={"x": 7}, tags=["a"])
    run_cli(visitor.site.parts.app, *shlex.split(html.unescape(command)))
    assert nightly().as_dict()["schedule"] == saved.as_dict()["schedule"]
    assert nightly().jitter == saved.jitter


def test_an_edit_of_one_that_bore_the_name_before_is_not_saved(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add("g", "add", every(60))
    form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', visitor.get("edit", name="g").html))
    schedules.remove("g")
    schedules.add("g", "mul", every(90))
    assert visitor.post("edit", **form, save=1, jitter="5s").status == 400
    assert schedules["g"].jitter == 0


def test_who_may_look_sees_no_button_and_no_form(look: Callable[..., Visitor], nightly: Callable[[], Any]) -> None:
    seen = look().get("entry", name="nightly")
    assert "<form" not in seen.html
    assert look().get("edit", name="nightly").status == 403


@together(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "https://other.example.org", "host": "ops.example.org"},
        {"origin": "http://evil.example.org", "host": "ops.example.org"},
        {"origin": "null", "host": "ops.example.org"},
        {"origin": "http://", "host": ""},
        {"cookie": "sessionid=1"},
    ],
)
def test_what_another_site_posts_is_refused(
    visitor: Visitor, nightly: Callable[[], Any], client: redis.Redis, headers: dict[str, str]
) -> None:
    form = {"name": "nightly", "version": "1", "save": "1", "jitter": "9"}
    assert {visitor.post(page, headers, **form).status for page, _ in ACTIONS} == {403}
    assert (nightly().version, queued(client)) == (1, [])


@together(
    "headers",
    [
        OWN,
        {"sec-fetch-site": "none"},
        {"origin": "http://10.0.0.5:5556", "host": "10.0.0.5:5556"},
        {"origin": "https://Ops.example.org", "host": "ops.example.org"},
        {"origin": "https://front.example.org", "host": "inner:8000", "sec-fetch-site": "cross-site"},
        {"authorization": "Bearer x"},
    ],
)
def test_what_the_page_itself_or_a_program_posts_is_done(
    look: Callable[..., Visitor], nightly: Callable[[], Any], headers: dict[str, str]
) -> None:
    visitor = look("pause", trusted_origins=["https://front.example.org"])
    assert visitor.post("pause", headers, name="nightly").status == 303


def test_nothing_is_done_by_looking(visitor: Visitor, nightly: Callable[[], Any]) -> None:
    for page, _ in ACTIONS:
        assert visitor.get(page, name="nightly", save="1", jitter="9").status in (200, 404)
    assert nightly().version == 1


def test_a_broker_that_is_away_is_told(
    visitor: Visitor, nightly: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: object, **more: object) -> None:
        raise OperationalError("no route to rabbit")

    monkeypatch.setattr(Schedules, "run_now", away)
    refused = visitor.post("run", name="nightly")
    assert (refused.status, "does not answer: no route to rabbit" in refused.text) == (503, True)


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_hangs_is_given_up_though_the_app_would_wait(
    make_app: Callable[..., Celery], server: Server, schedules: Schedules, runs: Runs, scheme: str
) -> None:
    schedules.add("e", "add", every(60))
    runs.end(runs.start(("a", 1), run_id="bad"), 0, "FAILED")
    runs.begin(runs.start(("a", 1), run_id="going"), 0, renew_ms=60_000)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # takes connections, and answers nothing
        broker = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
        visitor = Visitor(
            make_app(broker_url=broker, redbeat_lite_url=server.url, redbeat_lite_publish_timeout=0.1), *RIGHTS
        )
        for refused in (
            visitor.post("run", name="e"),
            visitor.confirm("run-all", q="e"),
        ):
            assert (refused.status, "The broker cannot be reached, or does not answer" in refused.text) == (503, True)
        # The sweeper kills the steps of the one and starts those of the other.
        assert visitor.post("pipelines-cancel", id="going", terminate="on").status == 303
        assert visitor.post("pipelines-resume", id="bad").status == 303
