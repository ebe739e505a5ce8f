"""What an edit of an entry changes, what it keeps, and what it may not do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from redbeat_lite import Entry, EntryChanged, EntryNotFound, InvalidEntry, Scheduler, Schedules, every
from tests.support.cases import together
from tests.support.frozen import NOW, Clock

pytestmark = pytest.mark.usefixtures("clock")


class TestUpdate:
    def test_changes_only_what_is_named(self, schedules: Schedules) -> None:
        before = schedules.add("a", "add", every(10), (1,), {"y": 2}, {"queue": "q"}, jitter=1, description="old")
        after = schedules.update("a", description="new", args=[5])
        assert after == schedules["a"]
        assert after.definition() == {**before.definition(), "description": "new", "args": (5,)}
        assert after.version == 2

    def test_a_changed_schedule_counts_from_the_edit(self, schedules: Schedules, clock: Clock) -> None:
        schedules.add("a", "add", every(86_400))
        clock.forward(100)
        assert schedules.update("a", schedule=every(10)).next_run_at == NOW + timedelta(seconds=110)

    def test_any_other_change_keeps_the_next_run(self, schedules: Schedules, clock: Clock) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(5)
        schedules.update("a", kwargs={"x": 1}, options={"queue": "other"}, expires=None)
        assert schedules["a"].next_run_at == NOW + timedelta(seconds=10)

    def test_a_version_that_is_still_right_is_accepted_once(self, schedules: Schedules) -> None:
        version = schedules.add("a", "add", every(10)).version
        schedules.update("a", if_version=version, description="first")
        with pytest.raises(EntryChanged, match="entry 'a' has version 2 by now, not 1"):
            schedules.update("a", if_version=version, description="second")
        assert schedules["a"].description == "first"

    def test_a_run_is_no_new_version(self, schedules: Schedules, inner_beat: Scheduler, clock: Clock) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(10)
        inner_beat.run_due()
        assert schedules.update("a", if_version=1, description="fine").total_run_count == 1

    @together(
        ("changes", "message"),
        [
            ({"schedul": 5}, r"entry 'a': schedul: expected a known field, got 5 \(did you mean 'schedule'\?\)"),
            ({"jitter": -1}, "entry 'a': jitter: expected seconds, .*, not negative.*, got -1"),
            ({"schedule": "x"}, "entry 'a': schedule: expected seconds, .*, or a schedule, got 'x'"),
            ({"schedule": None}, "entry 'a': schedule: expected seconds, .*, or a schedule, got None"),
        ],
        emptied=True,
    )
    def test_a_wrong_change_changes_nothing(
        self, schedules: Schedules, changes: dict[str, object], message: str
    ) -> None:
        before = schedules.add("a", "add", every(10))
        with pytest.raises(InvalidEntry, match=message):
            schedules.update("a", **changes)
        assert (schedules["a"], schedules["a"].version) == (before, 1)

    @together("version", ["1", 1.0, True], emptied=True)
    def test_a_version_is_a_whole_number(self, schedules: Schedules, version: Any) -> None:
        schedules.add("a", "add", every(10))
        with pytest.raises(ValueError, match=f"if_version: expected None or a whole number, got {version!r}"):
            schedules.update("a", if_version=version, description="x")

    def test_many_entries_are_not_one(self, schedules: Schedules) -> None:
        with pytest.raises(InvalidEntry, match=r"name: expected the name of one entry, got .*add_many"):
            schedules.update({"a": {"schedule": 5}})  # type: ignore[arg-type]

    def test_an_absent_entry_cannot_be_edited(self, schedules: Schedules) -> None:
        with pytest.raises(EntryNotFound):
            schedules.update("a", description="x")

    def test_an_edit_made_while_the_beat_runs_it_loses_neither(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The interleaving: read by the edit, advanced by the beat, written by the edit.
        schedules.add("a", "add", every(10))
        clock.forward(10)
        put, done = schedules._store.put, []

        def put_after_a_tick(edits: list[object]) -> list[bool]:
            if not done:
                done.append(inner_beat.run_due())
            return put(edits)  # type: ignore[arg-type]

        monkeypatch.setattr(schedules._store, "put", put_after_a_tick)
        schedules.update("a", description="edited")
        entry = schedules["a"]
        assert (entry.description, entry.total_run_count) == ("edited", 1)
        assert entry.next_run_at == NOW + timedelta(seconds=20)


class TestAfterItsEnd:
    """An entry with a fixed ``end_at`` is written again after it: by an application that starts, or by an edit."""

    END = NOW + timedelta(seconds=90)

    @pytest.fixture
    def ended(self, schedules: Schedules, inner_beat: Scheduler, clock: Clock) -> Schedules:
        schedules.add("a", "add", every(60), end_at=self.END)
        for _ in range(3):
            clock.forward(60)
            inner_beat.run_due()
        assert (schedules["a"].finished, schedules["a"].total_run_count) == (True, 1)
        return schedules

    @pytest.mark.parametrize(
        "write",
        [
            lambda schedules, end: schedules.add("a", "add", every(60), end_at=end, description="x", replace=True),
            lambda schedules, end: schedules.update("a", description="x"),
            lambda schedules, end: schedules.add_many(
                [Entry("a", "add", every(60), end_at=end, description="x")], replace=True
            ),
            lambda schedules, end: schedules.__setitem__(
                "a", Entry("a", "add", every(60), end_at=end, description="x")
            ),
        ],
        ids=["add", "update", "add_many", "assignment"],
    )
    def test_what_was_right_when_it_was_stored_is_right_still(
        self, ended: Schedules, write: Callable[[Schedules, datetime], object]
    ) -> None:
        write(ended, self.END)
        entry = ended["a"]
        assert (entry.description, entry.finished, entry.next_run_at, entry.total_run_count) == ("x", True, None, 1)

    @pytest.mark.parametrize("change", [{"schedule": every(30)}, {"end_at": NOW + timedelta(seconds=100)}], ids=str)
    def test_another_schedule_or_end_must_have_an_occurrence_to_come(
        self, ended: Schedules, change: dict[str, object]
    ) -> None:
        with pytest.raises(InvalidEntry, match="entry 'a': schedule: expected a schedule with an occurrence still to"):
            ended.update("a", **change)

    def test_a_new_one_must_have_an_occurrence_to_come(self, ended: Schedules) -> None:
        with pytest.raises(InvalidEntry, match="entry 'b': schedule: expected a schedule with an occurrence still to"):
            ended.add("b", "add", every(60), end_at=self.END, replace=True)
        assert "b" not in ended
