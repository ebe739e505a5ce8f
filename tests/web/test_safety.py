"""Nobody sees or does what is not theirs, and whatever people write stays text."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, Signature, chain

from redbeat_lite import InvalidEntry, Once, Pipeline, PipelineTask, Schedules, every, lock
from redbeat_lite._base.errors import ConfigurationError
from redbeat_lite._base.text import clean
from redbeat_lite.entries import lifecycle
from redbeat_lite.entries.model import encode
from redbeat_lite.pipeline.pipeline_store import store_of
from redbeat_lite.rules.misfire import Plan
from redbeat_lite.store.records import Refused
from redbeat_lite.web import RIGHTS, Access, Request, Response, Site
from redbeat_lite.web.http import MAX_BODY
from redbeat_lite.web.site import ROUTES
from redbeat_lite.web.users import Users, line
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.incidents import incident
from tests.web.conftest import OWN, Visitor
from tests.web.test_pages import recorded
from tests.web.test_pipelines import Runs, runs

__all__ = ["runs"]

#: All that we make pages of.
TAGS = {
    *("html", "head", "meta", "title", "link", "script", "body", "a", "header", "nav", "span", "p", "main", "h1", "h2"),
    *("section", "div", "b", "small", "table", "thead", "tr", "th", "td", "time", "i", "form", "label", "input"),
    *("select", "option", "button", "code", "ol", "li", "ul", "dl", "dt", "dd", "details", "summary", "bdi"),
    *("textarea", "fieldset", "legend", "del", "ins", "progress", "svg", "rect", "path"),
    *("text", "article", "caption"),
}
ATTRIBUTES = {
    *("lang", "charset", "name", "content", "rel", "href", "src", "defer", "class", "id", "role", "tabindex", "scope"),
    *("aria-label", "aria-current", "aria-hidden", "datetime", "title", "action", "method", "type", "value", "rows"),
    *("placeholder", "selected", "maxlength", "data-live", "data-part", "data-gone", "data-key", "required"),
    *("aria-invalid", "aria-describedby", "autofocus"),
    *(
        "formaction",
        "form",
        "checked",
        "max",
        "viewbox",
        "preserveaspectratio",
        "x",
        "y",
        "d",
        "width",
        "height",
        "text-anchor",
    ),
}
#: Where our links lead: to a page, or to what the browser loads besides.
LEADS = re.compile(r"\./$|#(?:content|incidents)$|[a-z-]+([?]|$)|[a-z]+-[0-9a-f]{12}\.")


class Markup(HTMLParser):
    """Looks for what is none of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.foreign |= {tag} - TAGS | given.keys() - ATTRIBUTES
        self.foreign |= {"script"} if tag == "script" and "src" not in given else set()
        leads = [given[name] for name in ("href", "src", "action", "formaction") if name in given]
        self.foreign |= {where for where in leads if not LEADS.match(where)}

    @classmethod
    def of(cls, page: str) -> set[str]:
        parser = cls()
        parser.feed(page)
        return parser.foreign


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "</textarea></title><svg/onload=alert(1)>",
    "a&did=remove#x",
    "../../entries",
    "‮evil⁦",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_people_write_stays_text(
    visitor: Visitor, schedules: Schedules, client: redis.Redis, runs: Runs, text: str
) -> None:
    schedules.add(text, "add", every(60), kwargs={text: text}, description=text, tags=["t"], options={"queue": "q"})
    schedules.pause(text, text)
    recorded(client, schedules, text, "failed", worker=text, error=text)
    runs.end(runs.start(("a", 1), run_id="bad"), 0, "FAILED", text)
    going = runs.start((clean(text), 1), run_id="going")
    store_of(runs.app).change(runs.begin(going, 0), percent=45, note=text)
    client.hset(KEYS.quarantine, text, json.dumps({"error": text, "definition": json.dumps({"task": text})}))
    case = incident("failed", text, 1_700_000_000_000, text, acknowledged=text)
    client.hset("{redbeat-lite}:runs:incidents", case.field, case.encode())
    schedules.freeze(3600, text)
    begun = datetime.now(UTC) - timedelta(minutes=5)
    schedules.backfills.start(text, begun, datetime.now(UTC), max_active=None, note=text)
    pages = [path[1:] for method, path in ROUTES if method == "GET" and path != "/pipeline"]
    with lock(runs.app, text):
        seen = [visitor.get(page, name=text, q=text, by=text, span=text, until=text) for page in pages]
        seen += [visitor.get("pipelines"), *(visitor.get("pipeline", id=each) for each in ("bad", "going"))]
        seen += [visitor.get(page) for page in ("locks", "quarantine", "runs")]
    assert all(clean(text) in each.text for each in seen[-6:]), [each.text for each in seen[-6:]]
    seen.append(visitor.get("pipelines", state=text))
    seen += [visitor.get(page, tag="t", name=text) for page in ("entries", "timeline", "changes")]
    seen += [visitor.post(f"{does}-all", q=text, tag="t", note=text) for does in ("pause", "resume", "run", "remove")]
    seen.append(visitor.post("freeze", **{"for": text}))
    seen += [visitor.get(page, name=text) for page in ("why", "entry")]
    seen += [visitor.post("pause-all", pick=text), visitor.post("add", name=text, task=text, cron=text, kwargs=text)]
    seen += [
        visitor.post("add", name=f"{text}+", task=text, every="60"),
    ]
    seen += [visitor.get("why", name=f"{text}!"), visitor.get("entries", tag=text, state=text, task=text)]
    seen += [visitor.post("edit", name=text, version=9, description=f"{text}{text}"), visitor.post("pause", name=text)]
    for each in seen[:-1]:
        assert each.status in (200, 400, 404), each.text
        assert Markup.of(each.html) == set(), each.html
        read = re.sub("<textarea.*?</textarea>", "", each.html, flags=re.DOTALL)
        assert not any(mark in re.sub('value="[^"]*"', "", read) for mark in "\u202e\u2066"), each.html
    assert any(clean(text) in each.text for each in seen)
    assert visitor.post("resume", name=text).status == 303
    assert schedules[text].paused_note is None


