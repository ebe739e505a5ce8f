"""The URL that the leader asks for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from redbeat_lite.beat import heartbeat_url as module
from redbeat_lite.beat.heartbeat_url import heartbeat_ticker, request_heartbeat
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.waiting import eventually


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """A server, as its URL, and the paths that it was asked for."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            if "broken" in self.path:
                self.send_response(500, f"no {self.path[1:]} here")
            elif "led" in self.path:
                self.send_response(302)
                self.send_header("Location", f"file://{self.path}")
            else:
                self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        seen.append(f"http://127.0.0.1:{server.server_port}")
        yield seen
        server.shutdown()
        thread.join()


def test_the_leader_asks_again_and_again_and_a_stand_by_does_not(
    make_app: MakeApp, make_beat: MakeBeat, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PERIOD", 0.01)
    app = make_app(redbeat_lite_heartbeat_url=f"{asked[0]}/secret")
    leader, other = make_beat(app), make_beat(app)
    for beat in (leader, other):
        beat.max_interval = 0.01
        beat.tick()
    eventually(lambda: len(asked) > 3, what="three requests")
    request_heartbeat(f"{asked[0]}/other", other.leader)
    request_heartbeat(f"{asked[0]}/mine", leader.leader)
    assert {*asked[1:]} == {"/secret", "/mine"}


@pytest.mark.parametrize("path", ["/secret-broken", "/secret-led", ":1/secret"])
def test_a_failure_is_said_once_and_names_no_secret(
    path: str, asked: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    class Leader:
        @property
        def holds_lease(self) -> bool:
            attempts.append(path)
            return True

    monkeypatch.setattr(module, "PERIOD", 0.01)
    host = asked[0] if path.startswith("/") else "http://127.0.0.1"
    caplog.set_level(logging.DEBUG)
    ticker = heartbeat_ticker(host + path, Leader())  # type: ignore[arg-type]  # all that is asked of it
    ticker.start()
    eventually(lambda: len(attempts) > 3, what="three attempts")
    ticker.stop()
    ticker.join(10)
    lines = [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert lines[0].startswith("beat: the heartbeat URL of 127.0.0.1 cannot be requested, trying again: ")
    assert "secret" not in caplog.text
