"""The page in a real Chromium: by mouse, by keyboard, without scripts, on a phone, in the dark, without Redis."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat_lite import Entry, PipelineRun, Schedules, cron, every, lock
from redbeat_lite.web import RIGHTS, Access, asgi
from tests.support.beats import KEYS
from tests.support.incidents import incident
from tests.support.server import Server
from tests.support.waiting import eventually
from tests.web.hosts import hosts
from tests.web.test_pages import recorded
from tests.web.test_pipelines import Runs

pytestmark = [pytest.mark.browser, pytest.mark.server]

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
PAGES = (
    "",
    "entries",
    "entries?q=night",
    "entry?name=nightly",
    "why?name=nightly",
    "runs",
    "runs?outcome=lost",
    "edit?name=nightly",
    "add",
    "runs?q=nightly",
    "entry?name=removed",
    "entry?name=none",
    "entries?tag=finance",
    "timeline",
    "timeline?q=night&span=7d",
    "backfills",
    "changes",
    "pipelines",
    "pipeline?id=failed",
    "pipeline?id=going",
    "locks",
    "quarantine",
    "doctor?examine=1",
)

#: Tells the test of everything that the policy of the page forbids.
_VIOLATIONS = """document.addEventListener("securitypolicyviolation",
    (event) => console.error("VIOLATION " + event.violatedDirective + " " + event.blockedURI))"""


#: axe leaves this rule out by itself: what is clicked is 24 px wide and high.
_RULES = '{rules: {"target-size": {enabled: true}}}'


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium; CONTRIBUTING.md says how to get one")
    sync_api = pytest.importorskip("playwright.sync_api", reason="there is no playwright; make browser installs it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def serving(application: Any) -> Iterator[str]:
    """Serve an ASGI application; yields its address."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def own(own_server: Callable[..., Server]) -> Server:
    return own_server()


@pytest.fixture
def schedules(make_app: Callable[..., Celery], own: Server) -> Iterator[Schedules]:
    quick = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5, "retry": None}
    schedules = Schedules(make_app(broker_url=own.url, redbeat_lite_redis_options=quick))
    schedules.add("nightly", "add", cron("30 2 * * *", tz="Europe/Berlin"), kwargs={"x": "<b>"}, tags=["finance"])
    schedules.add("a long name of an entry/with?odd&characters" * 3, "add", every(60), description="<script>" * 20)
    schedules.add("removed", "add", every(60))
    schedules.remove("removed")
    schedules.freeze(90_000, "a deploy that takes longer than it should" * 9)
    before = datetime.now(UTC) - timedelta(days=3)
    schedules.backfills.start("nightly", before, datetime.now(UTC), max_active=None, note="the outage")
    case = incident("failed", "nightly", 1_700_000_000_000, "KeyError: " + "x" * 200)
    with own.client() as client:
        client.hset("{redbeat-lite}:runs:incidents", case.field, case.encode())
        recorded(client, schedules, "nightly", "failed", "succeeded", "expired", "lost", "running", "left out")
    runs = Runs(schedules._app)
    failed = runs.start(("load", 3), ("clean", 2), ("index", 2), ("report", 1), run_id="failed")
    for number, how in enumerate(("SUCCEEDED", "SUCCEEDED", "FAILED")):
        runs.end(failed, number, how, "KeyError: " * 50 if how == "FAILED" else "{}")
    runs.begin(runs.start(*((f"step {number}", 1) for number in range(60)), run_id="going"), 0)
    definition = '{"v": 3, "task": "add", "schedule": {"every": "50ms"}, "options": {}}'
    record = {"error": "x" * 500, "definition": definition, "at": 1_700_000_000_000}
    schedules._store._client.hset(KEYS.quarantine, mapping={name: json.dumps(record) for name in ("a" * 200, "b")})
    with lock(schedules._app, "x" * 150, lease=600):
        yield schedules


@pytest.fixture
def address(schedules: Schedules) -> Iterator[str]:
    """The page below a prefix that a proxy has taken away."""
    page = asgi(schedules._app, access=lambda request: Access("ada", RIGHTS))

    async def stripping(scope: Any, receive: Any, send: Any) -> None:
        await page({**scope, "path": scope["path"].removeprefix("/a/b")}, receive, send)

    with serving(stripping) as origin:
        yield f"{origin}/a/b/"