def test_garbage_in_redis_ends_no_page(visitor: Visitor, schedules: Schedules, client: redis.Redis) -> None:
    schedules.add("good", "add", every(3600))
    client.hset(KEYS.entries, b"bad\xff\xfe", b"{")
    client.hset(KEYS.state, b"bad\xff\xfe", client.hget(KEYS.state, "good") or b"")
    client.zadd(KEYS.due, {b"bad\xff\xfe": 9e12})
    client.hset(KEYS.quarantine, "aside", json.dumps({"error": "<b>"}))
    client.xadd(KEYS.changes, {b"change": b"{", b"fields": b"\xff", b"names": b"7", b"count": b"x"})
    for page in ("", "entries", "runs", "timeline", "backfills", "changes"):
        assert visitor.get(page).status == 200
    assert visitor.get("why", name="bad\xff").status == 404
    assert "Quarantine 1 set aside" in visitor.get().text


def test_every_answer_is_held_to_its_own_scripts_and_frames(visitor: Visitor) -> None:
    style = next(path for path in visitor.site.parts.assets if path.startswith("style"))
    for answer in (visitor.get(), visitor.get("nope"), visitor.post("run", {}), visitor.get(style)):
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for page in (visitor.get(), visitor.get("entries")):
        assert " style=" not in page.html
        assert "<style" not in page.html
        assert page.html.count("<script") == page.html.count("defer></script>") == 1
    assert "immutable" in visitor.get(style).headers["Cache-Control"]
    assert visitor.get().headers["Cache-Control"] == "private, no-store"


