"""How-tos that are done in one process, as the page has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Schedules
from tests.cli.conftest import Said
from tests.cli.test_docs import follow
from tests.support.messages import queued
from tests.support.pages import blocks
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "howto.md"


@pytest.fixture
def do(make_app: Callable[..., Celery], run_cli: Callable[..., Said]) -> Callable[[str], dict[str, Any]]:
    """Does what a section says, and returns the names that its Python has made."""

    def done(heading: str) -> dict[str, Any]:
        app = make_app(timezone="Europe/Berlin", result_expires=None)
        app.task(name="shop.reindex", shared=False)(reindex)
        names: dict[str, Any] = {"app": app, "schedules": Schedules(app)}
        for block in blocks(PAGE, heading):
            if block.language == "python":
                exec(compile(block.text, f"{PAGE.name}, line {block.line}", "exec"), names)
            if block.language == "console":
                follow(app, block.text, run_cli)
        return names

    return done


def reindex(index: str) -> None: ...


def test_an_entry_is_run_by_hand(do: Callable[[str], dict[str, Any]], client: redis.Redis) -> None:
    schedules: Schedules = do("Run an entry by hand")["schedules"]
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
