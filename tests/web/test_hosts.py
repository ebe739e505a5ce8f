"""The page in its hosts, as web.md mounts it, under any prefix."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import shutil
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat_lite import Schedules, every
from redbeat_lite.web import Access, Request, asgi, wsgi
from redbeat_lite.web.http import MAX_BODY
from redbeat_lite.web.site import ROUTES
from redbeat_lite.web.users import line
from tests.support.cases import together
from tests.support.pages import blocks, document
from tests.support.processes import ROOT, celery, run_celery, run_python
from tests.support.server import Server
from tests.web.hosts import Host, hosts

PAGE = document("web.md")
Answer = tuple[int, dict[str, str], str]
Ask = Callable[..., Answer]

#: Paths that are looked at, and those to which a form is posted.
PAGES, ACTIONS = (sorted(path[1:] for method, path in ROUTES if method == wanted) for wanted in ("GET", "POST"))
PAGES.remove("pipeline")  # it is about a run, and there is none


@pytest.fixture
def nightly(schedules: Schedules) -> Schedules:
    schedules.add("nightly", "add", every(3600))
    return schedules


def by_wsgi(application: Any) -> Ask:
    """Asks a WSGI application."""

    def ask(method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        said: list[Any] = []
        path, _, query = path.partition("?")
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query, "SCRIPT_NAME": ""}
        environ |= {
            "CONTENT_LENGTH": str(len(body)),
            "CONTENT_TYPE": headers.pop("content_type", ""),
            "REMOTE_ADDR": "127.0.0.1",
            "SERVER_NAME": "x",
            "SERVER_PORT": "1",
        }
        environ |= {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        more = {"wsgi.input": io.BytesIO(body), "wsgi.url_scheme": "http", "wsgi.errors": io.StringIO()}
        text = b"".join(application({**environ, **more}, lambda status, headers, *_: said.extend((status, headers))))
        return int(said[0][:3]), {name.title(): value for name, value in said[1]}, text.decode()

    return ask


def by_asgi(application: Any) -> Ask:
    """Asks an ASGI application."""

    def ask(method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        said: list[Any] = []
        parts = [body[place : place + 9999] for place in range(0, len(body), 9999)] or [b""]

        async def receive() -> Any:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Any) -> None:
            said.append(message)

        path, _, query = path.partition("?")
        told = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": told}
        scope |= {"asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "client": ("127.0.0.1", 5)}
        asyncio.run(application({**scope, "root_path": "", "raw_path": path.encode()}, receive, send))
        found = {name.decode().title(): value.decode() for name, value in said[0]["headers"]}
        return said[0]["status"], found, b"".join(each.get("body", b"") for each in said[1:]).decode()

    return ask


def mounted(kind: str, prefix: str, app: Celery) -> Ask:
    """The page in a host of this kind."""
    # Not at the top: these take long, and each process of a run collects every test.
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    options = {"access": lambda request: Access("ada", {"view", "pause"})}
    if kind == "wsgi":
        page = wsgi(app, **options)
        return by_wsgi(DispatcherMiddleware(_nothing, {prefix: page}) if prefix else page)
    page = asgi(app, **options)
    return by_asgi(Starlette(routes=[Mount(prefix, app=page)]) if prefix else page)


def _nothing(environ: Any, start_response: Any) -> list[bytes]:
    start_response("404 Not Found", [])
    return [b""]


@pytest.mark.parametrize("prefix", ["", "/a/b"])
@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_it_works_under_any_prefix(app: Celery, nightly: Schedules, kind: str, prefix: str) -> None:
    ask = mounted(kind, prefix, app)
    for page in ("/", "/entries?q=night", "/entry?name=nightly", "/runs"):
        status, headers, text = ask("GET", prefix + page)
        assert status == 200
        assert 'aria-label="Pages"' in text
        assert headers["Content-Length"] == str(len(text.encode()))
        for asset in re.findall(r'(?:href|src)="(\w+-[0-9a-f]{12}\.\w+)"', text):
            assert ask("GET", f"{prefix}/{asset}")[0] == 200
    own = {"sec_fetch_site": "same-origin"}
    form = b"name=nightly&note=p%C3%A9ch%C3%A9"
    status, headers, _ = ask("POST", f"{prefix}/pause", form, **own)
    assert (status, headers["Location"]) == (303, "entry?name=nightly&did=pause")
    assert nightly["nightly"].paused_note == "péché"
    assert ask("POST", f"{prefix}/pause", form, sec_fetch_site="cross-site")[0] == 403
    status, _, text = ask("POST", f"{prefix}/pause", b"--x", content_type="multipart/form-data; boundary=x", **own)
    assert (status, text) == (415, "Send the form as application/x-www-form-urlencoded.")
    assert ask("POST", f"{prefix}/pause", b"x" * (MAX_BODY + 9), sec_fetch_site="same-origin")[0] == 413
    assert ask("HEAD", f"{prefix}/")[2] == ""


def test_a_body_without_an_end_is_not_read_to_it(app: Celery) -> None:
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x" * 65_536, "more_body": True}

    async def send(message: Any) -> None:
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": "/pause", "headers": [(b"sec-fetch-site", b"same-origin")]}
    page = asgi(app, access=lambda request: Access("ada", {"view", "pause"}))
    asyncio.run(asyncio.wait_for(page(scope, receive, send), 20))
    assert said[0]["status"] == 413


@pytest.mark.parametrize("action", ["pause", "thaw"])
def test_a_form_that_is_cut_off_does_nothing_as_it_could_name_another_entry(
    app: Celery, nightly: Schedules, action: str
) -> None:
    nightly.freeze(3600)
    said: list[Any] = []
    options = {"access": lambda request: Access("ada", {"view", "pause", "freeze"})}
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": f"/{action}", "HTTP_SEC_FETCH_SITE": "same-origin"}
    environ |= {"CONTENT_LENGTH": "99", "wsgi.input": io.BytesIO(b"name=nightly")}
    assert wsgi(app, **options)(environ, lambda status, headers: said.append(status)) == [b"The form was cut off."]
    assert said == ["400 Bad Request"]
    parts = [{"type": "http.request", "body": b"name=nightly", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError("nobody is there to be answered")

    asyncio.run(asgi(app, **options)({**POST, "path": f"/{action}"}, receive, send))
    assert nightly["nightly"].paused_note is None
    assert nightly.frozen() is not None


@pytest.mark.parametrize("length", ["9" * 5000, "\u00b2"])
def test_a_form_whose_length_is_no_number_is_empty(app: Celery, nightly: Schedules, length: str) -> None:
    said: list[Any] = []
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/pause", "HTTP_SEC_FETCH_SITE": "same-origin"}
    environ |= {"CONTENT_LENGTH": length, "wsgi.input": io.BytesIO(b"name=nightly")}
    page = wsgi(app, access=lambda request: Access("ada", {"view", "pause"}))
    page(environ, lambda status, headers: said.append(status))
    assert (said, nightly["nightly"].paused_note) == (["404 Not Found"], None)


class Unread(io.BytesIO):
    """A body that nobody may read."""

    def read(self, *_: Any) -> bytes:
        raise AssertionError("the body was read")


async def _unread() -> Any:
    raise AssertionError("the body was read")


POST = {"type": "http", "method": "POST", "path": "/pause", "headers": [(b"sec-fetch-site", b"same-origin")]}


@together(
    ("method", "path", "rights", "status"),
    [
        ("POST", "/pause", None, 403),
        ("POST", "/pause", ("view",), 403),
        ("POST", "/nope", ("view", "pause"), 404),
        ("GET", "/backfills", ("view",), 200),
    ],
    emptied=True,
)
def test_no_body_is_read_of_who_may_not_post_and_none_of_a_get(
    app: Celery, method: str, path: str, rights: tuple[str, ...] | None, status: int
) -> None:
    options = {"access": lambda request: rights and Access("ada", rights)}
    said: list[Any] = []
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_SEC_FETCH_SITE": "same-origin"}
    environ |= {"CONTENT_LENGTH": "1048576", "wsgi.input": Unread()}
    wsgi(app, **options)(environ, lambda status, headers: said.append(int(status[:3])))

    async def send(message: Any) -> None:
        said.append(message)

    asyncio.run(asgi(app, **options)({**POST, "method": method, "path": path}, _unread, send))
    assert (said[0], said[1]["status"]) == (status, status)
    assert ((b"connection", b"close") in said[1]["headers"]) is (method == "POST"), "or the body comes all the same"


def test_a_form_that_does_not_come_is_not_waited_for(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redbeat_lite.web.adapters._BODY_SECONDS", 0.05)
    said: list[Any] = []

    async def never() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        said.append(message)

    page = asgi(app, access=lambda request: Access("ada", {"view", "pause"}))
    asyncio.run(asyncio.wait_for(page(POST, never, send), 60))
    assert said[0]["status"] == 408


def test_forms_that_do_not_come_keep_no_page_waiting(
    app: Celery, nightly: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat_lite.web.adapters._BODY_SECONDS", 3600)
    begun: list[None] = []

    async def never() -> Any:
        begun.append(None)
        await asyncio.Event().wait()

    async def drop(message: Any) -> None: ...

    async def host() -> None:
        page = asgi(app, access=lambda request: Access("ada", {"view", "pause"}))
        slow = [asyncio.create_task(page(POST, never, drop)) for _ in range(20)]
        while len(begun) < len(slow):
            await asyncio.sleep(0.01)
        assert await asyncio.wait_for(_ask(page, "/entries"), 30) == 200
        for post in slow:
            post.cancel()

    asyncio.run(asyncio.wait_for(host(), 60))


@pytest.mark.parametrize(("body", "closed"), [(b"name=nightly", False), (b"x" * (MAX_BODY + 9), True)])
def test_a_connection_whose_form_was_read_to_its_end_stays_open(
    app: Celery, nightly: Schedules, body: bytes, closed: bool
) -> None:
    _, headers, _ = mounted("asgi", "", app)("POST", "/pause", body, sec_fetch_site="same-origin")
    assert (headers.get("Connection") == "close") is closed


@pytest.mark.parametrize(("terminated", "status"), [(True, 303), (False, 411)])
def test_a_form_in_chunks_is_read_where_the_server_ends_it(
    app: Celery, nightly: Schedules, terminated: bool, status: int
) -> None:
    said: list[str] = []
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/pause", "HTTP_SEC_FETCH_SITE": "same-origin"}
    environ |= {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": terminated}
    environ |= {"wsgi.input": io.BytesIO(b"name=nightly")}
    page = wsgi(app, access=lambda request: Access("ada", {"view", "pause"}))
    page(environ, lambda status, headers: said.append(status))
    assert int(said[0][:3]) == status
    assert (nightly["nightly"].paused_note is not None) is terminated


def test_equal_headers_are_joined_as_by_wsgi(app: Celery) -> None:
    seen: list[Any] = []

    async def send(message: Any) -> None: ...

    def access(request: Request) -> None:
        seen.append(request.headers)

    headers = [(b"X-User", b"ada"), (b"x-user", b"eve"), (b"cookie", b"a=1"), (b"cookie", b"b=2")]
    asyncio.run(asgi(app, access=access)({**POST, "headers": headers}, _unread, send))
    assert seen == [{"x-user": "ada,eve", "cookie": "a=1; b=2"}]


@together("kind", ["wsgi", "asgi"], emptied=True)
def test_a_prefix_without_its_slash_leads_to_the_one_with_it(app: Celery, kind: str) -> None:
    status, headers, _ = mounted(kind, "/a/b", app)("GET", "/a/b")
    assert status in (307, 308)
    assert headers["Location"] in ("b/", "http://x:1/a/b/", "/a/b/")


def test_flask_has_it_as_the_page_says(app: Celery, nightly: Schedules) -> None:
    names: dict[str, Any] = {"app": app}
    [block] = blocks(PAGE, "Flask and other WSGI")
    exec(block.text, names)
    shop = names["shop"]
    shop.add_url_rule("/in", "in", lambda: names["session"].update(user="ada") or "in")
    client = shop.test_client()
    assert client.get("/redbeat/").status_code == 403
    client.get("/in")
    assert "Leader" in client.get("/redbeat/").text
    assert client.get("/redbeat/").headers["Content-Security-Policy"].startswith("default-src 'none'")
    form, own = {"name": "nightly", "note": "x"}, {"Sec-Fetch-Site": "same-origin"}
    assert client.post("/redbeat/pause", data=form, headers={"Origin": "http://evil"}).status_code == 403
    assert client.post("/redbeat/pause", data=form, headers=own).location == "entry?name=nightly&did=pause"
    assert nightly["nightly"].last_change.actor == "ada"


def test_fastapi_has_it_as_the_page_says(app: Celery, nightly: Schedules) -> None:
    from starlette.responses import PlainTextResponse

    names: dict[str, Any] = {"app": app}
    [block] = blocks(PAGE, "FastAPI and other ASGI")
    exec(block.text, names)

    def sign_in(request: Any) -> PlainTextResponse:
        request.session["user"] = "ada"
        return PlainTextResponse("in")

    names["api"].add_route("/in", sign_in)
    ask = by_asgi(names["api"])
    assert ask("GET", "/redbeat/")[0] == 403
    cookie = ask("GET", "/in")[1]["Set-Cookie"].partition(";")[0]
    assert "Leader" in ask("GET", "/redbeat/", cookie=cookie)[2]
    assert ask("POST", "/redbeat/pause", b"name=nightly", cookie=cookie)[0] == 403
    assert ask("POST", "/redbeat/pause", b"name=nightly", cookie=cookie, sec_fetch_site="same-origin")[0] == 303
    assert nightly["nightly"].last_change.actor == "ada"


def test_pages_that_wait_keep_nothing_else_of_the_host_waiting(app: Celery) -> None:
    begun, over = threading.Semaphore(0), threading.Event()

    def access(request: Request) -> Access:
        begun.release()
        assert over.wait(30)
        return Access("ada")

    page = asgi(app, access=access)

    async def host() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        asked = [asyncio.create_task(_ask(page)) for _ in range(20)]
        while not begun.acquire(blocking=False):
            await asyncio.sleep(0.01)
        await asyncio.wait_for(asyncio.to_thread(over.set), 20)
        assert {await each for each in asked} == {404}

    asyncio.run(host())


async def _ask(page: Any, path: str = "/nope") -> int:
    """The status of a page, or of one that there is not."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await page({"type": "http", "method": "GET", "path": path, "headers": []}, receive, send)
    return int(sent[0]["status"])