def test_all_that_the_browser_loads_is_small(visitor: Visitor) -> None:
    assert sum(len(gzip.compress(body)) for body, _ in visitor.site.parts.assets.values()) < 30_000


def test_arguments_are_for_those_who_may_edit(look: Callable[..., Visitor], schedules: Schedules) -> None:
    schedules.add(
        "e", "add", every(60), args=["hunter2"], kwargs={"x": "hunter2"}, options={"headers": {"h": "hunter2"}}
    )
    assert "hunter2" not in look("run", "pause", "remove").get("entry", name="e").html
    assert look("edit").get("entry", name="e").html.count("hunter2") == 3
    schedules.add("d", "add", every(60), kwargs={"since": datetime(2026, 1, 1, tzinfo=UTC)})
    assert "2026-01-01" in look("edit").get("entry", name="d").text
    schedules.add("c", chain(Signature("add", args=("hunter2",)), Signature("add")), every(60))
    for page in ("", "entries", "entry"):
        assert "hunter2" not in look("run").get(page, name="c").html


def test_params_of_a_pipeline_are_for_those_who_may_edit(
    app: Celery, look: Callable[..., Visitor], schedules: Schedules
) -> None:
    @app.task(name="step", base=PipelineTask, shared=False)
    def step(params: dict[str, Any]) -> None: ...

    schedules.add("p", Pipeline(app, [("load", "step", 1)], {"password": "hunter2"}), every(60))
    seen = look("run").get("entry", name="p")
    assert ("1. load" in seen.text, "hunter2" in seen.html) == (True, False)
    assert "hunter2" in look("edit").get("entry", name="p").html
    assert "hunter2" not in look("edit", redact=lambda field, value: "…").get("entry", name="p").html


def test_the_record_of_changes_tells_no_options(look: Callable[..., Visitor], schedules: Schedules) -> None:
    schedules.add("e", "add", every(60), options={"headers": {"h": "hunter1"}})
    schedules.update("e", options={"headers": {"h": "hunter2"}})
    for visitor in (look(), look(*RIGHTS, redact=lambda field, value: "…")):
        seen = [visitor.get("changes"), *(visitor.get(page, name="e") for page in ("entry", "why"))]
        assert not any("hunter" in each.html for each in seen)
        assert "options" in seen[0].text


def test_what_is_wrong_is_told_without_what_came_instead_wherever_it_is(
    look: Callable[..., Visitor], schedules: Schedules, client: redis.Redis
) -> None:
    schedules.add("e", "add", every(60))
    wrong, now = "kwargs.x: expected text, got 'hunter2'", schedules["e"].state
    failed = lifecycle.failed(now, f"InvalidEntry: {wrong}", Plan((), now.nominal))
    client.hset(KEYS.state, "e", failed.encode())
    client.hset(KEYS.meta, "refused", Refused("app", 1, {"e": wrong}).encode())
    case = incident("cannot_publish", "e", 1_700_000_000_000, wrong)
    client.hset("{redbeat-lite}:runs:incidents", case.field, case.encode())
    for visitor, many in ((look("run"), 0), (look(*RIGHTS, redact=lambda field, value: "…"), 0), (look("edit"), 1)):
        seen = [visitor.get(), visitor.get("entry", name="e"), visitor.get("why", name="e")]
        assert ["hunter2" in each.html for each in seen] == [bool(many)] * 3
        assert all("kwargs.x: expected text" in each.text for each in seen)


def test_what_cannot_be_run_is_told_without_its_arguments(look: Callable[..., Visitor], schedules: Schedules) -> None:
    schedules.add("e", "add", every(60), kwargs={"x": 1, "y": "hunter2"}, once=Once(key="{x[0]}", scope="queue"))
    refused = look("run").post("run", name="e")
    assert (refused.status, "once.key: expected" in refused.text, "hunter2" in refused.html) == (400, True, False)


