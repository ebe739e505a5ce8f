"""A message that could not be sent is sent later, once and under the same id."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from redbeat_lite import Entry, Scheduler, Schedules, every
from tests.beat.moments import after, nominals
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.messages import queued

pytestmark = pytest.mark.usefixtures("clock")


class TestFailedPublish:
    @pytest.mark.parametrize("dispatch", ["auto", "batch", "plain"])
    def test_three_times_and_then_not_is_one_message_under_one_id(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        dispatch: str,
    ) -> None:
        app = make_app(redbeat_lite_dispatch=dispatch)
        schedules, beat = Schedules(app), make_beat(app)
        schedules.add("a", "some.task", every(3600))
        send, tried = app.amqp.send_task_message, []

        def failing(producer: Any, name: str, message: Any, **options: Any) -> Any:
            tried.append((clock.now, message.headers["id"]))
            assert options["retry"] is False, "a retry inside the publish would hold up all others"
            if len(tried) <= 3:
                raise RuntimeError(f"failure {len(tried)}")
            return send(producer, name, message, **options)

        monkeypatch.setattr(app.amqp, "send_task_message", failing)
        clock.forward(3600)
        errors = []
        for _ in range(4):
            wait = beat.run_due()
            errors.append(schedules["a"].last_error)
            clock.forward(wait)
        assert [moment for moment, _ in tried] == [after(3600), after(3601), after(3603), after(3607)]
        assert len({name for _, name in tried}) == 1
        assert errors == ["RuntimeError: failure 1", "RuntimeError: failure 2", "RuntimeError: failure 3", None]
        [message] = queued(client)
        assert (message.id, message.scheduled_at) == (tried[0][1], after(3600))
        entry = schedules["a"]
        assert (entry.total_run_count, entry.last_run_at, entry.last_task_id) == (1, after(3600), message.id)
        assert entry.next_run_at == after(7200)

    def test_of_a_broker_that_goes_away_does_not_send_again_what_is_out(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        client: redis.Redis,
        clock: Clock,
    ) -> None:
        app = make_app(redbeat_lite_dispatch="plain")
        Schedules(app).add_many(Entry(name, "add", every(10 + n)) for n, name in enumerate("abc"))
        beat = make_beat(app)
        clock.forward(15)

        def gone(entry: Any, producer: Any = None) -> None:
            if entry.name == "b":
                raise OperationalError("the broker went away")
            Scheduler.apply_entry(beat, entry, producer)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(beat, "apply_entry", gone)
            beat.run_due()
        clock.forward(1)
        beat.run_due()
        assert [message.entry for message in queued(client)] == ["a", "c", "b"]

    def test_is_tried_every_minute_in_the_end(
        self, app: Celery, schedules: Schedules, inner_beat: Scheduler, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(*args: object, **kwargs: object) -> None:
            raise RuntimeError("no")

        monkeypatch.setattr(app.amqp, "send_task_message", failing)
        schedules.add("a", "add", every(86_400))
        clock.forward(86_400)
        waits = []
        for _ in range(9):
            waits.append(inner_beat.run_due())
            clock.forward(waits[-1])
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]

    def test_a_queue_that_is_no_list_is_that_entrys_fault_alone(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        client.set("broken", "x", ex=60)
        schedules.add("bad", "add", every(3600), options={"queue": "broken"})
        schedules.add("good", "add", every(3600))
        clock.forward(3600)
        inner_beat.run_due()
        assert nominals(client, "good") == [3600]
        assert "WRONGTYPE" in (schedules["bad"].last_error or "")
        client.delete("broken")
        clock.forward(1)
        inner_beat.run_due()
        [message] = queued(client, "broken")
        assert message.scheduled_at == after(3600)
        assert schedules["bad"].last_error is None