@pytest.fixture
def tab(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens tabs; at the end nothing may have been forbidden, and no script may have failed."""
    contexts, said = [], list[str]()

    def open_(**options: Any) -> Any:
        contexts.append(chromium.new_context(**options))
        tab = contexts[-1].new_page()
        if options.get("java_script_enabled", True):
            tab.add_init_script(_VIOLATIONS)
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        return tab

    yield open_
    for context in contexts:
        context.close()
    assert [line for line in said if not line.startswith("Failed to load resource")] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_every_page_fits_and_loads_what_it_may(tab: Any, address: str, scheme: str, width: int) -> None:
    page = tab(color_scheme=scheme, viewport={"width": width, "height": 800})
    for path in PAGES:
        page.goto(address + path)
        for wide in (width, *((1024, 768) if width > 1024 else ())):  # beside other windows, and on a tablet
            page.set_viewport_size({"width": wide, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= wide, (path, wide)
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") is (scheme == "light")
        if "time" in page.content():
            page.wait_for_selector("time[data-away], main:not(:has(time))", state="attached")


@pytest.mark.parametrize("width", [360, 1600])
def test_every_page_that_asks_fits(tab: Any, address: str, schedules: Schedules, width: int) -> None:
    page = tab(viewport={"width": width, "height": 800})

    def asked(words: str) -> None:
        page.click(f"button:text-is('{words}')")
        page.wait_for_load_state()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, words
        assert page.is_visible("main code")

    for does in ("Run", "Pause", "Resume", "Remove"):
        page.goto(address + "entries?q=" + "a long name")
        asked(f"{does} …")
    page.goto(address + "edit?name=nightly")
    page.fill("[name=description]", "x" * 300)
    asked("Show what changes")


@pytest.mark.parametrize("scripts", [True, False])
def test_each_action_is_done_by_its_button(tab: Any, address: str, schedules: Schedules, scripts: bool) -> None:
    page = tab(java_script_enabled=scripts)
    page.goto(address + "entry?name=nightly")
    for button, confirm in (("Pause", "Pause"), ("Resume", "Resume"), ("Run now", "Run now")):
        page.click(f"summary:text-is('{button}')")
        page.click(f"form button:text-is('{confirm}')")
        page.wait_for_selector("p.done")
    done = [change.action for change in schedules.changes("nightly")]
    assert done == ["run now", "resumed", "paused", "backfill", "added"]
    page.click("a:text-is('Edit')")
    page.fill("[name=cron]", "30 4 * * *")
    page.click("text=Show what changes")
    assert "--cron '30 4 * * *'" in page.inner_text("main")
    page.click("text=Save")
    page.wait_for_selector("p.done")
    assert schedules["nightly"].schedule == cron("30 4 * * *", tz="Europe/Berlin")
    page.click("summary:text-is('Remove')")
    page.click("form button:text-is('Remove')")
    page.wait_for_selector("p.done")
    assert "nightly" not in schedules
    assert page.url == address + "entries?did=remove"
    page.click("text=Add an entry")
    for field, text in {"name": "new <b>", "every": "90", "task": "add"}.items():
        page.fill(f"[name={field}]", text)
    page.click("text=Show the entry")
    assert "redbeat add 'new <b>' add --every 90" in page.inner_text("main")
    page.click("text=Save")
    page.wait_for_selector("p.done")
    assert schedules["new <b>"].schedule == every(90)


def test_what_is_frozen_backfilled_or_wrong_is_acted_on_without_scripts(
    tab: Any, address: str, schedules: Schedules
) -> None:
    page = tab(java_script_enabled=False)
    page.goto(address)
    page.click("summary:text-is('Acknowledge')")
    page.fill("details[open] [name=note]", "bob")
    page.click("form button:text-is('Acknowledge')")
    assert "(bob)" in page.inner_text("#incidents")
    page.click("summary:text-is('Thaw')")
    page.click("form button:text-is('Thaw')")
    assert schedules.frozen() is None
    page.click("summary:text-is('Freeze all entries')")
    page.fill("[name=for]", "2h")
    page.click("button:text-is('Freeze')")
    assert schedules.frozen() is not None
    page.goto(address + "backfills")
    for does in ("Pause", "Resume", "Cancel"):
        page.click(f"summary:text-is('{does}')")
        page.click(f"form button:text-is('{does}')")
    assert "cancelled" in page.inner_text("#list")


@pytest.mark.parametrize("scripts", [True, False])
def test_all_that_a_filter_selects_is_done_after_it_was_asked(
    tab: Any, address: str, schedules: Schedules, scripts: bool
) -> None:
    page = tab(java_script_enabled=scripts)

    def do(does: str, note: str = "") -> None:
        page.goto(address + "entries?tag=finance")
        page.click(f"text={does} …")
        assert page.inner_text("h1") == f"{does} 1 entry?"
        if note:
            page.fill("[name=note]", note)
        page.click(f"button:text-is('{does}')")
        page.wait_for_selector("p.done")

    do("Pause", "the disk")
    assert (schedules["nightly"].paused_note, page.url) == ("the disk", address + "entries?tag=finance&did=all")
    do("Resume")
    do("Run", "by hand")
    assert [each.action for each in schedules.changes("nightly")][:3] == ["run now", "resumed", "paused"]
    do("Remove")
    assert "nightly" not in schedules


@pytest.mark.parametrize("scripts", [True, False])
def test_entries_that_are_ticked_are_paused_and_stay_ticked_while_the_page_is_live(
    tab: Any, address: str, schedules: Schedules, scripts: bool
) -> None:
    page = tab(java_script_enabled=scripts)
    schedules.add_many(Entry(f"e{number}", "add", every(60)) for number in range(3))
    page.goto(address + "entries")
    for name in ("e0", "e2"):
        page.check(f"[name=pick][value={name}]")
    if scripts:
        schedules.pause("nightly")
        with page.expect_response("**/entries"):
            pass
        assert page.is_checked("[name=pick][value=e2]")
    page.click("text=Pause …")
    assert page.inner_text("h1") == "Pause 2 entries?"
    page.click("button:text-is('Pause')")
    page.wait_for_selector("p.done")
    assert [schedules[f"e{number}"].status for number in range(3)] == ["paused", "waiting", "paused"]


def test_what_is_typed_or_open_stays_while_the_page_is_live(tab: Any, address: str, schedules: Schedules) -> None:
    page = tab()
    page.goto(address)
    page.click("summary:text-is('Acknowledge')")
    page.fill("details[open] [name=note]", "half a sen")
    page.focus("summary:text-is('Thaw')")
    schedules.freeze(90_000, "another deploy")
    page.wait_for_selector("#freeze p:has-text('another deploy')", timeout=9000)
    assert page.input_value("details[open] [name=note]") == "half a sen"
    assert page.evaluate("document.activeElement.textContent") == "Thaw"


def press(page: Any, button: str) -> str:
    """Opens the form of an action, and does it; returns what the page says then."""
    page.locator(f"summary:text-is('{button}')").first.click()
    page.locator(f"details[open] button:text-is('{button}')").click()
    page.wait_for_selector("p.done")
    return str(page.inner_text("main"))


@pytest.mark.parametrize("scripts", [True, False])
def test_what_needs_a_hand_is_done_by_its_button(tab: Any, address: str, schedules: Schedules, scripts: bool) -> None:
    page, app = tab(java_script_enabled=scripts), schedules._app
    page.goto(address + "pipelines?state=failed")
    page.click("a[href='pipeline?id=failed']")
    for button, left in (("Resume", "running"), ("Cancel", "aborted")):
        assert left in press(page, button).partition("started")[0]
    with lock(app, "reindex"):
        page.goto(address + "locks")
        assert "reindex" not in press(page, "Clear")
    page.goto(address + "quarantine")
    assert "a" * 200 not in press(page, "Remove")
    press(page, "Release")
    assert (schedules["b"].task, [*schedules.quarantined()]) == ("add", [])
    page.goto(address)
    page.click("text=Doctor")
    page.click("button:text-is('Look')")
    assert "error: leader" in page.inner_text("main")


def test_a_form_that_is_open_stays_while_a_run_goes_on(tab: Any, address: str, schedules: Schedules) -> None:
    page, runs = tab(), Runs(schedules._app)
    page.goto(address + "pipeline?id=going")
    page.click("summary:text-is('Cancel')")
    page.check("[name=terminate]")
    runs.end(PipelineRun(schedules._app, "going"), 1)
    page.wait_for_selector("#stages td:has-text('1 of 60')", timeout=9000)
    assert page.is_checked("details[open] [name=terminate]")
    with lock(schedules._app, "reindex"):
        page.goto(address + "locks")
        page.focus("main summary")
        for _ in range(2):
            for _ in range(2):
                with page.expect_response("**/locks"):
                    pass
            assert page.evaluate("document.activeElement.textContent") == "Clear"
            page.keyboard.press("Enter")
        assert not page.is_visible("details[open] button")


def test_it_works_without_scripts(tab: Any, address: str, schedules: Schedules) -> None:
    page = tab(java_script_enabled=False)
    page.goto(address)
    page.click("text=Entries")
    page.click("text=nightly")
    page.click("summary:text-is('Pause')")
    page.fill("details[open] [name=note]", "the disk")
    page.click("form button:text-is('Pause')")
    assert "Paused: the disk" in page.inner_text("main")
    assert schedules["nightly"].paused_note == "the disk"


def test_on_a_phone_rarer_pages_are_folded(tab: Any, address: str) -> None:
    page = tab(java_script_enabled=False, viewport={"width": 360, "height": 800})
    page.goto(address)
    assert not page.is_visible("text=Locks")
    page.click("summary:text-is('More')")
    page.click("text=Locks")
    assert page.inner_text("h1") == "Once-locks"
    assert page.inner_text("header summary") == "Locks"


def test_it_works_by_keyboard_alone(tab: Any, address: str, schedules: Schedules) -> None:
    page = tab()
    page.goto(address)

    def reach(words: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent || document.activeElement.name") == words:
                return
        raise AssertionError(f"no way by Tab to {words}")

    def enter(words: str, typed: str = "") -> None:
        reach(words)
        page.keyboard.type(typed)
        page.keyboard.press("Enter")

    enter("Entries")
    page.wait_for_selector("h1:text-is('Entries')")
    enter("To the content")
    enter("tag", "finance")
    page.wait_for_url("**/entries?*tag=finance*")
    enter("nightly")
    page.wait_for_url("**/entry?name=nightly")
    enter("Edit")
    page.wait_for_selector("[name=jitter]")
    enter("jitter", "5s")
    page.wait_for_selector("text=Save")
    enter("Save")
    page.wait_for_selector("p.done")
    assert schedules["nightly"].jitter == 5
    enter("Pause")
    page.keyboard.press("Tab")
    page.keyboard.type("the disk")
    page.keyboard.press("Enter")
    page.wait_for_selector("p.done")
    assert schedules["nightly"].paused_note == "the disk"


def test_what_changes_is_seen_by_itself_and_takes_nobody_the_focus(
    tab: Any, address: str, schedules: Schedules
) -> None:
    page = tab()
    page.goto(address + "entries")
    page.focus("a[href='entry?name=nightly']")
    schedules.pause("nightly")
    page.wait_for_selector(".state.paused", timeout=9000)
    assert page.evaluate("document.activeElement.getAttribute('href')") == "entry?name=nightly"


def test_while_redis_is_away_a_banner_says_so_and_the_page_stays(tab: Any, address: str, own: Server) -> None:
    page = tab()
    page.goto(address + "entries")
    own.stop(kill=True)
    page.wait_for_selector("#banner:has-text('Redis cannot be reached')", timeout=9000)
    assert "nightly" in page.inner_text("main")
    page.goto(address + "runs")
    assert "Redis cannot be reached" in page.inner_text("h1")
    own.start()
    page.wait_for_selector("h1:text-is('Runs')", timeout=15000)
    page.wait_for_selector("#banner:empty", state="attached", timeout=9000)


def test_what_a_proxy_answers_in_its_place_brings_the_banner(tab: Any, address: str) -> None:
    page = tab()
    page.goto(address + "entries")
    page.route("**/entries", lambda route: route.fulfill(status=200, body="<h1>Sign in</h1>"))
    page.wait_for_selector("#banner:has-text('does not answer')", timeout=9000)
    assert "nightly" in page.inner_text("main")
    page.unroute("**/entries")
    page.wait_for_selector("#banner:empty", state="attached", timeout=9000)


def test_a_post_that_fails_is_not_posted_again(tab: Any, address: str) -> None:
    page, posts = tab(), list[str]()
    page.on("request", lambda request: posts.append(request.url) if request.method == "POST" else None)
    page.goto(address + "backfills")
    page.evaluate("document.querySelector('form[action=backfills-pause] input[name=id]').value = 'x'")
    page.click("summary:text-is('Pause')")
    page.click("form[action=backfills-pause] button:text-is('Pause')")
    page.wait_for_selector("h1:text-is('This cannot be done')")
    page.wait_for_timeout(3000)  # it would be after two seconds
    assert len(posts) == 1


@pytest.mark.timeout(300)  # 14 hosts, and each page in each of them
def test_each_host_serves_each_page_and_takes_an_action(
    tab: Any, own: Server, schedules: Schedules, tmp_path: Path
) -> None:
    with hosts(own.url, tmp_path) as found:
        for host in found:
            name, _, value = host.headers.get("Cookie", "").partition("=")
            page = tab(extra_http_headers={name: text for name, text in host.headers.items() if name != "Cookie"})
            if name:
                page.context.add_cookies([{"name": name, "value": value, "url": host.address}])
            for path in PAGES:
                gone = path in ("entry?name=none", "entry?name=removed")
                assert page.goto(host.address + path).status == (404 if gone else 200), (host.address, path)
                assert page.evaluate("document.styleSheets[0].cssRules.length") > 9
            page.goto(f"{host.address}entry?name=nightly")
            for action, done in (("Pause", "paused"), ("Resume", "resumed")):
                page.click(f"summary:text-is('{action}')")
                page.click(f"form button:text-is('{action}')")
                page.wait_for_selector("p.done")
                assert page.url == f"{host.address}entry?name=nightly&did={action.lower()}"
                assert schedules["nightly"].last_change.action == done
            page.context.close()


def test_another_site_posts_nothing(tab: Any, address: str, schedules: Schedules) -> None:
    form = f'<form method="post" action="{address}pause"><input name="name" value="nightly"><button>Win</button></form>'

    async def evil(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": form.encode()})

    with serving(evil) as origin:
        for elsewhere in (origin, origin.replace("127.0.0.1", "localhost")):
            page = tab()
            page.goto(elsewhere)
            page.click("text=Win")
            page.wait_for_selector("text=did not come from the page itself")
    assert schedules["nightly"].paused_note is None


def test_a_hidden_tab_asks_for_nothing(tab: Any, address: str) -> None:
    page, asked = tab(), list[str]()
    page.goto(address + "runs")
    page.on("request", lambda request: asked.append(request.url))
    eventually(lambda: page.wait_for_timeout(200) or asked, what="a look")
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")
    page.wait_for_timeout(300)
    asked.clear()
    page.wait_for_timeout(5000)
    assert asked == []


@pytest.mark.parametrize("scripts", [True, False])
def test_after_a_wrong_form_the_focus_is_on_what_is_wrong(tab: Any, address: str, scripts: bool) -> None:
    page = tab(java_script_enabled=scripts)
    page.goto(address + "edit?name=nightly")
    page.fill("[name=jitter]", "long")
    page.click("text=Show what changes")
    page.wait_for_selector("#error")
    assert page.title().startswith("Error: Edit nightly")
    assert page.locator("#error:focus").count() == 1
    assert page.locator("[name=jitter][aria-invalid=true]").count() == 1


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(chromium: Any, address: str, scheme: str, width: int) -> None:
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}, bypass_csp=True)
    page = context.new_page()
    for path in PAGES:
        page.goto(address + path)
        for summary in page.query_selector_all("main summary:visible"):
            summary.click()
        page.evaluate(axe)
        assert violations(page, "document") == [], path
        for summary in page.query_selector_all("header summary:visible"):  # what it opens lies above the page
            summary.click()
        assert violations(page, "'header'") == [], path
    context.close()


def violations(page: Any, where: str) -> list[tuple[str, str, str]]:
    """What axe finds in a part of a page: the rule, the element, and how to mend it."""
    found = page.evaluate(f"axe.run({where}, {_RULES}).then((found) => found.violations)")
    return [(each["id"], node["html"], node["failureSummary"]) for each in found for node in each["nodes"]]