def test_nobody_sees_more_by_redact_than_without_it(look: Callable[..., Visitor], schedules: Schedules) -> None:
    schedules.add("e", "add", every(60), kwargs={"db": {"password": "hunter2"}})
    assert "hunter2" not in look(redact=lambda field, value: value).get("entry", name="e").html


def test_redact_decides_what_those_see_who_may_edit(look: Callable[..., Visitor], schedules: Schedules) -> None:
    schedules.add("e", "add", every(60), kwargs={"x": "hunter2", "y": 7})
    visitor = look("edit", redact=lambda field, value: {**value, "x": "…"} if field == "kwargs" else value)
    assert '{"x": "…", "y": 7}' in visitor.get("entry", name="e").text
    assert visitor.post("edit", name="e", version=1, save=1, jitter=3).status == 303
    shown = [visitor.get("entry", name="e"), visitor.get("edit", name="e")]
    shown += [visitor.post("edit", name="e", version=2, jitter=5), visitor.get("changes", q="e")]
    shown += [visitor.post("edit", name="e", version=2, kwargs="{}"), visitor.post("edit", name="e", version=9)]
    assert all("hunter2" not in seen.html for seen in shown)
    assert schedules["e"].kwargs == {"x": "hunter2", "y": 7}


HERE = {"client": "127.0.0.1", "headers": {"host": "localhost:5556"}}


@together(
    ("asked", "status"),
    [
        (HERE, 200),
        ({"client": "::1", "headers": {"host": "[::1]:5556"}}, 200),
        ({"client": "10.0.0.7", "headers": {"host": "localhost:5556"}}, 403),
        ({"client": "", "headers": {"host": "localhost"}}, 403),
        ({"client": "127.0.0.1", "headers": {"host": "evil.example.org"}}, 403),
        ({"client": "127.0.0.1", "headers": {"host": "127.0.0.1.evil.example.org"}}, 403),
        ({"client": "127.0.0.1", "headers": {}}, 403),
        ({"client": "127.0.0.1", "headers": {"host": "localhost", "x-forwarded-for": "8.8.8.8"}}, 403),
    ],
)
def test_without_access_the_page_is_for_this_machine_alone(app: Celery, asked: dict[str, Any], status: int) -> None:
    assert Site(app).handle(Request("GET", "/", **asked)).status == status


def test_and_read_only(app: Celery, schedules: Schedules) -> None:
    schedules.add("e", "add", every(60))
    site = Site(app)
    for page in ("run", "pause", "remove", "edit"):
        asked = Request("POST", f"/{page}", "", {**HERE["headers"], **OWN}, b"name=e", client="127.0.0.1")  # type: ignore[dict-item]
        assert site.handle(asked).status == 403
    assert schedules["e"].version == 1


def test_a_wrong_setting_is_shown_on_the_page(make_app: Callable[..., Celery]) -> None:
    app = make_app(redbeat_lite_lease="s3cr3t-w0rd")
    wrong = "redbeat_lite_lease: expected seconds, at least 1 and at most 86400"
    editor, staff = Visitor(app, "edit"), Visitor(app)
    for visitor in (editor, staff):
        assert visitor.get("style.css").status == 404, "what needs no settings is answered as ever"
        assert [visitor.get(page).status for page in ("", "entries", "doctor")] == [500] * 3
        assert wrong in visitor.get("entries").text
    assert "s3cr3t-w0rd" in editor.get().text
    assert "s3cr3t-w0rd" not in staff.get().text
    assert editor.post("pause", name="e").status == 403
    assert editor.post("edit", name="e").status == 500


def test_access_decides_who_sees_anything(app: Celery) -> None:
    answers: list[Any] = [None, Access("ada", ()), Access("ada", {"run"}), Response(302, b"", (("Location", "/in"),))]
    site = Site(app, access=lambda request: answers.pop(0))
    asked = [Request("GET", "/"), Request("GET", "/entries"), Request("POST", "/run", "", OWN), Request("GET", "/")]
    assert [site.handle(request).status for request in asked] == [403, 403, 403, 302]


