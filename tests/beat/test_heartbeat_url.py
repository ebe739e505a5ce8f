"""The URL that the leader asks for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from redbeat_lite.beat import heartbeat_url as module
from redbeat_lite.beat.heartbeat_url import HeartbeatUrl
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


def test_the_leader_asks_once_a_minute_and_a_stand_by_does_not(
    make_app: MakeApp, make_beat: MakeBeat, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.01)
    app = make_app(redbeat_lite_heartbeat_url=f"{asked[0]}/secret")
    leader, other = make_beat(app), make_beat(app)
    for beat in (leader, other):
        beat.max_interval = 0.01
        beat.tick()
    eventually(lambda: len(asked) > 1, what="a request")
    standing_by = HeartbeatUrl(f"{asked[0]}/other", other.leader)
    standing_by.ask()
    mine = HeartbeatUrl(f"{asked[0]}/mine", leader.leader)
    for _ in range(5):
        mine.ask()
        mine._requested_at -= 30
    assert asked[1:] == ["/secret", "/mine", "/mine", "/mine"]


@pytest.mark.parametrize("path", ["/secret-broken", "/secret-led", ":1/secret"])
def test_a_failure_is_said_once_an_hour_and_names_no_secret(
    path: str, asked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Leader:
        leading = True

    host = asked[0] if path.startswith("/") else "http://127.0.0.1"
    url = HeartbeatUrl(host + path, Leader())  # type: ignore[arg-type]  # all that is asked of it
    caplog.set_level(logging.WARNING)
    for _ in range(62):
        url.ask()
        url._requested_at -= 60
        url._warned_at -= 60
    lines = [line.getMessage() for line in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith("beat: the heartbeat URL of 127.0.0.1 cannot be requested: ")
    assert "secret" not in "".join(lines)
