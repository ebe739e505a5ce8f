"""Notices of incidents: what each service is told, how often it is tried, and which URLs are refused."""

from __future__ import annotations

import email
import html
import json
import logging
import re
import smtplib
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import default
from typing import Any

import click
import pytest

from redbeat_lite import Scheduler
from redbeat_lite.beat import notices as module
from redbeat_lite.beat.announcer import Announcer
from redbeat_lite.beat.notices import notices_by
from redbeat_lite.events import IncidentClosed, IncidentOpened
from tests.support.in_process import MakeApp
from tests.support.waiting import eventually
from tests.support.webhook import Webhook

SINCE = datetime(2026, 3, 2, 12, tzinfo=UTC)
OPENED = IncidentOpened("1f0c92ab", "failed", "nightly", SINCE, "failed: KeyError: 7")
CLOSED = IncidentClosed(*OPENED, SINCE.replace(minute=30))


class Apprise:
    """Stands in for apprise: "ok://" takes notices, "no://" refuses them, "hang://" does not answer."""

    notices: list[tuple[str, str, str]]
    released: threading.Event

    def __init__(self) -> None:
        self._url = ""

    def add(self, urls: list[str]) -> bool:
        [self._url] = urls
        return self._url.split(":")[0] in ("ok", "no", "hang")

    def notify(self, title: str, body: str, body_format: str) -> bool:
        assert body_format == "text"
        self.notices.append((self._url, title, body))
        if self._url.startswith("hang"):
            self.released.wait()
        return not self._url.startswith("no")


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    levels = {name: logging.getLogger(name).level for name in module._INDISCREET}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, str]]]:
    """What a stand-in for apprise was told."""
    Apprise.notices = []
    Apprise.released = threading.Event()
    monkeypatch.setitem(sys.modules, "apprise", type(sys)("apprise"))
    monkeypatch.setattr(sys.modules["apprise"], "Apprise", Apprise, raising=False)
    monkeypatch.setattr(module, "_PAUSE", 0.01)
    yield Apprise.notices
    Apprise.released.set()


def test_each_incident_is_told_when_it_is_opened_and_when_it_is_over(sent: list[tuple[str, str, str]]) -> None:
    announcer = Announcer([*notices_by(["ok://a", "ok://b"])])
    announcer.announce([OPENED, CLOSED._replace(entry=None, kind="behind")])
    eventually(lambda: len(sent) == 4, what="two notices by each service")
    opened = ("[1f0c92ab] failed nightly", "failed: KeyError: 7\nsince 2026-03-02T12:00:00+00:00")
    closed = ("[1f0c92ab] over: behind", "failed: KeyError: 7\nover after 30.0 minutes")
    for url in ("ok://a", "ok://b"):
        assert [notice for notice in sent if notice[0] == url] == [(url, *opened), (url, *closed)]
    announcer.close()


def test_what_a_service_does_not_take_is_tried_again_and_given_up_and_one_that_hangs_delays_no_other(
    sent: list[tuple[str, str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    announcer = Announcer([*notices_by(["hang://b", "no://secret", "ok://c"])])
    announcer.announce([OPENED])
    eventually(lambda: caplog.records, what="an error")
    eventually(lambda: len(sent) == 5, what="a notice by each service")
    assert sorted(url for url, *_ in sent) == ["hang://b", *["no://secret"] * 3, "ok://c"]
    assert caplog.messages == ["beat: a notice could not be sent by 'no' in 3 tries: [1f0c92ab] failed nightly"]
    Apprise.released.set()
    announcer.close()


def test_a_url_that_is_wrong_ends_the_beat_at_its_start_and_is_not_shown(
    make_app: MakeApp, sent: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for urls, message in (
        (
            ["ok://a", "nothing://user:secret@host"],
            "expected URLs that apprise supports; it does not support URL 2, with the scheme 'nothing'",
        ),
        (["secret"], "expected a list of URLs such as mailto://user:password@host, got a value of type 'list'"),
        ("ok://secret", "expected a list of URLs such as mailto://user:password@host, got a value of type 'str'"),
    ):
        with pytest.raises(click.ClickException) as raised:
            Scheduler(make_app(redbeat_lite_notify=urls), lazy=True)
        assert raised.value.message == f"redbeat_lite_notify: {message}"
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(click.ClickException, match="needs the package apprise, which cannot be imported"):
        Scheduler(make_app(redbeat_lite_notify=["ok://a"]), lazy=True)


def test_a_beat_without_notices_imports_no_apprise(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    Scheduler(make_app(), lazy=True)


def test_apprise_itself_sends_what_it_is_told_and_logs_no_url(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("apprise")
    caplog.set_level(logging.DEBUG)
    with Webhook() as web:
        [notices] = notices_by([f"json://{web.address}/secret-hook"])
        notices.incident_opened(OPENED)
    [notice] = web.posts
    assert (notice["title"], notice["message"].splitlines()[0]) == ("[1f0c92ab] failed nightly", OPENED.text)
    assert "secret" not in caplog.text


class Mailbox:
    """Takes a mail in place of an SMTP server."""

    messages: list[str]

    def __init__(self, *args: Any, **options: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None

    def sendmail(self, sender: str, recipients: list[str], message: str) -> None:
        self.messages.append(message)


#: An error as Python writes it, and texts that are live in some service.
HOSTILE = (
    "TypeError: '<' not supported between instances of 'int' and <class 'str'> "
    '<a href="http://evil.example">sign in</a> [sign in](http://evil.example) '
    "@everyone @here me@example.org <@7> <@&8> <!channel> <users/all>"
)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What apprise sends, by the host of the service, and the mail."""
    pytest.importorskip("apprise")
    requests = pytest.importorskip("requests")
    payloads: dict[str, Any] = {}

    def request(self: Any, method: str, url: str, data: Any = None, **options: Any) -> Any:
        payloads[url.split("/")[2]] = json.loads(data or json.dumps(options["json"]))
        response = requests.Response()
        response.status_code = 200
        response._content = b"ok" if "slack" in url else b'{"ok": true}'
        return response

    monkeypatch.setattr(requests.Session, "request", request)
    Mailbox.messages = []
    for name in ("SMTP", "SMTP_SSL"):
        monkeypatch.setattr(smtplib, name, Mailbox)
    return payloads


def test_no_service_takes_the_text_of_an_error_for_markup(captured: dict[str, Any]) -> None:
    urls = [
        "tgram://123456789:abcdefg_hijklmnop/12315544/",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#ops",
        "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js/",
        "mailto://user:password@example.org?to=ops@example.org",
    ]
    name = "<b>nightly</b> @here"
    for notices in notices_by(urls):
        notices.incident_opened(OPENED._replace(entry=name, text=HOSTILE))
    telegram = captured["api.telegram.org"]["text"]
    [attachment] = captured["hooks.slack.com"]["attachments"]
    slack = f"{attachment['title']} {attachment['text']}"
    discord = captured["discord.com"]["content"]
    mail = email.message_from_string(Mailbox.messages[0], EmailMessage, policy=default)
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