def test_access_names_somebody_and_rights_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"rights: expected some of view, run, .* got delete"):
        Access("ada", {"delete"})
    with pytest.raises(InvalidEntry, match="actor"):
        Access("")
    assert Access("ada").rights == ("view",)


def test_too_much_is_not_read(visitor: Visitor) -> None:
    asked = Request("POST", "/pause", "", OWN, b"x" * (MAX_BODY + 1))
    assert visitor.site.handle(asked).status == 413


@together(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "origin": "https://ops.example.org"}, 200),
    ],
)
def test_another_site_leads_here_and_has_nothing_read_in_passing(
    app: Celery, headers: dict[str, str], status: int
) -> None:
    site = Site(app, access=lambda request: Access("ada"), trusted_origins=["https://ops.example.org"])
    for page in ("/", "/doctor"):
        assert site.handle(Request("GET", page, "examine=1", headers)).status == status


def test_a_method_that_a_page_does_not_know_is_404_and_head_has_no_body(visitor: Visitor) -> None:
    for path, method in (("/pause", "GET"), ("/entries", "DELETE"), ("/entries", "POST")):
        assert visitor.site.handle(Request(method, path, "", OWN)).status == 404, path
    got, head = (visitor.site.handle(Request(method, "/backfills")) for method in ("GET", "HEAD"))
    assert head.body == b""
    assert dict(head.headers)["Content-Length"] == str(len(got.body))


