"""An entry's task sent at once, beside its plan."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery, chain, signature
from celery.beat import BeatLazyFunc
from kombu.exceptions import OperationalError

from redbeat_lite import ConfigOwned, EntryNotFound, InvalidEntry, Once, Scheduler, Schedules, at, every
from tests.support.cases import together
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat, one_turn
from tests.support.messages import queued

pytestmark = pytest.mark.usefixtures("clock")


class TestRunNow:
    def test_emits_one_task_with_the_entrys_own_options_and_leaves_the_plan(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add(
            "a", "add", every(60), (1,), {"y": 2}, {"queue": "q", "priority": 3, "headers": {"team": "x"}}, expires=30
        )
        before = schedules["a"]
        task_id = schedules.run_now("a")
        [message] = queued(client, "q" if client.exists("q") else "q\x06\x163")
        assert (message.id, message.task, message.args, message.kwargs) == (task_id, "add", [1], {"y": 2})
        assert message.properties["priority"] == 3
        assert message.headers["team"] == "x"
        assert (message.entry, message.scheduled_at) == ("a", NOW)
        assert message.headers["expires"] == (NOW + timedelta(seconds=30)).isoformat()
        after = schedules["a"]
        assert (after.version, after.next_run_at, after.total_run_count) == (1, before.next_run_at, 0)
        clock.forward(60)
        inner_beat.run_due()
        assert schedules["a"].last_run_at == NOW + timedelta(seconds=60)

    @pytest.mark.parametrize(("interval", "life"), [(1, 65), (300, 305)])
    def test_it_lives_for_a_gap_and_a_minute_at_least(
        self, schedules: Schedules, clock: Clock, client: redis.Redis, interval: int, life: int
    ) -> None:
        schedules.add("a", "add", every(interval))
        clock.forward(interval - 0.1)
        schedules.run_now("a")
        [message] = queued(client)
        assert datetime.fromisoformat(message.headers["expires"]) == clock.now + timedelta(seconds=life)

    def test_without_a_next_run_it_lives_until_it_has_run(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("a", "add", at(NOW + timedelta(seconds=9)))
        schedules.run_now("a")
        assert queued(client)[0].headers["expires"] is None

    def test_arguments_that_do_not_fit_one_task_are_refused_before_any_is_sent(
        self, schedules: Schedules, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(60))
        schedules.add("b", "add", every(60), (1, 2, 3))
        with pytest.raises(InvalidEntry, match=r"entry 'b'.*args: expected what add takes, got \(1, 2, 3\)"):
            schedules.select("*").run_now()
        assert queued(client) == []

    def test_two_are_two_tasks(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(60))
        assert schedules.run_now("a") != schedules.run_now("a")

    def test_a_paused_entry_and_an_unknown_task_run_too(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("a", "not.registered.here", every(60))
        schedules.pause("a")
        task_id = schedules.run_now("a")
        assert [(message.id, message.task) for message in queued(client)] == [(task_id, "not.registered.here")]

    def test_an_absent_entry_is_told(self, schedules: Schedules) -> None:
        with pytest.raises(EntryNotFound):
            schedules.run_now("a")

    def test_the_once_lock_is_taken_and_where_it_is_held_left_to_the_worker(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(60), once=True)
        first, second = schedules.run_now("a"), schedules.run_now("a")
        told = {message.id: message.headers["redbeat_once"] for message in queued(client)}
        assert told[first]["key"] == told[second]["key"]
        [lock] = client.keys("{redbeat-lite}:once:lock:*")
        assert client.hget(lock, "task") == first.encode()
        clock.forward(60)
        inner_beat.run_due()
        assert len(queued(client)) == 2
        assert schedules["a"].skipped_count == 1

    def test_a_failure_gives_the_once_lock_back(
        self, app: Celery, schedules: Schedules, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        schedules.add("a", "some.task", every(60), once=True)

        def failing(*args: object, **kwargs: object) -> None:
            raise OperationalError("no broker")

        with monkeypatch.context() as patched:
            patched.setattr(app, "send_task", failing)
            with pytest.raises(OperationalError):
                schedules.run_now("a")
        assert not client.keys("*once:lock*")
        schedules.run_now("a")
        assert client.keys("*once:lock*")


OTHERS = "redbeat_other_arguments"

#: What is given, and what is said of it.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"args": "abc"}, "args: expected a list or tuple, got 'abc' (one argument is written (value,))"),
    "no dict": ({"kwargs": [1]}, "kwargs: expected a dict with text keys, got [1]"),
    "what no message holds": ({"args": (1, object)}, "args[1]: expected a value that "),
    "what the task does not take": (
        {"kwargs": {"z": 1}},
        "kwargs: expected what add takes, got {'kwargs': {'z': 1}} (add() got an unexpected keyword argument 'z')",
    ),
    "too much": (
        {"args": (1, 2, 3)},
        "args: expected what add takes, got {'args': (1, 2, 3)} (add() takes from 0 to 2 ",
    ),
    "a note that is none": ({"note": 5}, "note: expected text of at most 1000 characters, got 5"),
}


class TestOtherArguments:
    def test_they_are_for_this_run_alone_and_its_message_and_the_record_say_so(
        self, schedules: Schedules, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(60), (1,), {"y": 2}, {"headers": {"team": "x"}})
        ids = [
            schedules.run_now("a"),
            schedules.run_now("a", args=(7,), note="after the import"),
            schedules.run_now("a", args=(), kwargs={"x": 5}),
            schedules.run_now("a", note="once more"),
        ]
        messages = {message.id: message for message in queued(client)}
        assert [(messages[each].args, messages[each].kwargs, messages[each].headers.get(OTHERS)) for each in ids] == [
            ([1], {"y": 2}, None),
            ([7], {"y": 2}, True),
            ([], {"x": 5}, True),
            ([1], {"y": 2}, None),
        ]
        assert {message.headers["team"] for message in messages.values()} == {"x"}
        assert (schedules["a"].args, schedules["a"].kwargs, schedules["a"].version) == ((1,), {"y": 2}, 1)
        assert [change.note for change in reversed(schedules.changes())][1:] == [
            f"task {ids[0]}",
            f"task {ids[1]} with other arguments: after the import",
            f"task {ids[2]} with other arguments",
            f"task {ids[3]}: once more",
        ]

    @together("case", REFUSED, emptied=True)
    def test_what_is_wrong_is_told_and_nothing_is_done(
        self, schedules: Schedules, client: redis.Redis, case: str
    ) -> None:
        given, says = REFUSED[case]
        schedules.add("a", "add", every(60), once=True)
        with pytest.raises(InvalidEntry) as caught:
            schedules.run_now("a", **given)
        assert str(caught.value).startswith(f"entry 'a': {says}")
        assert queued(client) == []
        assert not client.keys("*once:lock*")
        assert [change.action for change in schedules.changes()] == ["added"]

    def test_a_canvas_takes_none(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("a", chain(signature("add", (1, 2)), signature("add", (3,))), every(60))
        with pytest.raises(InvalidEntry, match="args: expected none for a canvas, whose members have their own, got"):
            schedules.run_now("a", args=("add",))
        assert queued(client) == []

    def test_the_key_of_the_once_lock_is_made_of_them(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("a", "add", every(60), (1,), once=Once(key="{x}", scope="queue"))
        for given in ({}, {"args": (2,)}, {"args": (2, 3)}):
            schedules.run_now("a", **given)
        told = [message.headers["redbeat_once"] for message in reversed(queued(client))]
        assert sorted(each["key"] for each in told) == ["add:1", "add:2", "add:2"]

    def test_they_take_the_place_of_what_only_the_configuration_knows(
        self, make_app: MakeApp, make_beat: MakeBeat, schedules: Schedules, client: redis.Redis
    ) -> None:
        lazy = {"task": "add", "schedule": 60, "args": (BeatLazyFunc(lambda: 3),)}
        own = one_turn(make_app(beat_schedule={"a": lazy}, redbeat_lite_owner="other"), make_beat)
        with pytest.raises(ConfigOwned):
            schedules.run_now("a", kwargs={"y": 2})
        schedules.run_now("a", args=(1,))
        own.run_now("a", kwargs={"y": 2})
        assert sorted((message.args, message.kwargs) for message in queued(client)) == [([1], {}), ([3], {"y": 2})]
