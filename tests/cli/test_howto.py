"""How-tos that are done in one process, as the page has them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from redbeat_lite import Schedules, every
from tests.cli.conftest import Said
from tests.cli.test_docs import follow
from tests.support.in_process import MakeBeat, make_beat
from tests.support.messages import queued
from tests.support.pages import URL, blocks, document
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch

__all__ = ["make_beat"]


MakeApp = Callable[..., Celery]
Names = dict[str, Any]


def do(page: str, heading: str | None, app: Celery, run_cli: Callable[..., Said] | None = None) -> Names:
    """Do what a page, or a section of it, says of an app whose schedule is in use; returns the names that it makes."""
    names: Names = {"app": app, "schedules": Schedules(app)}
    names["schedules"].add("sync", "shop.sync", every(3600))
    for block in blocks(document(page), heading):
        if block.language == "python":
            exec(compile(block.text, f"{page}, line {block.line}", "exec", dont_inherit=True), names)
        if block.language == "console":
            assert run_cli is not None
            follow(app, block.text, run_cli)
    return names


@pytest.fixture
def hung(own_server: Callable[..., Server]) -> Iterator[Server]:
    """A server that can be frozen, and is thawed at last."""
    server = own_server()
    yield server
    server.thaw()


async def beside_ticks(call: Awaitable[Any]) -> tuple[Any, int]:
    """What a call returns, and how often the loop got round to something else meanwhile, a hundred times a second."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    [result] = await asyncio.gather(call, return_exceptions=True)
    ticking.cancel()
    return result, ticks


