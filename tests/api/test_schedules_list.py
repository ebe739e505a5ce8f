"""Pages of entries in due order."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis

from redbeat_lite import CorruptEntry, Entry, Schedules, every
from redbeat_lite.entries.changes import Stored
from tests.support.cases import together
from tests.support.commands import commands, round_trips
from tests.support.frozen import NOW
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("clock")


class TestList:
    @pytest.fixture
    def many(self, schedules: Schedules) -> Schedules:
        """Ten entries that fire the earlier, the later their name."""
        schedules.add_many(Entry(f"e{number}", "add", every(100 - number)) for number in range(10))
        return schedules

    def test_in_due_order(self, many: Schedules) -> None:
        many.pause("e9")
        assert [entry.name for entry in many.list()] == [*(f"e{number}" for number in range(8, -1, -1)), "e9"]
        assert [entry.name for entry in many.list(offset=2, limit=3)] == ["e6", "e5", "e4"]

    def test_those_that_are_due_at_once_are_in_the_order_of_their_names(self, schedules: Schedules) -> None:
        for name in ("b", "c", "a"):
            schedules.add(name, "add", every(60))
        assert [entry.name for entry in schedules.list()] == [*schedules] == ["a", "b", "c"]

    def test_names_are_in_due_order(self, many: Schedules) -> None:
        many.pause("e9")
        assert [*many] == [entry.name for entry in many.list()]

    def test_beyond_the_end_and_nothing_at_all_are_empty(self, many: Schedules) -> None:
        assert many.list(offset=10) == []
        assert many.list(limit=0) == []

    @together(("offset", "limit"), [(-1, 5), (0, -1), (None, 5), (0, "5"), (0, True)])
    def test_a_page_is_counted_in_whole_numbers(self, many: Schedules, offset: object, limit: object) -> None:
        with pytest.raises(ValueError, match="expected a whole number from 0, got"):
            many.list(offset, limit)  # type: ignore[arg-type]

    @pytest.mark.usefixtures("small_pages")
    def test_a_page_of_many_costs_as_much_as_one_of_ten(self, schedules: Schedules, server: Server) -> None:
        schedules.add_many(Entry(f"e{number:05}", "add", every(60 + number)) for number in range(300))
        schedules.list()
        with commands(server) as seen, round_trips() as trips:
            page = schedules.list(offset=150, limit=100)
        assert [entry.name for entry in page] == [f"e{number:05}" for number in range(150, 250)]
        for number, entry in enumerate(page, 150):
            assert entry.next_run_at == NOW + timedelta(seconds=60 + number)
        assert len(trips) <= 2
        assert len(seen) <= 2

    @pytest.mark.usefixtures("small_pages")
    def test_a_long_page_is_read_in_parts_so_that_it_blocks_nobody(
        self, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"e{number:04}" for number in range(250)]
        schedules.add_many(Entry(name, "add", every(60 + number)) for number, name in enumerate(names))
        store = schedules._store
        sizes: list[int] = []
        page = store.page

        def measured(offset: int, limit: int) -> list[Stored]:
            stored = page(offset, limit)
            sizes.append(len(stored))
            return stored

        monkeypatch.setattr(store, "page", measured)
        assert [entry.name for entry in schedules.list(1, 220)] == names[1:221]
        assert sizes == [100, 100, 49]
        assert [entry.name for entry in schedules.list(200, 10**9)] == names[200:]

    @pytest.mark.usefixtures("small_pages")
    def test_entries_that_slip_to_a_page_already_read_are_seen_too(self, schedules: Schedules) -> None:
        schedules.add_many(Entry(f"e{number}", "add", every(1000 + number)) for number in range(250))
        seen = []
        for entry in schedules.values():
            seen.append(entry.name)
            if entry.name == "e5":  # its page is read, the next is not
                for number in range(3):
                    schedules.update(f"e{number}", schedule=every(90_000))
                schedules.remove("e200")
        assert len(seen) == len(set(seen)) == 249
        assert set(schedules) <= set(seen)

    @pytest.mark.usefixtures("small_pages")
    def test_entries_behind_a_page_are_seen_though_the_others_become_fewer_than_it_held(
        self, schedules: Schedules
    ) -> None:
        schedules.add_many(Entry(f"e{number:04}", "add", every(1000 + number)) for number in range(110))
        seen = []
        for entry in schedules.values():
            seen.append(entry.name)
            if entry.name == "e0005":  # its page is read, the next is not
                for number in range(10, 30):
                    schedules.remove(f"e{number:04}")
        assert sorted(seen) == [f"e{number:04}" for number in range(110)]

    def test_what_cannot_be_read_is_left_out_with_a_warning(
        self, many: Schedules, client: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        client.hset("{redbeat-lite}:entries", "e3", "{")
        client.zadd("{redbeat-lite}:due", {b"\xff": 1})
        assert len(many.list()) == 9
        assert "entry 'e3': not readable as JSON" in caplog.text
        with pytest.raises(CorruptEntry, match="entry 'e3': not readable as JSON"):
            many["e3"]
