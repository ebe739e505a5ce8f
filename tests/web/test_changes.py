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
        schedules.freezes.add("e*", seconds=60, note="a deploy")
    seen = visitor.get("changes")
    assert seen.text.index("frozen") < seen.text.index("removed") < seen.text.index("edited") < seen.text.index("added")
    for words in (
        "jitter default → 30.0",
        "name e*",
        "a deploy",
        "bob@laptop (api)",
        "e0 , e1 , e2 , e3 , e4 and 4 more",
    ):
        assert words in seen.text
    assert 'href="entry?name=e1"' in seen.html
    assert "redbeat log --limit 1000" in seen.text


@together(("query", "left"), [({"q": "nigh"}, 2), ({"q": "p*"}, 1), ({"q": "nothing"}, 0)], emptied=True)
def test_a_filter_leaves_some_changes(visitor: Visitor, schedules: Schedules, query: dict[str, str], left: int) -> None:
    schedules.add("nightly", "add", every(60))
    schedules.add("poll", "add", every(60))
    with acting_as("bob"):
        schedules.pause("nightly")
    seen = visitor.get("changes", **query)
    assert seen.html.count("<tr><td>") == left
    assert ("matches this filter." in seen.text) is not bool(left)


def test_a_pattern_that_would_take_minutes_is_refused(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add("nightly", "add", every(60))
    seen = visitor.get("changes", q="[" * 50_000)
    assert (seen.status, "name: expected a name or a pattern" in seen.text) == (400, True)


def test_the_last_ones_are_shown_and_a_filter_looks_at_more(
    visitor: Visitor, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_LINES", 3)
    monkeypatch.setattr(pages, "_LOOKED_AT", 5)
    for number in range(8):
        line = {"change": '["added", "ada", "api", ""]', "names": f'["e{number}"]', "fields": "[]", "count": 1}
        client.xadd(KEYS.changes, line, id=f"{1000 + number}-0")
    seen = visitor.get("changes")
    assert re.findall(r"name=(e\d)", seen.html) == ["e7", "e6", "e5"]
    assert "The last 3 of them; the command has more." in seen.text
    assert re.findall(r"name=(e\d)", visitor.get("changes", q="e3").html) == ["e3"]
    assert "None of the last 5 changes matches this filter." in visitor.get("changes", q="e0").text
