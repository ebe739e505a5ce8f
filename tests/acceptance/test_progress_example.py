"""The example of a live page of progress, with both frameworks."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from typing import Any

import pytest

from tests.support.processes import ROOT, Process
from tests.support.server import Server

HERE = ROOT / "examples" / "progress"


def data(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_the_example_of_a_live_page_works(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi import HTTPException  # not at the top: it takes long, and each process of a run collects every test

    monkeypatch.setenv("BROKER_URL", server.url)
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    flask, fastapi = (importlib.import_module(name) for name in ("with_flask", "with_fastapi"))
    env = {"BROKER_URL": server.url, "PYTHONDONTWRITEBYTECODE": "1"}
    worker = Process([sys.executable, "-m", "celery", "-A", "live", "worker", "-l", "INFO", "-c", "1"], env, cwd=HERE)
    try:
        client = flask.app.test_client()
        page = client.get("/").headers["Location"]
        assert "EventSource" in client.get(page).text
        told = data(client.get(f"{page}/events").text.split("\n\n"))
        assert [each["percent"] for each in told] == sorted(each["percent"] for each in told)
        assert any("of 20" in (each["steps"][0]["note"] or "") for each in told)
        assert (told[-1]["state"], told[-1]["ended"], told[-1]["percent"]) == ("SUCCEEDED", True, 100)

        async def read(response: Any) -> list[str]:
            return [text async for text in response.body_iterator]

        assert data(asyncio.run(read(fastapi.events(told[-1]["id"])))) == told[-1:]
        assert client.get("/runs/nobody/events").status_code == 404
        with pytest.raises(HTTPException, match="404"):
            fastapi.events("nobody")
        second = fastapi.index().headers["location"].removeprefix("/runs/")
        # To its end: told to stop while its child works, a worker may wait half a minute for that.
        assert data(asyncio.run(read(fastapi.events(second))))[-1]["ended"]
    finally:
        worker.terminate()
        worker.wait()
        worker.destroy()
        for name in ("live", "with_flask", "with_fastapi"):
            sys.modules.pop(name, None)