def test_redact_hides_as_the_page_says(app: Celery) -> None:
    names: dict[str, Any] = {}
    [block] = blocks(document("web.md"), "Who may do what")
    exec(block.text, names)
    assert names["redact"]("kwargs", {"password": "x", "y": 1}) == {"password": "…", "y": 1}
    assert names["redact"]("args", ["password"]) == ["password"]


def test_django_has_it_as_the_page_says_by_wsgi_and_by_asgi(server: Server, nightly: Schedules) -> None:
    requests = [
        *(("get", f"/redbeat/{page}", "staff") for page in ("", "entries", "entry?name=nightly", "runs", "nope")),
        *(("get", "/redbeat/", name) for name in ("", "customer")),
        *(("post", "/redbeat/run", name) for name in ("staff", "runner")),
        ("post", "/redbeat/pause", "runner"),
        ("post", "/redbeat/pause", "root"),
        ("get", "/redbeat/", "x" * 150),  # the longest of Django's own users
        ("get", "/redbeat", "staff"),
        ("post", "/redbeat/resume", "root\x07"),
    ]
    env = {**os.environ, "PROJ_URL": server.url, "PYTHONPATH": str(ROOT)}
    ended = run_python("-m", "tests.web.djangosite", json.dumps(requests), env=env)
    assert ended.returncode == 0, ended.stderr
    for answers in json.loads(ended.stdout):
        assert [status for status, *_ in answers] == [*[200] * 4, 404, 303, 403, 403, 303, 403, 303, 200, 301, 303]
        assert answers[5][1] == "/login/?next=/redbeat/"
        assert answers[6][3] == "This page is for staff. You are signed in as customer."
        assert answers[8][1] == "entry?name=nightly&did=run"
        assert all(policy.startswith("default-src 'none'") for _, _, policy, _ in answers[:-2])
        assert "nightly" in answers[1][3]
    assert [change.actor for change in nightly.changes("nightly", limit=2)] == ["user 7", "root"]


