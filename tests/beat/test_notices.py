"""Notices of incidents: what the child process is told, how long it may take, and which URLs are refused."""

from __future__ import annotations

import email
import html
import json
import logging
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

from redbeat_lite import Scheduler
from redbeat_lite.beat import notices as module
from redbeat_lite.beat.notices import Notices
from redbeat_lite.events import IncidentClosed, IncidentOpened
from tests.support.in_process import MakeApp
from tests.support.stopwatch import Stopwatch

SINCE = datetime(2026, 3, 2, 12, tzinfo=UTC)
OPENED = IncidentOpened("1f0c92ab", "failed", "nightly", SINCE, "failed: KeyError: 7")
CLOSED = IncidentClosed(*OPENED, SINCE.replace(minute=30))

#: In place of apprise: "ok://" takes notices, "no://" refuses them, "hang://" does not answer; no other is known.
STAND_IN = """
    import json, os, time

    class Apprise:
        def __init__(self):
            self.urls = []

        @staticmethod
        def instantiate(url):
            return url if url.split(":")[0] in ("ok", "no", "hang") else None

        def add(self, url):
            self.urls.append(url)
            return True

        def notify(self, title, body, body_format):
            with open(os.environ["NOTICES"], "a") as file:
                file.write(json.dumps([self.urls, title, body]) + "\\n")
            if any(url.startswith("hang") for url in self.urls):
                time.sleep(60)
            return not any(url.startswith("no") for url in self.urls)
"""


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """What a stand-in for apprise was told."""
    (tmp_path / "apprise.py").write_text(textwrap.dedent(STAND_IN))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("NOTICES", str(tmp_path / "notices"))
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    monkeypatch.setattr(module, "_PAUSE", 0.01)
    module._check.cache_clear()
    (tmp_path / "notices").touch()
    return lambda: [json.loads(line) for line in (tmp_path / "notices").read_text().splitlines()]


