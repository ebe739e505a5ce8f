"""The record of changes: who changed what, when, by what way and why."""

from __future__ import annotations

import getpass
import json
import re
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import (
    Change,
    Entry,
    EntryExists,
    EntryNotFound,
    InvalidEntry,
    Pipeline,
    PipelineTask,
    Schedules,
    acting_as,
    cron,
    every,
    lock,
    locks,
)
from tests.support.cases import together
from tests.support.in_process import MakeApp
from tests.support.proxy import Proxy

CHANGES, STATE = "{redbeat-lite}:changes", "{redbeat-lite}:state"


@pytest.fixture
def schedules(app: Celery) -> Schedules:
    """The schedules of the shared app, with an entry "a" that somebody else has added."""
    Schedules(app, actor="setup").add("a", "add", every(60), kwargs={"x": 1})
    return Schedules(app, actor="alice")


def told(change: Change) -> tuple[Any, ...]:
    """A change without its time, and without what is empty."""
    return tuple(filter(None, (change.action, change.actor, change.way, change.names, change.fields, change.note)))


@pytest.mark.parametrize(
    ("do", "line"),
    [
        (lambda s: s.add("b", "add", every(5)), ("added", ("b",))),
        (lambda s: s.add("a", "add", every(60), args=[2], replace=True), ("edited", ("a",))),
        (
            lambda s: s.update("a", schedule=cron("0 3 * * *"), max_runs=5),
            ("edited", ("a",), (("schedule", '{"every":"1m"}', '{"cron":"0 3 * * *"}'), ("max_runs", None, "5"))),
        ),
        (lambda s: s.update("a", args=["secret"]), ("edited", ("a",), (("args", None, None),))),
        (lambda s: s.update("a", description="näh"), ("edited", ("a",), (("description", None, "näh"),))),
        (lambda s: s.update("a", max_runs=5, note="why"), ("edited", ("a",), (("max_runs", None, "5"),), "why")),
        (lambda s: s.add("b", "add", every(5), note="why"), ("added", ("b",), "why")),
        (
            lambda s: s.add("a", "add", every(60), kwargs={"x": 1}, max_runs=5, replace=True, note="why"),
            ("edited", ("a",), (("max_runs", None, "5"),), "why"),
        ),
        (lambda s: s.remove("a"), ("removed", ("a",))),
        (lambda s: s.remove("a", note="why"), ("removed", ("a",), "why")),
        (lambda s: s.select("a*").remove("why"), ("removed", ("a",), "why")),
        (lambda s: s.clear(), ("removed", ("a",))),
        (lambda s: s.pause("a", "disk is full"), ("paused", ("a",), "disk is full")),
    ],
)
def test_each_call_writes_its_line(schedules: Schedules, do: Callable[[Schedules], Any], line: tuple[Any, ...]) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    do(schedules)
    [change, added] = schedules.changes()
    action, names, *rest = line
    if rest or action != "edited":
        assert told(change) == (action, "alice", "api", names, *rest)
    assert before < added.at <= change.at < datetime.now(UTC) + timedelta(seconds=1)
    assert (told(added), added.count) == (("added", "setup", "api", ("a",)), 1)


def test_a_replacement_names_the_fields_and_no_arguments(schedules: Schedules) -> None:
    schedules.add("a", "other", every(60), args=["secret"], kwargs={"x": 1}, replace=True)
    [change, _] = schedules.changes()
    assert told(change) == ("edited", "alice", "api", ("a",), (("task", "add", "other"), ("args", None, None)))


def test_what_changes_nothing_writes_no_line(schedules: Schedules) -> None:
    schedules.update("a", kwargs={"x": 1})
    schedules.add("a", "add", every(60), kwargs={"x": 1}, replace=True)
    schedules.resume("a")
    with pytest.raises(EntryExists):
        schedules.add("a", "add", every(5))
    with pytest.raises(EntryNotFound):
        schedules.remove("b")
    with pytest.raises(EntryNotFound):
        schedules.discard("b")
    assert [change.action for change in schedules.changes()] == ["added"]
    assert not locks(schedules._app).clear("free")
    assert len(schedules.changes()) == 1


