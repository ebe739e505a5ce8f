"""An entry's task sent at once, beside its plan."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from redbeat_lite import EntryNotFound, Scheduler, Schedules, at, every
from tests.support.frozen import NOW, Clock
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
        assert (told[first]["queued"], told[second]["queued"]) == (True, False)
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
        assert queued(client)[0].headers["redbeat_once"]["queued"] is True
