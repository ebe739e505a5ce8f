"""`Schedules` as a mapping: looked at, assigned, removed, cleared."""

from __future__ import annotations

from collections.abc import MutableMapping

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from redbeat_lite import Entry, EntryChanged, EntryNotFound, InvalidEntry, Schedules, every
from tests.support.cases import together
from tests.support.commands import round_trips
from tests.support.in_process import MakeApp
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("clock")


class TestMapping:
    def test_tells_where_its_entries_are(self, schedules: Schedules, server: Server) -> None:
        assert repr(schedules) == f"<Schedules of 'proj': {server.url} under {{redbeat-lite}}>"

    def test_is_a_mutable_mapping(self, schedules: Schedules) -> None:
        assert isinstance(schedules, MutableMapping)

    def test_an_absent_name_is_a_key_error_that_reads_well(self, schedules: Schedules) -> None:
        with pytest.raises(KeyError) as caught:
            schedules["nobody"]
        assert isinstance(caught.value, EntryNotFound)
        assert str(caught.value) == "no entry 'nobody' is stored"
        assert schedules.get("nobody") is None
        assert "nobody" not in schedules

    @together("name", ["", "x" * 201, "a\nb", "\ud800", 5, None])
    def test_a_name_that_no_entry_can_have_is_not_there(self, schedules: Schedules, name: str) -> None:
        assert name not in schedules
        assert schedules.get(name) is None
        with pytest.raises(EntryNotFound):
            del schedules[name]

    def test_what_needs_no_time_zone_is_told_in_an_app_with_a_wrong_one(
        self, schedules: Schedules, make_app: MakeApp
    ) -> None:
        schedules.add("a", "add", every(10))
        found = Schedules(make_app(timezone="Nope/Zone"))
        assert [*found] == ["a"]
        assert found.get("a") == schedules["a"]
        assert [change.action for change in found.changes()] == ["added"]

    def test_assignment_creates_and_replaces(self, schedules: Schedules) -> None:
        schedules["a"] = Entry("a", "add", every(10))
        generation = schedules["a"].generation
        schedules["a"] = Entry("a", "add", every(10), (1, 2))
        assert schedules["a"].args == (1, 2)
        assert schedules["a"].generation == generation

    @together("value", [Entry("b", "add", 10), {"task": "add", "schedule": 10}, None], emptied=True)
    def test_assignment_wants_an_entry_of_that_name(self, schedules: Schedules, value: Entry) -> None:
        with pytest.raises(InvalidEntry, match="entry: expected an Entry named 'a'"):
            schedules["a"] = value
        assert not schedules

    def test_deletion_leaves_nothing(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("a", "add", 10)
        del schedules["a"]
        assert "a" not in schedules
        for key in ("due", "entries", "state"):
            assert not client.exists(f"{{redbeat-lite}}:{key}")
        with pytest.raises(EntryNotFound):
            del schedules["a"]

    def test_remove_tells_of_an_absent_name_unless_told_not_to(self, schedules: Schedules) -> None:
        schedules.add("a", "add", 10)
        schedules.remove("a")
        with pytest.raises(EntryNotFound, match="'a'"):
            schedules.remove("a")
        schedules.remove("a", missing_ok=True)

    def test_of_two_who_remove_an_entry_one_is_told_that_it_was_gone(
        self, schedules: Schedules, app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The interleaving: read by one, removed by the other, removed by the one.
        schedules.add("a", "add", 10)
        put, other = schedules._store.put, Schedules(app)

        def put_after_another(edits: list[object]) -> list[bool]:
            other.remove("a", missing_ok=True)
            return put(edits)  # type: ignore[arg-type]

        monkeypatch.setattr(schedules._store, "put", put_after_another)
        with pytest.raises(EntryNotFound):
            schedules.remove("a")

    def test_pop_and_setdefault_work_as_for_any_mapping(self, schedules: Schedules) -> None:
        entry = schedules.setdefault("a", Entry("a", "add", 10))
        assert schedules.setdefault("a", Entry("a", "add", 99)) == entry
        assert schedules.pop("a") == entry
        assert schedules.pop("a", None) is None

    def test_iteration_items_values_and_length_agree(self, schedules: Schedules) -> None:
        names = {f"e{number}" for number in range(1234)}
        schedules.add_many(Entry(name, "add", 10) for name in names)
        assert len(schedules) == len(names)
        assert sorted(schedules) == sorted(names)
        assert {name for name, entry in schedules.items() if entry.name == name} == names
        assert {entry.name for entry in schedules.values()} == names
        assert "e7" in schedules
        assert 7 not in schedules

    @pytest.mark.usefixtures("small_pages")
    def test_items_of_a_large_schedule_cost_a_round_trip_per_page(self, schedules: Schedules) -> None:
        schedules.add_many(Entry(f"e{number}", "add", 10) for number in range(300))
        with round_trips() as trips:
            assert len(list(schedules.items())) == 300
        assert len(trips) <= 9

    @pytest.mark.usefixtures("small_pages")
    def test_clear_removes_everything(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add_many(Entry(f"e{number}", "add", 10) for number in range(150))
        schedules.pause("e3")
        schedules.clear()
        assert len(schedules) == 0
        assert list(schedules) == []
        assert client.keys("*due") == client.keys("*entries") == client.keys("*state") == []

    def test_clear_removes_garbage_too(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("a", "add", 10)
        client.zadd("{redbeat-lite}:due", {b"\xff\xfe": 5, "ghost": 5})
        client.hset("{redbeat-lite}:entries", "ghost", "{")
        schedules.clear()
        assert client.keys("*due") == client.keys("*entries") == []

    def test_clear_removes_what_is_too_long_to_be_shown(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add_many(Entry(f"e{number}", "add", 10) for number in range(3))
        client.hset("{redbeat-lite}:state", "e1", "x" * 1_000_000)
        with round_trips() as trips:
            schedules.clear()
        assert len(schedules) == 0
        assert len(trips) <= 4

    def test_clear_ends_also_where_entries_change_faster_than_it_can_remove_them(
        self, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        schedules.add("a", "add", 10)
        monkeypatch.setattr(schedules._store, "put", lambda edits, term: [False for _ in edits])
        with pytest.raises(EntryChanged, match="too often"):
            schedules.clear()

    def test_building_it_opens_no_connection(self, make_app: MakeApp) -> None:
        with round_trips() as trips:
            Schedules(make_app())
            Schedules(make_app(broker_url="redis://127.0.0.1:1/0"))
        assert trips == []
        with pytest.raises((redis.ConnectionError, OperationalError)):
            len(Schedules(make_app(broker_url="redis://127.0.0.1:1/0")))