def test_a_wrong_form_says_where_it_is_wrong(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add("stored", "add", every(60))
    for page, form, field in (
        ("add", {"name": "e", "task": "add", "every": "x"}, "every"),
        ("add", {"name": "e", "task": "add", "every": "60", "max_runs": "x"}, "max_runs"),
        ("add", {"name": "e", "task": "add", "every": "60", "kwargs": "{"}, "kwargs"),
    ):
        seen = visitor.post(page, **form)
        assert seen.status == 400, seen.text
        assert "<title>Error: " in seen.html
        assert 'id="error" role="alert" tabindex="-1" autofocus' in seen.html
        [wrong] = re.findall(r'<\w+ name="([\w-]+)" aria-invalid="true" aria-describedby="error"', seen.html)
        assert wrong == field
    assert "Error: " not in visitor.get("add").html


def test_buttons_of_rows_have_names_of_their_own(
    visitor: Visitor, schedules: Schedules, app: Celery, client: redis.Redis
) -> None:
    schedules.add("e", "add", every(60))
    for name in ("a", "b"):
        client.hset(KEYS.quarantine, name, json.dumps({"error": "x"}))
        case = incident("failed", name, 1_700_000_000_000, "x")
        client.hset("{redbeat-lite}:runs:incidents", case.field, case.encode())
        before = datetime.now(UTC) - timedelta(minutes=5)
        schedules.backfills.start("e", before, datetime.now(UTC), max_active=None, again=ord(name))
    with lock(app, "a"), lock(app, "b"):
        for page in ("", "quarantine", "backfills", "locks"):
            html = visitor.get(page).html
            names = re.findall(r'<summary aria-label="([^"]*)"', html)
            assert len(names) == len({*names}) >= 2, page
            assert html.count("<table>") == html.count('<caption class="hidden">') >= 1


def _basic(name: str, password: str) -> Request:
    given = base64.b64encode(f"{name}:{password}".encode()).decode()
    return Request("GET", "/", headers={"authorization": f"Basic {given}"})


def test_users_of_a_file_sign_in_by_their_password(app: Celery, tmp_path: Path) -> None:
    path = tmp_path / "users.txt"
    path.write_text(f"# who\n\n{line('ada', 'run,pause', 'péché')}\n{line('bob', 'view', 'b')}\n")
    users = Users(path)
    assert users(_basic("ada", "péché")) == users(_basic("ada", "péché")) == Access("ada", {"view", "run", "pause"})
    assert users(_basic("bob", "b")) == Access("bob", {"view"})
    wrong = [_basic("ada", "b"), _basic("eve", "b"), _basic("ada", ""), Request("GET", "/")]
    wrong += [Request("GET", "/", headers={"authorization": given}) for given in ("Basic !", "Bearer x", "Basic /w==")]
    for request in wrong:
        answer = Site(app, access=users).handle(request)
        assert answer.status == 401
        assert dict(answer.headers)["WWW-Authenticate"].startswith("Basic ")
    assert "péché" not in path.read_text()


def test_a_line_is_made_with_a_password_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "users.txt"
    command = [sys.executable, "-m", "redbeat_lite.web.users", "ada", "run"]
    made = [subprocess.run(command, capture_output=True, text=True, check=True, timeout=60) for _ in range(2)]
    passwords = [each.stderr.removeprefix("The password of ada is ").strip() for each in made]
    assert len(passwords[0]) >= 24
    assert passwords[0] != passwords[1]
    path.write_text(made[0].stdout)
    assert Users(path)(_basic("ada", passwords[0])) == Access("ada", {"view", "run"})


def test_a_line_that_would_be_wrong_is_not_made() -> None:
    for words, said in (
        (["ada"], "makes a password"),
        (["ada", "fly"], "rights: expected"),
        (["a b", "run"], "spaces"),
    ):
        command = [sys.executable, "-m", "redbeat_lite.web.users", *words]
        made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (made.returncode, made.stdout, said in made.stderr) == (1, "", True), made.stderr
        assert "Traceback" not in made.stderr


@pytest.mark.parametrize("text", ["ada run", "ada fly 00", "ada run xx"])
def test_a_wrong_line_of_the_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users.txt"
    path.write_text(f"\n{text}\n")
    with pytest.raises(ConfigurationError, match="line 2: expected lines of"):
        Users(path)
    path.write_text("# nobody yet")
    with pytest.raises(ConfigurationError, match="expected a line for each user who may sign in, got none"):
        Users(path)
    with pytest.raises(ConfigurationError, match=r"cannot read .*nope: No such file or directory"):
        Users(tmp_path / "nope")


def test_what_answers_a_post_is_not_loaded_again(visitor: Visitor) -> None:
    assert "data-live" in visitor.get("why", name="nope").html
    assert "data-live" not in visitor.post("thaw").html


def test_all_rights_have_their_names() -> None:
    assert RIGHTS == ("view", "run", "pause", "edit", "remove", "locks", "freeze")


def test_errors_show_no_arguments_to_who_may_not_edit(
    look: Callable[..., Visitor], schedules: Schedules, client: redis.Redis
) -> None:
    definition = encode(schedules.add("e", "add", every(60), kwargs={"x": 1}))
    errors = {"config": "kwargs: expected a dict, got 'hunter2'", "other": "args[0]: expected text, got 'hunter2'"}
    for wrong in ('"x":{"__type__":"datetime","__value__":"hunter2"}', '"x":1},"options":{"queue":["hunter2"]'):
        client.hset(KEYS.entries, "e", definition.replace('"x":1', wrong))
        client.hset(KEYS.meta, "refused", Refused("app", 2, errors).encode())
        for visitor in (look("run", "pause", "remove"), look(*RIGHTS, redact=lambda field, value: "…")):
            seen = [visitor.get(), visitor.get("doctor", examine=1), visitor.get("entry", name="e")]
            seen += [visitor.post(page, name="e") for page in ("run", "pause")]
            assert [("hunter2" in each.html, "expected" in each.text or "no value" in each.text) for each in seen] == [
                (False, True)
            ] * 5
        visitor = look("edit")
        seen = [visitor.get(), visitor.get("doctor", examine=1), visitor.get("entry", name="e")]
        assert all("hunter2" in each.html for each in seen)