async def post(api: Any, path: str) -> tuple[int, Any]:
    """What an ASGI application answers, with what status."""
    said: list[Any] = []

    async def receive() -> Names:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Names) -> None:
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
    await api({**scope, "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}, receive, send)
    return said[0]["status"], json.loads(b"".join(each.get("body", b"") for each in said[1:]))


def test_the_front_page_has_ten_lines_and_they_work(server: Server, client: redis.Redis) -> None:
    [code] = [block.text for block in blocks(document("index.md"), "An example") if block.language == "python"]
    assert len([line for line in code.splitlines() if line and not line.startswith("#")]) == 10
    names: Names = {"__name__": "__main__"}
    exec(compile(code.replace(URL, server.url), "shop.py", "exec", dont_inherit=True), names)
    app = names["app"]
    assert {entry.name: app.tasks[entry.task] for entry in Schedules(app).values()} == {
        "report-8": names["report"],
        "report-7": names["report"],
    }
    app.close()


def reindex(index: str) -> None: ...


def test_an_entry_is_run_by_hand(make_app: MakeApp, run_cli: Callable[..., Said], client: redis.Redis) -> None:
    app = make_app(timezone="Europe/Berlin", result_expires=None)
    app.task(name="shop.reindex", shared=False)(reindex)
    schedules: Schedules = do("howto.md", "Run an entry by hand", app, run_cli)["schedules"]
    schedules.pause("reindex")
    schedules.run_now("reindex")
    sent = queued(client)
    told = [
        (each.kwargs["index"], each.headers.get("redbeat_other_arguments"), each.headers["expires"]) for each in sent
    ]
    assert Counter(told) == {("all", None, None): 2, ("orders", True, None): 2}
    keys = {each.headers["redbeat_once"]["key"]: each.kwargs["index"] for each in sent}
    assert sorted(keys.values()) == ["all", "orders"]
    notes = [change.note.partition(" with ")[2] for change in schedules.changes() if change.action == "run now"]
    assert notes == ["", "other arguments: once more", "other arguments: after the import", ""]


def test_entries_are_frozen_and_paused_for_a_time(make_app: MakeApp, run_cli: Callable[..., Said]) -> None:
    schedules: Schedules = do("many.md", "Freeze entries for a time", make_app(result_expires=None), run_cli)[
        "schedules"
    ]
    assert schedules.frozen() is None
    assert schedules["sync"].paused_until is not None


def test_what_keeps_failing_is_paused(
    make_app: MakeApp, make_beat: MakeBeat, run_cli: Callable[..., Said], client: redis.Redis
) -> None:
    app = make_app(timezone="Europe/Berlin", result_expires=None)
    beat, names = make_beat(app), {"schedules": Schedules(app)}
    beat.leader.acquire()
    beat._parts.incidents.check()
    [code, console] = blocks(document("incidents.md"), "Pause what fails")
    exec(compile(code.text, "incidents.md", "exec", dont_inherit=True), names)
    for nominal in range(3):
        line = {"name": "invoices", "nominal": nominal + 1, "outcome": "f", "error": "why", "attempt": 0}
        client.xadd("{redbeat-lite}:runs:feed", {**line, **dict.fromkeys(("id", "worker", "begin", "duration"), "")})
    beat._parts.incidents.check()
    assert [each.kind for each in names["schedules"].incidents()] == ["paused"]
    follow(app, console.text, run_cli)


def test_a_chord_is_an_entry(make_app: MakeApp, run_cli: Callable[..., Said], client: redis.Redis) -> None:
    app = make_app(timezone="Europe/Berlin", result_expires=None)
    do("howto.md", "Run a chain, a group or a chord", app, run_cli)["schedules"].run_now("export")
    [message] = queued(client, "slow")
    assert message.task == "redbeat_lite.canvas"


@pytest.fixture
def web(make_app: MakeApp, hung: Server) -> Names:
    """What the section on asyncio has made."""
    return do("howto.md", "Use it from FastAPI and asyncio", make_app(broker_url=hung.url, result_expires=None))


def test_from_asyncio_a_call_is_somebodys_and_a_server_that_hangs_holds_up_no_other(web: Names, hung: Server) -> None:
    result, _ = asyncio.run(beside_ticks(web["pause"]("sync", "ada")))
    assert result is None
    change = web["schedules"].changes()[0]
    assert (change.action, change.actor, change.note) == ("paused", "ada", "on request")
    hung.freeze()
    with Stopwatch() as watch:
        result, ticks = asyncio.run(beside_ticks(web["pause"]("sync", "ada")))
    assert isinstance(result, RedisError)
    assert ticks > 50
    assert watch.took > 3.9
    watch.at_most(4.5)


def test_a_route_runs_an_entry_and_answers_where_the_server_hangs(web: Names, hung: Server) -> None:
    status, body = asyncio.run(post(web["api"], "/entries/sync/run"))
    assert (status, *body) == (200, "task_id")
    assert web["schedules"].changes()[0].actor == "the shop's page"
    assert asyncio.run(post(web["api"], "/entries/none/run")) == (404, {"detail": "no entry 'none'"})
    hung.freeze()
    ((status, body), ticks) = asyncio.run(beside_ticks(post(web["api"], "/entries/sync/run")))
    assert (status, body) == (503, {"detail": "the schedule cannot be reached"})
    assert ticks > 50


def test_a_call_is_given_up_as_soon_as_the_page_says(web: Names, hung: Server) -> None:
    schedules = Schedules(web["app"])
    assert schedules["sync"].name == "sync"
    hung.freeze()
    with Stopwatch() as watch, pytest.raises(RedisError):
        schedules.pause("sync")
    assert watch.took > 0.9
    watch.at_most(1.5)


def test_a_publish_is_given_up_as_soon_as_the_page_says(web: Names, hung: Server, server: Server) -> None:
    web["app"].conf.redbeat_lite_url = server.url
    schedules = Schedules(web["app"])
    schedules.add("sync", "shop.sync", every(3600))
    schedules.run_now("sync")
    hung.freeze()
    with Stopwatch() as watch, pytest.raises(OperationalError):
        schedules.run_now("sync")
    watch.at_most(6.5)
