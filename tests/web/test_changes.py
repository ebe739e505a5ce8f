"""The page of the record of changes."""

from __future__ import annotations

import re

import pytest
import redis

from redbeat_lite import Entry, Schedules, acting_as, every
from redbeat_lite.web import pages
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.web.conftest import Visitor


def test_changes_of_all_entries_are_told_the_newest_first(visitor: Visitor, schedules: Schedules) -> None:
    assert "Nothing is recorded." in visitor.get("changes").text
    schedules.add_many(Entry(f"e{number}", "add", every(60)) for number in range(9))
    with acting_as("bob@laptop"):
        schedules.update("e1", jitter=30)
        schedules.remove("e2")
        schedules.freeze(60, "a deploy")
    seen = visitor.get("changes")
    assert seen.text.index("frozen") < seen.text.index("removed") < seen.text.index("edited") < seen.text.index("added")
    for words in (
        "jitter default → 30.0",
        "a deploy",
        "bob@laptop (api)",
        "e0 , e1 , e2 , e3 , e4 and 4 more",
    ):
        assert words in seen.text
    assert 'href="entry?name=e1"' in seen.html
    assert "redbeat log --limit 1000" in seen.text


@together(("name", "left"), [("nightly", 2), ("poll", 1), ("nigh", 0), ("[" * 50_000, 0)], emptied=True)
def test_the_changes_of_one_entry(visitor: Visitor, schedules: Schedules, name: str, left: int) -> None:
    schedules.add("nightly", "add", every(60))
    schedules.add("poll", "add", every(60))
    with acting_as("bob"):
        schedules.pause("nightly")
    seen = visitor.get("changes", q=name)
    assert seen.html.count("<tr><td>") == left
    assert ("Nothing is recorded." in seen.text) is not bool(left)
    if left:
        assert f"redbeat log {name} --limit 1000" in seen.text


def test_the_last_ones_are_shown(visitor: Visitor, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_LINES", 3)
    for number in range(8):
        # The script that searches for a name expects this order.
        line = {"change": '["added", "ada", "api", ""]', "fields": "[]", "names": f'["e{number}"]', "count": 1}
        client.xadd(KEYS.changes, line, id=f"{1000 + number}-0")
    seen = visitor.get("changes")
    assert re.findall(r"name=(e\d)", seen.html) == ["e7", "e6", "e5"]
    assert "The last 3 of them; the command has more." in seen.text
    assert re.findall(r"name=(e\d)", visitor.get("changes", q="e0").html) == ["e0"]
