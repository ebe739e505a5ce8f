"""What was sent, as a state carries it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite import Entry, every
from redbeat_lite._base.errors import CorruptEntry
from redbeat_lite._base.times import MAX_MS
from redbeat_lite.entries import lifecycle
from redbeat_lite.entries.state import MAX_NOTE, EntryState
from redbeat_lite.rules import Question
from redbeat_lite.rules.misfire import Plan
from tests.support.cases import together
from tests.support.examples import examples
from tests.support.rules import UTC_APP

NOW = 1_772_453_239_000

#: What a plan sends, as gaps in ms: nothing, as where a once-lock leaves it out, one, or all that were missed.
plans = st.lists(st.lists(st.sampled_from([1000, 60_000]) | st.integers(50, 10**9), max_size=4), max_size=30)


def stored(state: EntryState) -> EntryState:
    return EntryState.decode(state.encode().encode())


def sent(state: EntryState, nominals: Sequence[int], history: int) -> EntryState:
    return stored(lifecycle.dispatched(state, Plan(tuple(nominals), NOW), 0, history))


@examples(35)
@given(plans, st.integers(0, 6), st.text(max_size=5))
def test_a_state_carries_what_a_list_beside_it_would(plans: list[list[int]], history: int, note: str) -> None:
    state, beside, at = EntryState.new(NOW), [], NOW
    for number, gaps in enumerate(plans):
        emitted = []
        for gap in gaps:
            at += gap
            emitted.append(at)
        state, beside = sent(state, emitted, history), [*beside, *emitted]
        if number % 3 == 2:  # what the notes hold beside it comes and goes
            state = stored(lifecycle.paused(state, note) if not state.note else state.edited(paused=False, note=""))
        assert state.sent == tuple(reversed(beside[max(0, len(beside) - history) :]))


def test_a_new_generation_begins_anew() -> None:
    state = sent(EntryState.new(NOW), [NOW, NOW + 1000], 20)
    assert state.moved(NOW + 5000).sent == (NOW + 1000, NOW)
    again = state.moved(NOW - 5000)
    assert again.generation != state.generation
    assert again.sent == ()
    assert sent(again, [NOW - 5000], 20).sent == (NOW - 5000,)


def test_edits_failures_and_resumptions_lose_nothing() -> None:
    state, entry = sent(EntryState.new(NOW), [NOW, NOW + 1000], 20), Entry("e", "task", every(1), app=UTC_APP)
    failed = stored(lifecycle.failed(state, 'a "broker" | refused', Plan((NOW + 2000,), None)))
    paused = stored(lifecycle.paused(failed, "a|b"))
    resumed = stored(lifecycle.resumed(entry, paused, NOW + 9000, catch_up=False))
    asked = stored(resumed.edited(nominal=Question(NOW + 9000, NOW)))
    assert {each.sent for each in (failed, paused, resumed, asked)} == {(NOW + 1000, NOW)}


def test_the_longest_history_and_the_longest_notes_have_room() -> None:
    far = [each + number % 2 for number, each in enumerate(range(0, MAX_MS, MAX_MS // 1000))][:1000]
    state = sent(EntryState.new(0), far, 1000)
    assert state.sent == tuple(reversed(far))
    full = lifecycle.failed(lifecycle.paused(state, "\x01" * MAX_NOTE), "\x01" * MAX_NOTE, Plan((), 0))
    assert stored(full).sent == state.sent


def test_an_interval_takes_the_room_of_one_delta() -> None:
    state = EntryState.new(NOW)
    for number in range(50):
        state = sent(state, [NOW + 1000 * number], 20)
    assert state.encode().endswith('"deltas":"0,3e8*19"}')
    assert state.sent == tuple(NOW + 1000 * number for number in range(49, 29, -1))
    assert sent(state, [NOW + 51_000], 20).encode().endswith('"deltas":"0,7d0,3e8*18"}')
    assert sent(state, [NOW + 50_000], 3).encode().endswith('"deltas":"0,3e8*2"}')
    assert sent(state, [NOW + 50_000], 1).encode().endswith('"deltas":"0"}')


@together(
    "found",
    [
        '"0,xyz"',
        '"0,3e8*x"',
        '"0,3e8*' + 5000 * "9" + '"',
        '"0,3e8,"',
        '"0,\\u00e9"',
        '"0,\\""',
        "7",
        '["0"]',
        '"0,ffffffffffffffff"',
        '"\u2603"',
    ],
)
def test_a_text_that_cannot_be_read_is_corrupt(found: str) -> None:
    with pytest.raises(CorruptEntry):
        EntryState.decode(f'3|abcd|{NOW}|{{"last":{NOW},"deltas":{found}}}'.encode())
