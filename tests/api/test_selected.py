"""Entries that are selected together: by a pattern of names, a tag, a task."""

from __future__ import annotations

import fnmatch
import logging
import re
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import pytest
import redis
from celery.beat import BeatLazyFunc
from kombu.exceptions import OperationalError

from redbeat_lite import ConfigOwned, Entry, InvalidEntry, Schedules, every, manual
from redbeat_lite.entries import selection
from redbeat_lite.entries.changes import Stored
from redbeat_lite.entries.run import Outcome
from redbeat_lite.entries.selection import Selection, matches
from redbeat_lite.store.store import Store
from tests.support.cases import together
from tests.support.commands import commands, round_trips
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.messages import queued
from tests.support.run_rows import RunRows
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def shop(schedules: Schedules) -> Schedules:
    """Two entries of billing, one of them paused, and two others."""
    schedules.add("billing:b", "shop.bill", every(60), tags=["billing", "tenant:42"])
    schedules.add("billing:a", "shop.bill", every(30), tags=["billing"])
    schedules.add("mail", "shop.mail", every(10), tags=["tenant:42"], kwargs={"about": "billing"})
    schedules.add("other", "add", every(90))
    schedules.pause("billing:a", "by hand")
    return schedules


def versions(schedules: Schedules) -> dict[str, int]:
    return {entry.name: entry.version for entry in schedules.values() if entry.version is not None}


@together(
    ("name", "given", "found"),
    [
        ("*", {}, ["mail", "billing:b", "other", "billing:a"]),
        ("billing:*", {}, ["billing:b", "billing:a"]),
        ("mail", {}, ["mail"]),
        ("mai", {}, []),
        ("*", {"tag": "billing"}, ["billing:b", "billing:a"]),
        ("*", {"tag": "bill"}, []),
        ("*", {"task": "shop.*"}, ["mail", "billing:b", "billing:a"]),
        ("*", {"tag": "tenant:42", "task": "shop.mail"}, ["mail"]),
        ("billing*", {"tag": "tenant:42"}, ["billing:b"]),
    ],
)
def test_those_are_selected_of_which_all_holds(
    shop: Schedules, name: str, given: dict[str, str], found: list[str]
) -> None:
    selected = shop.select(name, **given)
    assert selected.names() == found
    assert [(entry.name, entry.version) for entry in selected] == [(each, versions(shop)[each]) for each in found]
    with round_trips() as trips:
        some = selected.among({"mail", "billing:a", "gone"}).names()
    assert (some, len(trips)) == ([each for each in found if each in ("mail", "billing:a")], 1)


def test_of_those_that_are_named_others_are_left_alone(shop: Schedules) -> None:
    assert shop.select(tag="billing").among(["billing:b", "mail"]).pause("the disk") == ["billing:b"]
    assert shop["mail"].paused_note is None
    assert shop.select().among([]).remove() == []
    assert len(shop) == 4


@together("pattern", ["b*", "b", "ba*", "b[*]*", "é*", "é", "éé*", "z\U0010ffff*", "?b", "*b", "ab?", "no*"])
def test_a_beginning_leaves_none_out(schedules: Schedules, pattern: str) -> None:
    names = ["b", "ba", "bé", "b*", "b*x", "bb", "ab", "abc", "é", "éa", "è", "z", "z\U0010ffff", "z\U0010ffffz", "B"]
    schedules.add_many(
        [Entry(name, "add", every(100 - at), enabled=at % 5 != 0) for at, name in enumerate(names)], replace=True
    )
    in_order = [entry.name for entry in schedules.list()]
    assert schedules.select(pattern).names() == [name for name in in_order if fnmatchcase(name, pattern)]


def test_a_beginning_reads_no_other_definition(schedules: Schedules, server: Server) -> None:
    schedules.add_many(Entry(f"{number % 100:02}-{number}", "add", every(60)) for number in range(2500))
    with commands(server) as seen:
        assert len(schedules.select("07-*").names()) == 25
    read = re.findall(r"\b\d\d-\d+\b", " ".join(seen))
    assert len(read) == 25
    assert all(name.startswith("07-") for name in read)