def test_what_operators_do(schedules: Schedules, app: Celery, client: redis.Redis) -> None:
    schedules.pause("a")
    schedules.resume("a")
    task_id = schedules.run_now("a")
    definition = client.hget("{redbeat-lite}:entries", "a")
    schedules.remove("a")
    record = json.dumps({"error": "mended since", "state": "", "definition": definition.decode()})
    client.hset("{redbeat-lite}:quarantine", mapping={"a": record, "b": record})
    schedules.release("a")
    schedules.discard("b")
    client.delete("celery")
    assert [told(change) for change in reversed(schedules.changes())][1:] == [
        ("paused", "alice", "api", ("a",)),
        ("resumed", "alice", "api", ("a",)),
        ("run now", "alice", "api", ("a",), f"task {task_id}"),
        ("removed", "alice", "api", ("a",)),
        ("released", "alice", "api", ("a",)),
        ("discarded", "alice", "api", ("b",)),
    ]


def test_a_lock_that_is_cleared(schedules: Schedules, app: Celery) -> None:
    with lock(app, "k") as held, acting_as("carol"):
        assert held
        assert locks(app).clear("k")
    assert told(schedules.changes()[0]) == ("lock cleared", "carol", "api", ("k",))


def test_a_run_of_a_pipeline_that_is_cancelled_or_resumed(schedules: Schedules, app: Celery) -> None:
    @app.task(name="step", base=PipelineTask, shared=False)
    def step(params: dict[str, Any]) -> None: ...

    run = Pipeline(app, [("a", "step", 0)]).start("r1")
    with acting_as("carol"):
        assert run.cancel(note="the wrong day")
        assert not run.cancel(note="again")
        assert run.resume()
        assert not run.resume(note="again")
        with pytest.raises(InvalidEntry, match="note: expected text, got 5"):
            run.cancel(note=5)  # type: ignore[arg-type]
    assert not run.status().ended
    assert [told(change) for change in schedules.changes(limit=2)] == [
        ("pipeline resumed", "carol", "api", ("r1",)),
        ("pipeline cancelled", "carol", "api", ("r1",), "the wrong day"),
    ]
    assert schedules.changes("r1") == []  # no entry of this name was changed
    run.cancel()
    schedules._store.backend.client.delete("{redbeat-lite}:pipelines", "{redbeat-lite}:ended-runs", "celery")


class TestTheActor:
    def test_is_the_user_of_the_process_unless_told(self, app: Celery) -> None:
        schedules = Schedules(app)
        schedules.add("a", "add", every(60))
        assert schedules.changes()[0].actor == f"{getpass.getuser()}@{socket.gethostname()}"

    def test_is_who_is_acting_in_this_thread(self, schedules: Schedules) -> None:
        with acting_as("bob"):
            other = threading.Thread(target=schedules.pause, args=("a",))
            other.start()
            other.join()
            schedules.resume("a")
            with acting_as("carol"):
                schedules.pause("a")
        schedules.resume("a")
        actors = [(change.action, change.actor) for change in reversed(schedules.changes())]
        assert actors[1:] == [("paused", "alice"), ("resumed", "bob"), ("paused", "carol"), ("resumed", "alice")]

    def test_is_that_of_a_block_and_of_no_function(self, schedules: Schedules) -> None:
        async def coroutine() -> None:
            schedules.pause("a")

        with pytest.raises(TypeError):
            acting_as("bob")(coroutine)  # type: ignore[operator]

    @together("actor", ["", "x" * 101, "a\nb", "\ud800", 5, None])
    def test_is_refused_if_it_is_none(self, app: Celery, actor: Any) -> None:
        expected = "actor: expected text of 1 to 100 characters without control characters, got "
        with pytest.raises(InvalidEntry, match=expected), acting_as(actor):
            pass
        if actor is not None:
            with pytest.raises(InvalidEntry, match=expected):
                Schedules(app, actor=actor)


