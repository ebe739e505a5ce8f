"""One entry that cannot be sent harms no other, whichever way messages go out."""

from __future__ import annotations

import gc
from typing import Any
from unittest import mock

import pytest
import redis
from celery import Task
from celery.beat import SchedulingError
from kombu.exceptions import OperationalError

from redbeat_lite import Entry, Scheduler, Schedules, every
from tests.beat.ways import SENDERS, Setup
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp
from tests.support.kombus import needs_batches
from tests.support.messages import queued


class TestOneEntryThatFails:
    def test_costs_a_new_connection_where_the_line_has_failed(self, setup: Setup, clock: Clock) -> None:
        """Over AMQP a line that was cut stays so. That nothing else was due is no reason to keep it."""

        odd = setup.odd_task()
        setup.schedules.add("odd", "odd", every(60))
        clock.forward(60)
        with mock.patch.object(odd, "apply_async", side_effect=OperationalError("cut")):
            setup.beat.run_due()
        assert setup.beat._parts.publisher._producer is None
        clock.forward(1)
        setup.beat.run_due()
        assert len(queued(setup.broker)) == 1

    def test_leaves_nothing_behind_for_a_collector(self, setup: Setup, clock: Clock) -> None:
        """Many that fail, of a task that has got another parameter say, would take some 30 KB each until one comes."""

        setup.schedules.add_many(Entry(name, "odd", every(60)) for name in "abc")

        @setup.app.task(name="odd", shared=False)
        def odd(needed: object) -> None: ...

        clock.forward(60)
        gc.collect()
        with mock.patch.object(gc, "enable"):
            setup.beat.run_due()
        # By type(), as isinstance() would ask an object for its class, and some of Django answer with an error.
        left = [each for each in gc.get_objects() if type(each) is SchedulingError]
        gc.enable()
        assert not left
        assert [entry.last_error is None for entry in setup.schedules.values()] == 3 * [False]

    def test_for_its_line_leaves_the_others_to_the_next_line(self, setup: Setup, clock: Clock) -> None:
        odd = setup.odd_task()
        apply_async, lines = odd.apply_async, []

        def over_the_second(*args: Any, producer: Any, **options: Any) -> Any:
            lines.append(producer)
            if producer is lines[0]:
                raise OperationalError("cut")
            return apply_async(*args, producer=producer, **options)

        setup.schedules.add_many(Entry(name, "odd", every(60)) for name in "abc")
        clock.forward(60)
        with mock.patch.object(odd, "apply_async", over_the_second):
            setup.beat.run_due()
        assert [message.entry for message in queued(setup.broker)] == ["b", "c"]
        assert [entry.name for entry in setup.schedules.values() if entry.last_error] == ["a"]

    def test_costs_no_new_connection_where_the_line_has_not_failed(self, setup: Setup, clock: Clock) -> None:
        """An unknown compression is a KeyError, which kombu counts among the errors of a connection to Redis."""

        setup.odd_task(compression="nope")
        setup.schedules.add("odd", "odd", every(60))
        setup.schedules.add_many(Entry(f"e{number}", "t", every(60)) for number in range(3))
        clock.forward(60)
        setup.beat.run_due()
        before = setup.broker.info("stats")["total_connections_received"]
        clock.forward(60)
        setup.beat.run_due()
        assert setup.broker.info("stats")["total_connections_received"] == before
        assert "nope" in (setup.schedules["odd"].last_error or "")
        assert len(queued(setup.broker)) == 6

    @needs_batches
    @pytest.mark.parametrize("setup", [way for way in SENDERS if way != "one by one"], indirect=True)
    def test_after_its_message_was_made_leaves_no_part_of_it_to_the_next(self, setup: Setup, clock: Clock) -> None:
        class Late(Task):
            def apply_async(self, *args: Any, **options: Any) -> Any:
                super().apply_async(*args, **options)
                raise RuntimeError("too late")

        setup.odd_task(base=Late)
        setup.schedules.add_many(Entry(name, task, every(60)) for name, task in (("a", "odd"), ("b", "t")))
        clock.forward(60)
        setup.beat.run_due()
        assert [message.entry for message in queued(setup.broker)] == ["b"]
        assert "too late" in (setup.schedules["a"].last_error or "")

    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    def test_in_a_scheduler_of_the_users_does_not_count_as_sent(
        self, make_app: MakeApp, clock: Clock, client: redis.Redis, dispatch: str
    ) -> None:
        class Tenants(Scheduler):
            def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
                if entry.name == "unknown":
                    raise LookupError("no such tenant")
                return super().apply_async(entry, *args, **kwargs)

        app = make_app(redbeat_lite_dispatch=dispatch)
        schedules = Schedules(app)
        schedules.add_many(Entry(name, "t", every(60)) for name in ("known", "unknown"))
        beat = Tenants(app)
        for _ in range(2):
            clock.forward(60)
            beat.run_due()
        beat.close()
        assert [message.entry for message in queued(client)] == ["known", "known"]
        assert schedules["unknown"].total_run_count == 0
        assert schedules["unknown"].last_error == "LookupError: no such tenant"

    def test_whose_queue_refuses_it_leaves_the_others_sent_once(self, setup: Setup, clock: Clock) -> None:
        queues = ("first", "broken", "last")
        setup.schedules.add_many(
            Entry(f"{queue}-{number}", "t", every(60), options={"queue": queue})
            for number in range(5)
            for queue in queues
        )
        clock.forward(60)
        setup.beat.run_due()
        setup.broker.delete("broken")
        setup.broker.set("broken", "not a list")
        connections = setup.broker.info("stats")["total_connections_received"]
        clock.forward(60)
        setup.beat.run_due()
        clock.forward(1)
        setup.beat.run_due()
        assert setup.broker.info("stats")["total_connections_received"] == connections
        for queue in ("first", "last"):
            messages = queued(setup.broker, queue)
            assert len({message.id for message in messages}) == len(messages) == 10
        for entry in setup.schedules.values():
            refused = entry.name.startswith("broken")
            assert entry.total_run_count == (1 if refused else 2)
            assert ("list" in (entry.last_error or "") or "WRONGTYPE" in (entry.last_error or "")) is refused
        setup.broker.delete("broken")
        clock.forward(2)
        setup.beat.run_due()
        messages = queued(setup.broker, "broken")
        assert {message.id for message in messages} == {
            entry.last_task_id for entry in setup.schedules.values() if entry.name.startswith("broken")
        }
        assert len(messages) == 5