def test_a_broker_without_redis_fails_the_page_in_django_and_nothing_else() -> None:
    requests = [("get", "/redbeat/", "root"), ("get", "/redbeat/", "")]
    env = {**os.environ, "PROJ_URL": "memory://", "PYTHONPATH": str(ROOT)}
    ended = run_python("-m", "tests.web.djangosite", json.dumps(requests), env=env)
    assert ended.returncode == 0, ended.stderr
    wrong = "redbeat_lite_url: expected the URL of a Redis server, because the broker (memory) cannot hold the schedule"
    for page, login in json.loads(ended.stdout):
        assert (page[0], login[0]) == (500, 303)
        assert 'aria-label="Pages"' in page[3]
        assert wrong in page[3]


def test_the_command_of_the_page_does_not_start_with_a_wrong_setting() -> None:
    ended = run_celery("tests.acceptance.proj", "redbeat", "web", env={**os.environ, "PROJ_URL": "memory://"})
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: redbeat_lite_url: expected the URL of a Redis server")


def test_the_example_of_django_has_it_behind_the_login_of_its_admin(server: Server, tmp_path: Path) -> None:
    shop = shutil.copytree(ROOT / "examples" / "django", tmp_path / "django")
    env = {**os.environ, "BROKER_URL": server.url, "PYTHONPATH": f"{shop}{os.pathsep}{ROOT}"}
    ended = run_python("-m", "tests.web.shop", env=env, cwd=shop)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    login = "/admin/login/?next=/redbeat/entries"
    assert found == {
        "nobody": {"lead": login, "page": 303, "paused": 303, "reminder": False},
        "customer": {"lead": "", "page": 403, "paused": 403, "reminder": False},
        "staff": {"lead": "", "page": 200, "paused": 403, "reminder": True},
        "operator": {"lead": "", "page": 200, "paused": 303, "reminder": True},
    }


