"""Once-locks, entries in quarantine and the doctor's findings on the page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Schedules, every, lock
from redbeat_lite._base.text import clean
from redbeat_lite.entries.model import encode
from redbeat_lite.once.locks import locks
from redbeat_lite.operate import doctor
from redbeat_lite.pipeline.pipeline_store import store_of
from redbeat_lite.web import Request, pages
from tests.support.beats import KEYS
from tests.web.conftest import Visitor
from tests.web.test_pipelines import Runs, runs
from tests.web.test_safety import HOSTILE, Markup

__all__ = ["runs"]


def test_locks_tell_who_holds_and_who_waits(visitor: Visitor, app: Celery, client: redis.Redis) -> None:
    assert "No lock is held." in visitor.get("locks").text
    with lock(app, "reindex", lease=60), lock(app, "other"):
        client.zadd("{redbeat-lite}:once:wait:reindex", {f"task{number}": number for number in range(7)})
        client.pexpire("{redbeat-lite}:once:wait:reindex", 60_000)
        seen = visitor.get("locks")
        assert "reindex running lock() in process" in seen.text
        assert "unless renewed 7: task0, task1, task2, task3, task4 …" in seen.text
        assert "redbeat locks clear reindex" in seen.text


def test_of_many_locks_those_that_run_out_first_are_told(
    visitor: Visitor, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_ROWS", 2)
    held = [lock(app, f"key{number}", lease=60 + number) for number in range(4)]
    for each in held:
        each.__enter__()
    seen = visitor.get("locks")
    assert ("key1" in seen.text, "key2" in seen.text, "And more" in seen.text) == (True, False, True)
    assert len(locks(app).list(3)) == 3
    for each in held:
        each.__exit__(None, None, None)


def test_a_lock_is_cleared_by_who_may(visitor: Visitor, look: Callable[..., Visitor], app: Celery) -> None:
    with lock(app, "-reindex"):
        assert "<form method" not in look("run", "edit").get("locks").html
        assert look("run", "edit").post("locks-clear", id="-reindex").status == 403
        assert "redbeat locks clear -- -reindex" in visitor.get("locks").text
        assert visitor.post("locks-clear", id="-reindex").location == "locks?did=locks-clear"
        assert locks(app).get("-reindex") is None
        assert visitor.post("locks-clear", id="-reindex").location == "locks"
        assert "Cleared" in visitor.get("locks", did="locks-clear").text


@pytest.fixture
def set_aside(client: redis.Redis, schedules: Schedules) -> Callable[..., None]:
    """Puts an entry into quarantine."""

    def put(name: str, error: str = "no such rule", **fields: Any) -> None:
        entry = schedules.add(name, "add", every(60), kwargs={"x": "hunter2"})
        schedules.remove(name)
        definition = fields.pop("definition", encode(entry))
        record = {"error": error, "definition": definition, "state": None, "at": 1_700_000_000_000, **fields}
        client.hset(KEYS.quarantine, name, json.dumps(record))

    return put


def test_quarantine_tells_what_is_wrong(
    look: Callable[..., Visitor], set_aside: Callable[..., None], client: redis.Redis
) -> None:
    assert "No entry is in quarantine." in look().get("quarantine").text
    set_aside("nightly", "kwargs: expected a dict, got 'hunter2'")
    client.hset(KEYS.quarantine, "garbage", "{")
    client.hset(KEYS.quarantine, "text", json.dumps({"definition": 7, "at": 10**40, "error": ["x"], "call": 1}))
    seen = look("edit").get("quarantine")
    assert "2023-11-14 22:13:20" in seen.text
    assert "got 'hunter2'" in seen.text
    assert "its record in the quarantine cannot be read" in seen.text
    for visitor in (look("run", "remove"), look("edit", redact=lambda field, value: value)):
        seen = visitor.get("quarantine")
        assert "hunter2" not in seen.html
        assert "kwargs: expected a dict" in seen.text


def test_what_was_set_aside_is_put_back_or_forgotten(
    visitor: Visitor, look: Callable[..., Visitor], set_aside: Callable[..., None], schedules: Schedules
) -> None:
    set_aside("nightly")
    set_aside("other")
    set_aside("broken", definition="{")
    for right, page in (("edit", "quarantine-release"), ("remove", "quarantine-remove")):
        html = look(right).get("quarantine").html
        assert (html.count(f'action="{page}"'), html.count("<form")) == (3, 3)
        assert look("view").post(page, name="nightly").status == 403
    assert "redbeat quarantine release nightly" in visitor.get("quarantine").text
    assert visitor.post("quarantine-release", name="nightly").location == "entry?name=nightly&did=quarantine-release"
    assert schedules["nightly"].kwargs == {"x": "hunter2"}
    assert visitor.post("quarantine-release", name="broken").status == 400
    assert visitor.post("quarantine-remove", name="other").location == "quarantine?did=quarantine-remove"
    assert visitor.post("quarantine-remove", name="other").status == 404
    assert [*schedules.quarantined()] == ["broken"]
    assert [change.action for change in schedules.changes(limit=2)] == ["discarded", "released"]


def test_much_in_quarantine_is_not_read_whole(visitor: Visitor, client: redis.Redis, schedules: Schedules) -> None:
    client.hset(KEYS.quarantine, mapping={f"e{number}": '{"error": "x"}' for number in range(2000)})
    seen = visitor.get("quarantine")
    assert (seen.html.count("<tr><td>"), "And more." in seen.text) == (200, True)
    assert 200 < len(schedules.quarantined(201)) < 400
    assert len(schedules.quarantined()) == 2000


def test_the_doctor_looks_once_somebody_asks(
    visitor: Visitor, set_aside: Callable[..., None], schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_aside("nightly", "got 'hunter2'")
    schedules.add("typo", "ad", every(60))
    asked: list[str] = []
    examine = doctor.examine
    monkeypatch.setattr(pages, "examine", lambda app, **how: asked.append("once") or examine(app, **how))
    seen = visitor.get("doctor")
    assert ("redbeat doctor" in seen.text, "typo" in seen.text, asked) == (True, False, [])
    assert "data-live" not in seen.html
    seen = visitor.get("doctor", examine=1)
    assert "data-live" not in seen.html
    assert "✗ error: quarantine 1 entry is in quarantine: 'nightly'" in seen.text
    assert "Did you mean 'add'?" in seen.text
    assert 'href="entry?name=typo"' in seen.html
    assert "hunter2" not in seen.html
    for number in range(5):
        visitor.site.handle(Request("GET", "/doctor", "examine=1"))
        visitor.site.handle(Request("GET", "/doctor", f"examine={number}&x={number}"))
    assert asked == ["once"]


def test_the_doctor_of_the_page_looks_at_a_bounded_number_of_entries(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add_many(Entry(f"e{n:03}", "add", every(60 + n)) for n in range(600))
    assert "of 600 entries, at most 500 were looked at" in visitor.get("doctor", examine=1).text


def test_whatever_people_write_stays_text(
    visitor: Visitor, app: Celery, runs: Runs, set_aside: Callable[..., None], client: redis.Redis
) -> None:
    for number, text in enumerate(HOSTILE):
        shown = text if text.isprintable() else "x"
        run_id = "".join(letter for letter in shown if letter not in "{}")
        run = runs.start((shown, 1), run_id=run_id)
        store_of(app).complete(runs.begin(run, 0), "FAILED", text)
        client.hset(store_of(app).keys(run_id).run, "entry", text)
        set_aside(text, text)
        with lock(app, text):
            client.zadd(f"{{redbeat-lite}}:once:wait:{text}", {text: 1})
            client.pexpire(f"{{redbeat-lite}}:once:wait:{text}", 60_000)
            seen = [visitor.get("pipelines", state=text), visitor.get("pipeline", id=run_id), visitor.get("locks")]
        seen += [visitor.get("quarantine"), visitor.get("doctor", examine=1), visitor.get("locks", key=text)]
        seen += [
            visitor.post(page, id=f"{text}!", name=f"{text}!") for page in ("pipelines-resume", "quarantine-release")
        ]
        for each in seen:
            assert each.status in (200, 400, 404), each.text
            assert Markup.of(each.html) == set(), each.html
            assert not any(mark in re.sub('value="[^"]*"', "", each.html) for mark in "\u202e\u2066"), each.html
        assert len([each for each in seen if clean(text) in each.text]) > 4, number
