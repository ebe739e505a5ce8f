"""What was sent, merged with the rows that tell what became of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite import Entry, every
from redbeat_lite.api import run_history
from redbeat_lite.api.run_history import with_sent
from redbeat_lite.entries.run import Row
from redbeat_lite.entries.state import EntryState, add_sent, task_id
from tests.support.examples import examples

NOW = 1_772_453_239_000


def entry_sent(*instants: int) -> Entry:
    entry = Entry("e", "task", every(1))
    entry.state = EntryState(1, "g", NOW, last=max(instants, default=None), deltas=add_sent("", None, instants, 1000))
    return entry


def row(nominal: int, id_: str) -> Row:
    return Row(nominal, "succeeded", id_, 0, 0, 0, "")


instants = st.sets(st.integers(NOW - 50, NOW - 1), max_size=30)


@examples(35)
@given(instants, instants, instants, st.integers(1, 40), st.integers(0, 40))
def test_those_that_are_asked_for_are_the_newest_of_all(
    sent: set[int], told: set[int], others: set[int], history: int, limit: int
) -> None:
    entry = entry_sent(*sorted(sent))
    rows = [row(at, task_id("e", "g", at)) for at in told] + [row(at, f"other-{at}") for at in others]
    rows.sort(key=lambda each: each.nominal, reverse=True)
    everything = with_sent(entry, rows, history, NOW)
    assert with_sent(entry, rows, history, NOW, limit) == everything[:limit]
    oldest = rows[-1].nominal if len(rows) >= history else 0
    assert {each.nominal for each in everything if each.outcome == "waiting"} == {
        at for at in sent - told if at > oldest
    }


def test_no_more_are_named_than_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[int] = []
    monkeypatch.setattr(run_history, "task_id", lambda *each: named.append(each[-1]) or str(each[-1]))
    found = with_sent(entry_sent(*range(NOW - 1000, NOW)), [], 1000, NOW, 5)
    assert named == [each.nominal for each in found] == [*range(NOW - 1, NOW - 6, -1)]