def test_each_page_and_an_action_work_in_each_host(server: Server, nightly: Schedules, tmp_path: Path) -> None:
    with hosts(server.url, tmp_path) as found:
        assert len(found) == 4 * 3 + 2
        whole = {host.kind: host for host in found if "proxy" not in host.kind}
        for host in found:
            # A host hands on any path alike, so one of its kind shows it for all of them.
            is_whole = host is whole.get(host.kind)
            assets = set[str]()
            for page in PAGES if is_whole else ("", "entries", "entry"):
                text = _asked(host, f"{page}?name=nightly").read().decode()
                assert 'aria-label="Pages"' in text, (host, page)
                assets |= {*re.findall(r'(?:href|src)="(\w+-[0-9a-f]{12}\.\w+)"', text)}
            assert len(assets) >= 3
            assert all(_asked(host, asset).status == 200 for asset in assets)
            for action, done in (("pause", "paused"), ("resume", "resumed")):
                # It leads to the page of the entry, below the prefix.
                answer = _asked(host, action, b"name=nightly")
                assert answer.url == f"{host.address}entry?name=nightly&did={action}"
                assert nightly["nightly"].last_change.action == done
            for action in ACTIONS if is_whole else ("edit",):
                status, text = _refused(host, action)
                assert status in (200, 400, 404), (host, action)
                assert 'aria-label="Pages"' in text, (host, action)
            with pytest.raises(urllib.error.HTTPError, match="403"):
                _asked(host, "pause", b"name=nightly", "cross-site")
        assert {change.actor for change in nightly.changes("nightly", limit=28)} == {"ada", "root"}