def test_what_is_wrong_is_named(shop: Schedules) -> None:
    for given, said in (
        ({"tag": "a,b"}, "tag: expected"),
        ({"task": ""}, "task: expected"),
        ({"name": 5}, "name: expected"),
    ):
        with pytest.raises(InvalidEntry, match=said):
            shop.select(**given)  # type: ignore[arg-type]
    for call in (shop.select().pause, shop.select().run_now):
        with pytest.raises(InvalidEntry, match=r"^note: expected text of at most 1000 characters"):
            call("x" * 1001)
    assert versions(shop)["mail"] == 1


def test_only_what_may_be_meant_is_decoded() -> None:
    said = Entry("a", "t", 60, tags=['ä"\\']).tags[0]
    definitions = {b"a": b'{"tags":["\xc3\xa4\\"\\\\"]}', b"b": b'{"tags":["\xc3\xa4"]}', b"c": None, b"\xff": b"{"}
    page = [Stored(name, None, definition, None) for name, definition in definitions.items()]
    assert [each.name for each in Selection.of(tag=said).among(page)] == [b"a"]
    assert [each.name for each in Selection.of("[!a]").among(page)] == [b"b", b"c", b"\xff"]


def test_what_cannot_be_read_is_left_out_and_logged(
    shop: Schedules, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.hset("{redbeat-lite}:entries", "billing:b", '{"v":3,"tags":["billing"]')
    with caplog.at_level(logging.WARNING):
        assert shop.select(tag="billing").resume() == ["billing:a"]
    assert "left out of the list" in caplog.text
    assert shop.select(tag="billing").remove() == ["billing:a"]
    assert "billing:b" in shop


def test_those_are_paused_that_are_not(shop: Schedules) -> None:
    assert shop.select(tag="billing").pause("move") == ["billing:b"]
    assert [shop[name].paused_note for name in ("billing:a", "billing:b", "mail")] == ["by hand", "move", None]
    assert versions(shop) == {"billing:a": 2, "billing:b": 2, "mail": 1, "other": 1}
    assert shop.select(tag="billing").pause("again") == []
    assert versions(shop)["billing:b"] == 2
    assert shop["billing:b"].next_run_at is None


def test_of_two_pauses_the_later_end_counts(shop: Schedules) -> None:
    shop.resume("billing:a")
    shop.pause("billing:a", "short", seconds=300)
    shop.pause("billing:b", "long", seconds=7200)
    billing = shop.select(tag="billing")
    assert billing.pause("an hour", seconds=3600) == ["billing:a"]
    assert {name: shop[name].paused_note for name in billing.names()} == {"billing:a": "an hour", "billing:b": "long"}
    assert sorted(billing.pause("for ever")) == ["billing:a", "billing:b"]
    assert {(entry.paused_note, entry.paused_until) for entry in billing} == {("for ever", None)}
    assert billing.pause("an hour", seconds=3600) == []


def test_those_are_resumed_that_are_paused(shop: Schedules, clock: Clock) -> None:
    clock.forward(100)
    assert shop.select("billing:*").resume() == ["billing:a"]
    assert (shop["billing:a"].paused_note, shop["billing:a"].next_run_at) == (None, NOW + timedelta(seconds=120))
    assert shop.select("billing:*").resume() == []
    assert versions(shop)["billing:a"] == 3
    shop.select("billing:*").pause()
    clock.forward(100)
    shop.select("billing:*").resume(catch_up=True)
    assert shop["billing:a"].next_run_at == NOW + timedelta(seconds=120)


def test_those_are_removed(shop: Schedules) -> None:
    assert sorted(shop.select(task="shop.*").remove()) == ["billing:a", "billing:b", "mail"]
    assert [*shop] == ["other"]
    assert shop.select(task="shop.*").remove() == []


def test_those_are_run(shop: Schedules, client: redis.Redis) -> None:
    sent = shop.select(tag="tenant:42").run_now("once more")
    assert {message.entry: message.id for message in queued(client)} == sent
    assert sent.keys() == {"mail", "billing:b"}
    line = shop.changes()[0]
    assert (line.action, line.names, line.note) == ("run now", tuple(sent), "2 tasks: once more")
    assert shop.select(tag="none").run_now() == {}
    [sent_alone] = shop.select("mail").run_now().values()
    assert [line.note for line in shop.changes(limit=2)] == [f"task {sent_alone}", "2 tasks: once more"]


def test_what_was_sent_is_recorded_where_the_broker_goes_away(
    shop: Schedules, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, left = shop._app, iter([True, False])
    publish = app.send_task

    def failing(*args: Any, **options: Any) -> Any:
        if next(left):
            return publish(*args, **options)
        raise OperationalError("gone")

    monkeypatch.setattr(app, "send_task", failing)
    with pytest.raises(OperationalError):
        shop.select(task="shop.*").run_now()
    [message] = queued(client)
    assert (shop.changes()[0].names, shop.changes()[0].note) == (("mail",), f"task {message.id}")


def test_entries_of_a_configuration_are_treated_as_one_of_them_is(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
) -> None:
    plain = {"task": "t", "schedule": 60, "tags": ["x"]}
    held = {**plain, "args": (BeatLazyFunc(int),)}
    app = make_app(beat_schedule={"plain": plain, "held": held})
    make_beat(app).run_due()
    elsewhere = Schedules(make_app("elsewhere"))
    assert sorted(elsewhere.select(tag="x").pause()) == ["held", "plain"]
    with pytest.raises(ConfigOwned, match="entry 'held' has parts that cannot be stored"):
        elsewhere.select(tag="x").run_now()
    assert queued(client) == []
    assert sorted(elsewhere.select(tag="x").resume()) == ["held", "plain"]
    assert {*Schedules(app).select(tag="x").run_now()} == {"held", "plain"}
    elsewhere.select(tag="x").remove()
    assert client.hget("{redbeat-lite}:meta", "synced") == b"edited", "the leader is to bring them back"


class TestManyEntries:
    """280 of them, of which 270 are selected."""

    @pytest.fixture
    def many(self, schedules: Schedules) -> Schedules:
        schedules.add_many(Entry(f"e{n:03}", "add", every(60), tags=["x"] if n >= 10 else []) for n in range(280))
        return schedules

    def test_are_changed_250_in_a_script_with_a_line_for_each(self, many: Schedules) -> None:
        assert len(many.select(tag="x").pause("move")) == 270
        assert many["e200"].last_change.note == "move"  # type: ignore[union-attr]
        assert many["e007"].version == 1
        assert len(many.select(tag="x").remove()) == 270
        assert len(many) == 10
        lines = [(line.action, line.count) for line in many.changes(limit=4)]
        assert lines == [("removed", 20), ("removed", 250), ("paused", 20), ("paused", 250)]

    def test_are_all_in_the_same_state_when_what_broke_off_is_repeated(
        self, many: Schedules, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put, calls = Store.put, iter(range(9))

        def breaking(store: Store, edits: Any, term: Any = None) -> list[bool]:
            if next(calls) == 1:
                raise redis.ConnectionError("gone")
            return put(store, edits, term)

        monkeypatch.setattr(Store, "put", breaking)
        with pytest.raises(redis.ConnectionError):
            many.select(tag="x").pause("first")
        assert len(many.select(tag="x").pause("second")) == 20
        notes = [entry.paused_note for entry in many.select(tag="x")]
        assert (notes.count("first"), notes.count("second")) == (250, 20)
        assert {entry.version for entry in many.select(tag="x")} == {2}

    def test_that_change_meanwhile_are_decided_on_anew(self, many: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
        put = Store.put

        def late(store: Store, edits: Any, term: Any = None) -> list[bool]:
            monkeypatch.setattr(Store, "put", put)
            many.pause("e100", "by hand")
            many.update("e101", tags=[])
            many.update("e102", description="x")
            many.remove("e103")
            return put(store, edits, term)

        monkeypatch.setattr(Store, "put", late)
        names = many.select("e10?", tag="x").pause("all")
        assert sorted(names) == ["e102", *(f"e10{n}" for n in range(4, 10))]
        assert [many[f"e10{n}"].paused_note for n in (0, 1, 2)] == ["by hand", None, "all"]


class TestSample:
    """What a page shows of a filter, for a bounded price."""

    def test_it_has_what_reading_all_of_them_finds(self, schedules: Schedules) -> None:
        names = ["plain", "a*b", "a[b", "quo\"te'", "übung", "sp ace", *(f"report-{n:02d}" for n in range(9))]
        for n, name in enumerate(names):
            task = ("shop.bill", 'shop."odd\\"', "shop.übung", "other")[n % 4]
            schedules.add(name, task, every(60 + n), tags=["tag", f"ü{n % 3}", 'q"'][: n % 4], enabled=n % 5 > 0)
        stored = [*schedules.values()]
        for name in ("*", "report-*", "*-0?", "a[*]b", "[!a]*", 'quo"te*', "ü*", "*no*", "a[b", "*["):
            for tag, task in product((None, "tag", "ü1", 'q"'), ("*", "shop.*", "*ü*", 'shop."*', "*.b?ll")):
                selected = schedules.select(name, tag=tag, task=task)
                sample = selected.sample()
                wanted = [each.name for each in stored if selected.selection.covers(each)]
                assert [each.name for each in sample] == wanted, selected.selection
                assert (sample.complete, sample.total) == (True, len(stored))

    def test_those_that_may_be_paused_are_due_first_or_last_or_never(
        self, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("redbeat_lite.api.selected.READ", 8)
        schedules.add_many(Entry(f"e{n}", "add", every(3600 + n)) for n in range(9))
        schedules.pause("e1", seconds=60)
        schedules.pause("e0", seconds=36_000)
        schedules.add("by hand", "add", manual())
        schedules.add("off", "add", every(5), enabled=False)
        schedules.pause("e5")
        for pattern in ("*", "*[!x]"):
            sample = schedules.select(pattern).sample("disabled")
            assert ({entry.name for entry in sample}, sample.complete) == ({"by hand", "off", "e5"}, True)
            sample = schedules.select(pattern).sample("paused")
            assert {entry.name for entry in sample} == {"e1", "e2", "e8", "e0", "by hand", "off", "e5"}
            assert (sample.looked_at, sample.complete, sample.total) == (7, False, 11)
        schedules.select("e[2-7]").remove()
        assert schedules.select().sample("paused").complete

    def test_its_price_is_bounded_and_it_tells_how_far_it_looked(
        self, schedules: Schedules, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("redbeat_lite.api.selected.READ", 20)
        monkeypatch.setattr("redbeat_lite.api.selected.NAMES", 100)
        schedules.add_many(Entry(f"e{n:03d}", "add", every(60 + n), tags=["t"] * (n % 7 == 0)) for n in range(300))
        for name, looked_at, shown in (
            ("*", 20, ["e000", "e007", "e014"]),
            ("e*", 20, ["e000", "e007", "e014"]),
            ("*00", 100, ["e000"]),
            ("e2*", 100, []),
            ("e210*", 100, ["e210"]),
        ):
            with commands(server) as seen:
                sample = schedules.select(name, tag="t").sample()
                assert [entry.name for entry in sample] == shown
            assert (sample.looked_at, sample.complete, sample.total) == (looked_at, False, 300), name
            assert len(re.findall(r"\be\d{3}\b", " ".join(seen))) <= 21, name

    def test_patterns_are_not_kept_for_ever(self) -> None:
        before = fnmatch._compile_pattern.cache_info().currsize  # type: ignore[attr-defined]
        for n in range(1000):
            assert not matches("x", f"*{n}*")
        assert selection._matcher.cache_info().currsize <= 100
        assert fnmatch._compile_pattern.cache_info().currsize == before  # type: ignore[attr-defined]


def test_those_that_failed_are_told_by_their_rows(schedules: Schedules, client: redis.Redis) -> None:
    rows, now = RunRows(client, schedules), datetime.now(UTC)
    told: dict[str, tuple[Outcome, ...]] = {
        "never ran": (),
        "good": ("failed", "succeeded"),
        "bad": ("succeeded", "failed"),
        "runs": ("succeeded", "failed", "running"),
        "retries": ("failed", "retrying", "skipped"),
        "lost": ("lost",),
        "skipped": ("succeeded", "skipped"),
    }
    for name, outcomes in told.items():
        schedules.add(name, "add", every(60))
        for n, outcome in enumerate(outcomes):
            rows.row(name, now + timedelta(seconds=n), outcome, f"id-{n}")
    schedules.add("backfilled", "add", every(60))
    rows.row("backfilled", now, "failed", "id")
    rows.row("backfilled", now + timedelta(seconds=1), "succeeded", "00000000-0000-8000-8000-000000000000")
    failed = {each.name for each in schedules.values() if each.failures_in_a_row}
    assert failed == {"bad", "runs", "retries", "lost", "backfilled"}
    assert {each.name for each in schedules.select().sample("failed")} == failed
    assert [each.name for each in schedules.select("b*").sample("failed")] == ["backfilled", "bad"]
    assert [each.name for each in schedules.select(tag="none").sample("failed")] == []
