"""A broker that is gone, full or demoted: what is due stays so, and goes out once it is back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
from kombu.exceptions import OperationalError

from redbeat_lite import Entry, Schedules, every
from redbeat_lite.beat.dispatch.publisher import BrokerDown, RedisBatch
from tests.beat.ways import SENDERS, Setup
from tests.support.cases import together
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import queued
from tests.support.proxy import Proxy
from tests.support.server import Server


def lose_the_broker_at_c(setup: Setup, clock: Clock) -> None:
    """Have the entries a, b, c and d be due, and the broker go away when it is the turn of c."""
    odd = setup.odd_task()
    setup.schedules.add_many(Entry(name, "odd" if name == "c" else "t", every(60)) for name in "abcd")
    clock.forward(60)
    gone = mock.patch("redbeat_lite.beat.dispatch.publisher.broker_connection", side_effect=OperationalError("gone"))

    def cut(*args: Any, **options: Any) -> None:
        gone.start()
        raise OperationalError("cut")

    with mock.patch.object(odd, "apply_async", side_effect=cut), pytest.raises(BrokerDown, match="gone"):
        setup.beat.run_due()
    gone.stop()


class TestBrokerDown:
    def test_keeps_what_is_due_and_sends_it_once_it_is_back(
        self, make_app: MakeApp, make_beat: MakeBeat, server: Server, own_server: Callable[..., Server], clock: Clock
    ) -> None:
        broker = own_server()
        app = make_app(broker_url=broker.url, redbeat_lite_url=server.url)
        schedules, beat = Schedules(app), make_beat(app)
        schedules.add_many(Entry(f"e{number}", "t", every(60)) for number in range(10))
        clock.forward(60)
        beat.run_due()
        broker.stop(kill=True)
        clock.forward(60)
        for _ in range(2):
            with pytest.raises(BrokerDown):
                beat.run_due()
        assert all(entry.total_run_count == 1 for entry in schedules.values())
        broker.start()
        clock.forward(1)  # The entry whose publish has met the outage waits for a second.
        beat.run_due()
        assert all(entry.total_run_count == 2 for entry in schedules.values())
        with broker.client() as client:
            assert len({message.id for message in queued(client)}) == 10

    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    @pytest.mark.parametrize(
        ("refuse", "allow", "said"),
        [
            ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "memory"),
            ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "read only"),
            ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "enough good replicas"),
        ],
    )
    def test_goes_on_at_once_after_a_time_in_which_it_took_nothing(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        server: Server,
        own_server: Callable[..., Server],
        clock: Clock,
        dispatch: str,
        refuse: str,
        allow: str,
        said: str,
    ) -> None:
        broker = own_server()
        app = make_app(broker_url=broker.url, redbeat_lite_url=server.url, redbeat_lite_dispatch=dispatch)
        schedules, beat = Schedules(app), make_beat(app)
        schedules.add_many(Entry(f"e{number}", "t", every(60)) for number in range(10))
        with broker.client() as client:
            clock.forward(60)
            beat.run_due()
            client.execute_command(*refuse.split())
            clock.forward(60)
            for _ in range(3):
                with pytest.raises(BrokerDown, match=rf"it refuses every message: .*{said}"):
                    beat.run_due()
            assert client.llen("celery") == 10
            assert {entry.total_run_count for entry in schedules.values()} == {1}
            client.execute_command(*allow.split())
            beat.run_due()
            assert len({message.id for message in queued(client)}) == client.llen("celery") == 20
        assert {entry.total_run_count for entry in schedules.values()} == {2}

    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    def test_holds_no_once_lock_against_the_later_run_that_is_sent_in_the_place_of_this_one(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        server: Server,
        own_server: Callable[..., Server],
        clock: Clock,
        dispatch: str,
    ) -> None:
        broker = own_server()
        app = make_app(broker_url=broker.url, redbeat_lite_url=server.url, redbeat_lite_dispatch=dispatch)
        schedules, beat = Schedules(app), make_beat(app)
        schedules.add("connects", "t", every(10))
        clock.forward(10)
        beat.run_due()
        schedules.remove("connects")
        schedules.add_many(Entry(f"e{number}", f"t{number}", every(10), once=True) for number in range(3))
        broker.stop(kill=True)
        clock.forward(10)
        with pytest.raises(BrokerDown):
            beat.run_due()
        broker.start()
        clock.forward(10)
        beat.run_due()
        with broker.client() as client:
            assert sorted(message.headers["task"] for message in queued(client)) == ["t0", "t1", "t2"]

    @pytest.mark.parametrize("setup", SENDERS, indirect=True)
    def test_after_some_messages_were_made_sends_only_the_others_later(self, setup: Setup, clock: Clock) -> None:
        lose_the_broker_at_c(setup, clock)
        assert [message.entry for message in queued(setup.broker)] == ["a", "b"]
        assert setup.schedules["c"].last_error == "OperationalError: cut"
        clock.forward(1)
        setup.beat.run_due()
        assert [message.entry for message in queued(setup.broker)] == ["a", "b", "d", "c"]
        assert {entry.total_run_count for entry in setup.schedules.values()} == {1}

    @needs_batches
    @pytest.mark.parametrize("setup", ["one by one to another database"], indirect=True)
    def test_whose_answer_is_lost_gets_the_message_again_under_the_same_id(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add_many(Entry(name, "t", every(60)) for name in "abc")
        clock.forward(60)
        send, sent = RedisBatch.send, []

        def lose_the_first_answer(self: RedisBatch, commands: Sequence[Any]) -> None:
            send(self, commands)
            sent.append(commands)
            if len(sent) == 1:
                raise OperationalError("the answer was lost")

        with mock.patch.object(RedisBatch, "send", lose_the_first_answer):
            setup.beat.run_due()
        counts = [entry.total_run_count for entry in setup.schedules.values()]
        assert sorted(counts) == [0, 1, 1]
        clock.forward(5)
        setup.beat.run_due()
        messages = queued(setup.broker)
        assert (len(messages), len({message.id for message in messages})) == (4, 3)
        assert {entry.total_run_count for entry in setup.schedules.values()} == {1}

    @together(
        "broker",
        ["redis://127.0.0.1:1/0", "redis://h/no-number", "redis://:p;w@h:1/0", "sentinel://127.0.0.1:1", "none://h"],
        emptied=True,
    )
    def test_costs_no_entry_a_backoff_of_its_own(
        self, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock, broker: str
    ) -> None:
        app = make_app(broker_url=broker, redbeat_lite_url=server.url)
        schedules, beat = Schedules(app), make_beat(app)
        schedules.add("a", "t", every(60))
        clock.forward(60)
        with pytest.raises(BrokerDown):
            beat.run_due()
        assert schedules["a"].last_error is None
        assert schedules["a"].next_run_at == clock.now
        assert clock.now > NOW

    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    def test_that_was_demoted_is_followed_by_whom_new_connections_lead_to(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        server: Server,
        own_server: Callable[..., Server],
        clock: Clock,
        caplog: pytest.LogCaptureFixture,
        dispatch: str,
    ) -> None:
        caplog.set_level("INFO")
        old, new = own_server(), own_server()
        with Proxy(old.port) as proxy, old.client() as to_old, new.client() as to_new:
            app = make_app(broker_url=proxy.url, redbeat_lite_url=server.url, redbeat_lite_dispatch=dispatch)
            Schedules(app).add("a", "t", every(60))
            beat = make_beat(app)
            clock.forward(60)
            beat.run_due()
            to_old.replicaof("127.0.0.1", str(new.port))
            proxy.target = new.port
            clock.forward(60)
            with pytest.raises(BrokerDown):
                beat.run_due()
            beat.run_due()
            assert to_new.llen("celery") == 1
        assert len([line for line in caplog.messages if "messages go out" in line]) == 1