def _asked(host: Host, page: str, form: bytes | None = None, site: str = "same-origin") -> Any:
    headers = {**host.headers, "Sec-Fetch-Site": site}
    return urllib.request.urlopen(urllib.request.Request(host.address + page, form, headers))


def _refused(host: Host, action: str) -> tuple[int, str]:
    """What is said of an action on what is not there."""
    try:
        answer = _asked(host, action, b"name=nope&id=nope")
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, answer.read().decode()


def test_the_command_serves_it_to_those_in_its_file(server: Server, nightly: Schedules, tmp_path: Path) -> None:
    users = tmp_path / "users.txt"
    users.write_text(line("ada", "pause", "secret"))
    words = ("redbeat", "web", "--port", "0", "--host", "127.0.0.1", "--users", str(users))
    process = celery("tests.acceptance.proj", *words, PROJ_URL=server.url)
    try:
        where = process.says(r"The page is at http://127\.0\.0\.1:\d+/").split()[4]
        signed = {"Authorization": "Basic " + base64.b64encode(b"ada:secret").decode()}
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(where)
        page = urllib.request.urlopen(urllib.request.Request(where + "entries", headers=signed))
        assert b"nightly" in page.read()
        urllib.request.urlopen(urllib.request.Request(where + "pause", b"name=nightly", signed))
        assert nightly["nightly"].last_change.actor == "ada"
        process.terminate()
        assert process.wait() in (0, -15)
    finally:
        process.destroy()


@together(
    ("words", "said"),
    [
        (
            ["--host", "0.0.0.0"],
            "Error: --host: expected an IP address of this machine, unless you give --users FILE, got '0.0.0.0'",
        ),
        (
            ["--host", "localhost"],
            "Error: --host: expected an IP address of this machine, unless you give --users FILE, got 'localhost'",
        ),
        (["--users", "nope.txt"], "Error: --users: cannot read nope.txt: No such file or directory"),
        (["--users", "setup.cfg"], "Error: --users: setup.cfg, line 1: expected lines of"),
    ],
    emptied=True,
)
def test_the_command_refuses_what_is_unsafe_or_wrong(
    app: Celery, run_cli: Callable[..., Any], words: list[str], said: str
) -> None:
    assert said in run_cli(app, "web", *words, code=1).err


def test_the_command_says_that_its_port_is_taken(app: Celery, run_cli: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = run_cli(app, "web", "--port", str(port), code=1).err
    assert said.startswith(f"Error: cannot serve the page on 127.0.0.1, port {port}: Address already in use")
    assert "redis" not in said