class TestTheLastChange:
    def test_is_read_with_the_entry(self, schedules: Schedules) -> None:
        schedules.pause("a", "n" * 1000)
        last = schedules["a"].last_change
        assert last is not None
        assert told(last) == ("paused", "alice", "api", ("a",), "n" * 500 + "…")
        assert last == schedules.changes()[0]
        assert schedules.list()[0].last_change == last

    def test_is_no_run_by_hand(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.run_now("a")
        client.delete("celery")
        assert schedules["a"].last_change.action == "added"  # type: ignore[union-attr]

    def test_outlives_the_lines_and_goes_with_the_entry(self, schedules: Schedules, client: redis.Redis) -> None:
        client.delete(CHANGES)
        [last] = schedules.changes("a")
        assert told(last) == ("added", "setup", "api", ("a",))
        assert schedules.changes("a", until=last.at - timedelta(seconds=1)) == []
        assert schedules.changes("never") == []
        schedules.remove("a")
        assert [change.action for change in schedules.changes("a")] == ["removed"]
        assert not client.hexists(STATE, "a")

    def test_is_none_of_an_entry_that_was_there_before_it_was_recorded(
        self, schedules: Schedules, client: redis.Redis
    ) -> None:
        state = client.hget(STATE, "a")
        client.hset(STATE, "a", state.partition(b"\n")[0])
        assert schedules["a"].last_change is None

    def test_is_known_where_no_line_can_be_written(self, schedules: Schedules, client: redis.Redis) -> None:
        client.delete(CHANGES)
        client.set(CHANGES, "foreign")
        schedules.pause("a")
        client.delete(CHANGES)
        last = schedules["a"].last_change
        assert last is not None
        assert told(last) == ("paused", "alice", "api", ("a",))
        assert abs(last.at - datetime.now(UTC)) < timedelta(minutes=1)


class TestOfManyEntries:
    def test_a_line_counts_them_and_names_the_first(self, schedules: Schedules) -> None:
        schedules.add_many(Entry(f"e{n:04}", "add", every(60)) for n in range(400))
        second, first, _ = schedules.changes()
        assert (first.count, second.count) == (250, 150)
        assert first.names == tuple(f"e{n:04}" for n in range(20))
        assert told(schedules["e0399"].last_change) == ("added", "alice", "api", ("e0399",))  # type: ignore[arg-type]
        assert [change.at for change in schedules.changes("e0249")] == [first.at]

    def test_one_line_tells_all_that_one_call_has_edited(self, schedules: Schedules) -> None:
        schedules.add_many([Entry(name, "add", every(60)) for name in "bcd"])
        edits = {"a": ("add", 60), "b": ("add", 5), "c": ("add", 5), "d": ("add", 60), "e": ("add", 60)}
        schedules.add_many((Entry(name, task, every(at)) for name, (task, at) in edits.items()), replace=True)
        assert [told(change) for change in schedules.changes(limit=2)] == [
            ("added", "alice", "api", ("e",)),
            ("edited", "alice", "api", ("a", "b", "c"), (("kwargs", None, None), ("schedule", None, None))),
        ]

    def test_values_are_told_where_all_were_changed_alike(self, schedules: Schedules) -> None:
        schedules.add_many([Entry(name, "add", every(60)) for name in "bc"])
        schedules.add_many([Entry(name, "add", every(5), description=name) for name in "bc"], replace=True)
        [edited, *_] = schedules.changes()
        assert edited.fields == (("schedule", '{"every":"1m"}', '{"every":"5s"}'), ("description", None, None))

    def test_long_names_are_counted_beyond_five_hundred_bytes(self, schedules: Schedules) -> None:
        names = [f"{n}" * 200 for n in range(9)]
        schedules.add_many([Entry(name, "add", every(60)) for name in names])
        [added, _] = schedules.changes()
        assert (added.names, added.count) == (tuple(names[:3]), 9)
        assert schedules.changes(names[8])[0].at == added.at

    def test_many_that_were_changed_differently_are_one_line(self, schedules: Schedules) -> None:
        entries = [Entry(f"e{n}", "add", every(60)) for n in range(30)]
        schedules.add_many(entries)
        schedules.add_many((entry.replace(description=entry.name) for entry in entries), replace=True)
        [edited, *_] = schedules.changes()
        assert (edited.action, edited.count, edited.fields) == ("edited", 30, (("description", None, None),))
        assert len(schedules.changes()) == 3


class TestReading:
    @pytest.mark.usefixtures("small_pages")
    def test_goes_from_the_newest_on_within_a_time_and_a_limit(self, schedules: Schedules, client: redis.Redis) -> None:
        client.delete(CHANGES)
        for second in range(1, 251):
            names = f'["{"odd" if second % 2 else "even"}"]'
            line = {"change": '["paused","x","api",""]', "fields": "[]", "names": names, "count": 1}
            client.xadd(CHANGES, line, id=f"{second}000-0")
        client.xadd(CHANGES, {"garbage": "x"})
        client.xadd(CHANGES, {"change": "[1]", "fields": "{", "names": "\xff", "count": "many"})

        def seconds(*args: Any, **options: Any) -> list[float]:
            return [change.at.timestamp() for change in schedules.changes(*args, **options)]

        at = datetime.fromtimestamp
        assert seconds(limit=0) == []
        assert seconds(limit=4) == [250, 249, 248, 247]
        assert len(seconds(limit=5_000)) == 250
        assert seconds("odd", limit=2) == [249, 247]
        assert seconds("even", limit=5_000) == [*range(250, 0, -2)]
        assert seconds(since=at(10, UTC), until=at(12, UTC)) == [12, 11, 10]
        assert seconds("odd", since=at(10, UTC), until=at(12, UTC)) == [11]

    @together(
        "wrong", [{"limit": -1}, {"limit": True}, {"since": 5}, {"until": datetime(2026, 1, 1)}], ids=str, emptied=True
    )
    def test_refuses_what_is_no_time_and_no_number(self, schedules: Schedules, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected "):
            schedules.changes(**wrong)


def test_no_name_that_is_none_has_changes(schedules: Schedules) -> None:
    for name in ("\udcff", "", "x" * 1000, 5):
        assert schedules.changes(name) == []  # type: ignore[arg-type]


def test_a_lock_with_the_key_of_an_entry_is_no_change_of_it(schedules: Schedules, app: Celery) -> None:
    with lock(app, "a"):
        locks(app).clear("a")
    assert [change.action for change in schedules.changes()] == ["lock cleared", "added"]
    assert [change.action for change in schedules.changes("a")] == ["added"]


def test_about_ten_thousand_lines_are_kept(schedules: Schedules, client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(10_500):
        pipe.xadd(CHANGES, {"change": number})
    pipe.execute()
    schedules.pause("a")
    assert 10_000 <= client.xlen(CHANGES) <= 10_200
    assert [change.action for change in schedules.changes()] == ["paused"]


def test_a_record_that_cannot_be_written_keeps_nobody_from_an_edit(schedules: Schedules, client: redis.Redis) -> None:
    client.set(CHANGES, "foreign", px=60_000)
    schedules.add("b", "add", every(60))
    schedules.remove("a")
    assert [*schedules] == ["b"]


@pytest.mark.parametrize("key", ["due", "entries", "state", "meta", "quarantine"])
def test_a_key_that_another_program_uses_is_named_and_nothing_is_written(
    schedules: Schedules, client: redis.Redis, key: str
) -> None:
    name = f"{{redbeat-lite}}:{key}"
    others = [other for other in client.keys("{redbeat-lite}:*") if other.decode() != name]
    client.set(name, "foreign", px=60_000)
    before = [client.dump(other) for other in others]
    with pytest.raises(redis.ResponseError, match=f"{name} is a string, not a .*another program"):
        schedules.add("b", "add", every(60))
    assert [client.dump(other) for other in others] == before
    assert client.get(name) == b"foreign"


def test_a_call_whose_reply_is_lost_is_one_line(make_app: MakeApp, proxy: Proxy, client: redis.Redis) -> None:
    schedules = Schedules(make_app(redbeat_lite_url=proxy.url))
    schedules.add("a", "add", every(60))
    schedules.run_now("a")
    client.hset("{redbeat-lite}:quarantine", "b", "{}")
    with lock(schedules._app, "k"):
        locks(schedules._app).clear("k")  # so that the server knows the scripts
        locks(schedules._app).clear("k")
    with pytest.raises(EntryNotFound):
        schedules.discard("c")
    with lock(schedules._app, "k"):
        proxy.lose_reply_to = re.compile(rb"\}:reply:[0-9a-f]{32}")
        schedules.pause("a")
        schedules.run_now("a")
        schedules.discard("b")
        assert locks(schedules._app).clear("k")
        proxy.lose_reply_to = None
    assert proxy.lost == 4
    assert [change.action for change in schedules.changes(limit=4)] == [
        "lock cleared",
        "discarded",
        "run now",
        "paused",
    ]
    assert len(schedules.changes()) == 7
