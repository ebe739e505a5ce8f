"""What is done with all entries that a filter selects."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import redis

from redbeat_lite import Entry, Schedules, every
from redbeat_lite.web import actions
from tests.support.messages import queued
from tests.web.conftest import Visitor


@pytest.fixture(autouse=True)
def twelve(schedules: Schedules) -> None:
    """Twelve of tag ``a``, of which a few have ``report`` in their names, and another."""
    names = ["report-1", "a-report", "report-2", *(f"e{number}" for number in range(9))]
    schedules.add_many(Entry(name, "add", every(60), tags=["a"]) for name in names)
    schedules.add("report-3", "mul", every(60))


def _paused(schedules: Schedules) -> list[str]:
    return sorted(entry.name for entry in schedules.values() if entry.paused_note is not None)


def test_it_says_how_many_they_are_before_anything_is_done(
    visitor: Visitor, schedules: Schedules, client: redis.Redis
) -> None:
    asked = visitor.post("pause-all", q="*report*", tag="a", task="add")
    assert "Pause 3 entries?" in asked.text
    assert "'a-report'" in asked.text
    assert "redbeat pause '*report*' --tag a --task add --note NOTE" in asked.text
    assert "and 2 more" in visitor.post("run-all", tag="a").text
    assert (_paused(schedules), queued(client)) == ([], [])
    done = visitor.confirm("pause-all", q="*report*", tag="a", task="add", note="the disk")
    assert done.location == "entries?q=%2Areport%2A&tag=a&task=add&did=all"
    assert _paused(schedules) == ["a-report", "report-1", "report-2"]
    assert schedules["report-1"].paused_note == "the disk"
    assert schedules["report-1"].last_change.actor == "ada"  # type: ignore[union-attr]
    assert visitor.confirm("resume-all", q="report-?").status == 303
    assert _paused(schedules) == ["a-report"]
    visitor.confirm("run-all", task="mul", note="once more")
    assert [message.task for message in queued(client)] == ["mul"]
    assert "did=all" in visitor.confirm("pause-all", q="a-report", note="").location
    assert "did=remove" in visitor.confirm("remove-all", q="report", note="moved out").location
    assert (len(schedules), schedules.changes(limit=1)[0].note) == (10, "moved out")


def test_resumed_with_what_was_missed_if_one_says_so(
    visitor: Visitor, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 'name="catch_up"' in visitor.post("resume-all", tag="a").html
    asked = list[bool]()
    resume = actions.Selected.resume
    monkeypatch.setattr(
        actions.Selected, "resume", lambda self, catch_up: asked.append(catch_up) or resume(self, catch_up)
    )
    visitor.confirm("resume-all", tag="a")
    visitor.confirm("resume-all", tag="a", catch_up="on")
    assert asked == [False, True]


def test_nothing_is_done_where_nothing_is_said_or_selected(visitor: Visitor, schedules: Schedules) -> None:
    for query in ({}, {"q": " "}, {"state": "paused"}, {"q": "e", "state": "paused"}):
        refused = visitor.post("remove-all", save="1", **query)
        assert (refused.status, "q: expected the beginning of a name" in refused.text) == (400, True)
    assert visitor.post("remove-all", q="nope").status == 404
    assert visitor.post("remove", q="report", pick="report-1").status == 404, "no name, and nobody was asked"
    assert visitor.post("remove-all", q="nope", save="0").status == 404
    assert len(schedules) == 13


def test_too_many_are_for_the_command_line(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_MOST", "_STORED"):
        for save in ({}, {"save": "12"}, {"save": "0"}):
            with monkeypatch.context() as patch:
                patch.setattr(actions, limit, 5)
                asked = visitor.post("remove-all", tag="a", **save)
            assert asked.status == 400
            assert "a page acts on 10,000 entries at most" in asked.text
            assert 'name="save"' not in asked.html
    assert len(visitor.site.parts.schedules) == 13


def test_it_is_asked_again_where_they_are_others_than_one_was_told(visitor: Visitor, schedules: Schedules) -> None:
    def ask(save: str) -> str:
        found = re.search(r'name="save" value="(\w+)"', visitor.post("remove-all", q="report", save=save).html)
        assert found is not None
        return found[1]

    three = ask("3")
    schedules.add("report-4", "add", every(60))
    four = ask(three)
    schedules.remove("report-1")
    assert ask(three) not in (three, four), "as many as at first, and others"
    assert len(schedules) == 13
    assert visitor.post("remove-all", q="report", save=ask("")).status == 303
    assert len(schedules) == 10


def test_the_buttons_are_where_a_filter_selects_and_one_may(look: Callable[..., Visitor]) -> None:
    def offered(visitor: Visitor, **query: str) -> list[str]:
        page = visitor.get("entries", **query).html
        return [does for does in actions.BULK_ACTIONS if f'formaction="{does}-all"' in page]

    everybody, some = look("run", "pause", "remove"), look("pause")
    assert offered(everybody, q="report") == ["pause", "resume", "run", "remove"]
    assert offered(some, tag="a") == ["pause", "resume"]
    assert offered(everybody, q="nope") == offered(look(), q="report") == []
    assert "or all that the filter selects" in everybody.get("entries", q="report").text
    for query in ({}, {"q": "report", "state": "waiting"}):
        assert offered(everybody, **query) == ["pause", "resume", "run", "remove"]
        seen = everybody.get("entries", **query)
        assert ("Ticked entries:" in seen.text, seen.html.count('form="bulk" name="pick"')) == (
            True,
            13 if not query else 3,
        )
    assert "pick" not in look().get("entries").html


def test_those_that_are_ticked_are_taken_and_no_others(
    visitor: Visitor, schedules: Schedules, client: redis.Redis
) -> None:
    schedules.add("re*", "mul", every(60))
    two = {"pick": ["report-1", "re*"], "q": "report", "state": "waiting"}
    asked = visitor.post("pause-all", **two)
    assert "Pause 2 entries?" in asked.text
    assert "redbeat pause report-1 --note NOTE" in asked.text
    assert "redbeat pause 're*' --note NOTE" in asked.text
    assert asked.html.count('name="pick"') == 2
    done = visitor.confirm("pause-all", **two, note="the disk")
    assert (done.location, _paused(schedules)) == ("entries?q=report&state=waiting&did=all", ["re*", "report-1"])
    assert visitor.confirm("run-all", pick="re*").status == 303
    assert [message.task for message in queued(client)] == ["mul"]
    assert visitor.confirm("resume-all", pick=["re*", "gone"]).status == 303
    assert visitor.confirm("remove-all", pick=["report-1", "report-2"]).status == 303
    assert ("report-3" in schedules, len(schedules)) == (True, 12)
    assert visitor.post("remove-all", pick="gone").status == 404
