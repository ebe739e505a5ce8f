"""Decoded entries are remembered between ticks, as many as may be."""

from __future__ import annotations

import tracemalloc
from functools import cache
from typing import Any

import pytest

from redbeat_lite import Entry, every
from redbeat_lite.beat.dispatch import planner as planning
from redbeat_lite.beat.dispatch.planner import Planner
from redbeat_lite.entries.changes import Stored
from redbeat_lite.entries.model import encode
from redbeat_lite.entries.state import EntryState
from tests.support.rules import UTC_APP

NOW = 1_800_000_000_000

STATE = EntryState.new(NOW).encode().encode()


@cache
def definition(size: int, task: str, misfire: str) -> bytes:
    """What is stored of an entry; it is the same whatever its name."""
    return encode(Entry("any", task, every(60), args=["x" * size], misfire=misfire)).encode()


def stored(name: str, *, size: int = 0, task: str = "add", misfire: str = "coalesce") -> Stored:
    # Each with bytes of its own, as if it had just been read.
    return Stored(name.encode(), NOW, bytes(bytearray(definition(size, task, misfire))), STATE)


def planner(**instead: Any) -> Planner:
    asked: dict[str, Any] = {"completed": lambda entry: entry, **instead}
    return Planner(app=UTC_APP, prefix="redbeat-lite", slack=5_000, **asked)


def planned(own: Planner, due: Stored) -> Entry:
    batch = own.plan([due], NOW, 500)
    assert batch.bad == []
    [job] = batch.jobs
    return job.entry


@pytest.mark.parametrize("part", [10, pytest.param(1, marks=pytest.mark.soak)])
def test_thirty_thousand_entries_in_turn_are_decoded_once(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a tenth of them, with a tenth of the memory."""
    monkeypatch.setattr(planning, "_CACHE_BYTES", planning._CACHE_BYTES // part)
    own = planner()
    everybody = [stored(f"e{number}") for number in range(30_000 // part)]
    first = [planned(own, each) for each in everybody]
    assert all(planned(own, each) is entry for each, entry in zip(everybody, first, strict=True))


def test_a_changed_definition_is_decoded_anew() -> None:
    own = planner()
    assert planned(own, stored("a")).task == "add"
    assert planned(own, stored("a", task="other")).task == "other"


def test_an_entry_that_clears_the_memory_counts_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    an_entry = planning._FIXED_BYTES + planning._BYTES_PER_DEFINITION_BYTE * len(definition(0, "add", "coalesce"))
    monkeypatch.setattr(planning, "_CACHE_BYTES", an_entry * 3 // 2)
    own = planner()
    planned(own, stored("a"))
    second = planned(own, stored("b"))
    planned(own, stored("c"))
    assert planned(own, stored("b")) is not second, "two entries were kept in the room of one and a half"


def test_large_definitions_do_not_fill_the_memory() -> None:
    own = planner()
    tracemalloc.start()
    try:
        for number in range(1000):
            planned(own, stored(f"e{number}", size=50_000))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 64_000_000