@pytest.fixture
def timeout(sent: Callable[[], list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds after which a child is ended that hangs: several times what one takes that does not."""
    began = time.monotonic()
    Notices(["ok://yardstick"]).incident_opened(OPENED)
    timeout = 1 + 8 * (time.monotonic() - began)
    (tmp_path / "notices").write_text("")
    monkeypatch.setattr(module, "TIMEOUT", timeout)
    return timeout


def test_each_incident_is_told_when_it_is_opened_and_when_it_is_over(sent: Callable[[], list[Any]]) -> None:
    notices = Notices(["ok://a", "ok://b"])
    notices.incident_opened(OPENED)
    notices.incident_closed(CLOSED._replace(entry=None, kind="behind"))
    opened = ["[1f0c92ab] failed nightly", "failed: KeyError: 7\nsince 2026-03-02T12:00:00+00:00"]
    closed = ["[1f0c92ab] over: behind", "failed: KeyError: 7\nover after 30.0 minutes"]
    assert sorted(sent()[:2]) == [[["ok://a"], *opened], [["ok://b"], *opened]]
    assert sorted(sent()[2:]) == [[["ok://a"], *closed], [["ok://b"], *closed]]


def test_what_a_service_does_not_take_is_tried_again_and_given_up_and_not_given_again_to_others(
    sent: Callable[[], list[Any]], timeout: float, caplog: pytest.LogCaptureFixture
) -> None:
    notices = Notices(["no://a", "hang://b", "ok://c"])
    with Stopwatch() as watch:
        notices.incident_opened(OPENED)
    watch.at_most(3 * timeout + 5)
    assert sorted(url for [url], *_ in sent()) == [*["hang://b"] * 3, *["no://a"] * 3, "ok://c"]
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert line == "beat: a notice could not be sent in 3 tries: [1f0c92ab] failed nightly"


def test_a_child_that_cannot_be_started_at_the_moment_is_tried_again(
    sent: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    notices, failures = Notices(["ok://a"]), [BlockingIOError()]

    def run(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(*args, **options)

    original = subprocess.run
    monkeypatch.setattr(subprocess, "run", run)
    notices.incident_opened(OPENED)
    assert len(sent()) == 1
    assert not caplog.records


def test_a_machine_too_slow_to_look_at_the_urls_does_not_keep_the_beat_from_its_start(
    make_app: MakeApp, sent: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.0)
    Scheduler(make_app(redbeat_lite_notify=["nothing://a"]), lazy=True)


def test_a_url_that_is_wrong_ends_the_beat_at_its_start_and_is_not_shown(
    make_app: MakeApp, sent: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for urls, message in (
        (
            ["ok://a", "nothing://user:secret@host"],
            "expected URLs that apprise knows, and number 2, of 'nothing', is none",
        ),
        (["secret"], "expected a list of URLs such as mailto://user:password@host"),
        ("ok://secret", "expected a list of URLs such as mailto://user:password@host"),
    ):
        with pytest.raises(click.ClickException) as raised:
            Scheduler(make_app(redbeat_lite_notify=urls), lazy=True)
        assert raised.value.message == f"redbeat_lite_notify: {message}"
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    module._check.cache_clear()
    with pytest.raises(click.ClickException, match="needs the package apprise, which is not installed"):
        Scheduler(make_app(redbeat_lite_notify=["ok://a"]), lazy=True)


def test_the_beat_imports_no_apprise(make_app: MakeApp, sent: Callable[[], list[Any]]) -> None:
    Scheduler(make_app(redbeat_lite_notify=["ok://a"]), lazy=True)
    assert "apprise" not in sys.modules


@pytest.fixture
def web() -> Iterator[list[Any]]:
    """A web server, as its address, and what it was sent."""
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        seen.append(f"127.0.0.1:{server.server_port}")
        yield seen
        server.shutdown()
        thread.join()


def test_apprise_itself_sends_what_it_is_told(web: list[Any]) -> None:
    if find_spec("apprise") is None:
        pytest.skip("apprise is not installed")
    module._check.cache_clear()
    Notices([f"json://{web[0]}/hook"]).incident_opened(OPENED)
    [notice] = web[1:]
    assert (notice["title"], notice["message"].splitlines()[0]) == ("[1f0c92ab] failed nightly", OPENED.text)


#: Put in place of the network of the child: what would be sent is written to a file.
CAPTURE = """
    import json, os, smtplib
    import requests

    def write(service, payload):
        with open(os.environ["NOTICES"], "a") as file:
            file.write(json.dumps([service, payload]) + "\\n")

    def request(self, method, url, data=None, **options):
        write(url.split("/")[2], json.loads(data or json.dumps(options["json"])))
        response = requests.Response()
        response.status_code = 200
        response._content = b"ok" if "slack" in url else b'{"ok": true}'
        return response

    class Mailbox:
        def __init__(self, *args, **options): ...

        def __getattr__(self, name):
            return lambda *args, **options: None

        def sendmail(self, sender, recipients, message):
            write("mail", message)

    requests.Session.request = request
    smtplib.SMTP = smtplib.SMTP_SSL = Mailbox
"""

#: An error as Python writes it, and texts that are live in some service.
HOSTILE = (
    "TypeError: '<' not supported between instances of 'int' and <class 'str'> "
    '<a href="http://evil.example">sign in</a> [sign in](http://evil.example) '
    "@everyone @here me@example.org <@7> <@&8> <!channel> <users/all>"
)


@pytest.fixture
def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    """What apprise sends, by the host of the service."""
    if find_spec("apprise") is None:
        pytest.skip("apprise is not installed")
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(CAPTURE))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("NOTICES", str(tmp_path / "notices"))
    module._check.cache_clear()

    def payloads() -> dict[str, Any]:
        lines = (tmp_path / "notices").read_text().splitlines()
        assert len(lines) == 4, "each service takes it at the first try"
        return dict(json.loads(line) for line in lines)

    return payloads


def test_no_service_takes_the_text_of_an_error_for_markup(captured: Callable[[], dict[str, Any]]) -> None:
    urls = [
        "tgram://123456789:abcdefg_hijklmnop/12315544/",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#ops",
        "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js/",
        "mailto://user:password@example.org?to=ops@example.org",
    ]
    name = "<b>nightly</b> @here"
    Notices(urls).incident_opened(OPENED._replace(entry=name, text=HOSTILE))
    sent = captured()
    telegram = sent["api.telegram.org"]["text"]
    [attachment] = sent["hooks.slack.com"]["attachments"]
    slack = f"{attachment['title']} {attachment['text']}"
    discord = sent["discord.com"]["content"]
    mail = email.message_from_string(sent["mail"], EmailMessage, policy=default)
    assert mail.get_content_type() == "text/plain"
    mailed = f"{mail['Subject']} {mail.get_content()}"

    # Telegram's title is bold by apprise.
    markup_of_others = re.sub(r"^<b>(.*)</b>\r\n", r"\1 ", telegram) + slack
    assert not re.search(r"[<>]", markup_of_others)
    assert not re.search(r"(?<!\w)@\w|<[!@]\w|<users|\]\(", discord)
    shown = [html.unescape(telegram), html.unescape(slack), discord, mailed]
    for text in shown:
        as_read = text.replace("\u200b", "")
        assert name in as_read
        assert HOSTILE in as_read
