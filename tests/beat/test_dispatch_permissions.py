"""Users of the server who may not do all that a way of dispatch wants."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.exceptions import OperationalError

from redbeat_lite import Entry, Schedules, every
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import queued
from tests.support.server import Server


@needs_batches
def test_a_message_whose_queue_cannot_be_told_to_expire_is_sent_once(
    make_app: MakeApp, make_beat: MakeBeat, server: Server, own_server: Callable[..., Server], clock: Clock
) -> None:
    broker = own_server()
    with broker.client() as admin:
        admin.execute_command("ACL", "SETUSER", "sender", "on", ">secret", "~*", "&*", "+@all", "-pexpire")
        app = make_app(
            broker_url=broker.url.replace("redis://", "redis://sender:secret@"),
            redbeat_lite_url=server.url,
            task_queues=[Queue("short", Exchange("short"), "short", expires=100)],
            task_default_queue="short",
        )
        Schedules(app).add("a", "t", every(60))
        beat = make_beat(app)
        clock.forward(60)
        beat.run_due()
        clock.forward(5)
        beat.run_due()
        assert admin.llen("short") == 1


@needs_batches
def test_a_broker_whose_user_may_not_read_the_schedule_is_written_one_by_one(
    make_app: MakeApp, make_beat: MakeBeat, own_server: Callable[..., Server], clock: Clock
) -> None:
    server = own_server()
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "sender", "on", ">secret", "~celery*", "~_kombu.*", "&*", "+@all")
        app = make_app(broker_url=server.url.replace("redis://", "redis://sender:secret@"), redbeat_lite_url=server.url)
        Schedules(app).add("a", "t", every(60))
        clock.forward(60)
        beat = make_beat(app)
        beat.run_due()
        assert [message.entry for message in queued(admin)] == ["a"]
        assert "stable ids; the broker's user may not read the schedule)" in beat._parts.state.dispatch


@needs_batches
def test_a_schedule_whose_user_may_not_write_to_the_queues_leaves_that_to_the_brokers(
    make_app: MakeApp,
    make_beat: MakeBeat,
    own_server: Callable[..., Server],
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = own_server()
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "planner", "on", ">secret", "~{redbeat-lite}:*", "&*", "+@all")
        app = make_app(
            broker_url=server.url, redbeat_lite_url=server.url.replace("redis://", "redis://planner:secret@")
        )

        @app.task(shared=False, name="odd")
        def odd() -> None: ...

        Schedules(app).add_many(Entry(f"e{number}", "t", every(60)) for number in range(10))
        beat = make_beat(app)
        for count in (1, 2):
            clock.forward(60)
            beat.run_due()
            assert len({message.id for message in queued(admin)}) == admin.llen("celery") == 10 * count
        assert "stable ids; the schedule's user may not write to a queue)" in beat._parts.state.dispatch
        beat._parts.publisher.close()  # so that it tries one step again, …
        Schedules(app).add("e5, odd", "odd", every(60))
        clock.forward(60)
        with mock.patch.object(odd, "apply_async", side_effect=OperationalError("cut")):
            beat.run_due()  # … and gives up a connection meanwhile
        assert len({message.id for message in queued(admin)}) == admin.llen("celery") == 30
    assert [line for line in caplog.messages if "may not write to a queue" in line]
    schedules = Schedules(make_app(broker_url=server.url))
    assert {entry.total_run_count for entry in schedules.values() if entry.task == "t"} == {3}


@needs_batches
def test_a_channel_that_the_schedules_user_may_not_publish_to_fails_its_entry_alone(
    make_app: MakeApp, make_beat: MakeBeat, own_server: Callable[..., Server], clock: Clock
) -> None:
    server = own_server()
    with server.client() as admin:
        words = ("~*", "resetchannels", "&{redbeat-lite}:wake", "+@all")
        admin.execute_command("ACL", "SETUSER", "planner", "on", ">secret", *words)
        app = make_app(
            broker_url=server.url,
            redbeat_lite_url=server.url.replace("redis://", "redis://planner:secret@"),
            task_queues=[Queue("celery"), Broadcast("everybody")],
        )
        schedules = Schedules(app)
        schedules.add_many(Entry(f"e{number}", "t", every(60)) for number in range(3))
        schedules.add("loud", "t", every(60), options={"queue": "everybody"})
        clock.forward(60)
        beat = make_beat(app)
        beat.run_due()
        assert {message.entry for message in queued(admin)} == {"e0", "e1", "e2"}
        assert "channel" in (schedules["loud"].last_error or "")
        assert schedules["loud"].total_run_count == 0


@needs_batches
@pytest.mark.parametrize("broker_is_elsewhere", [False, True])
def test_a_message_whose_event_is_refused_is_sent_once(
    make_app: MakeApp,
    make_beat: MakeBeat,
    server: Server,
    own_server: Callable[..., Server],
    clock: Clock,
    broker_is_elsewhere: bool,
) -> None:
    broker = own_server()
    with broker.client() as admin:
        words = ("~*", "resetchannels", "&{redbeat-lite}:wake", "+@all")
        admin.execute_command("ACL", "SETUSER", "sender", "on", ">secret", *words)
        url = broker.url.replace("redis://", "redis://sender:secret@")
        app = make_app(
            broker_url=url,
            redbeat_lite_url=server.url if broker_is_elsewhere else url,
            task_send_sent_event=True,
        )
        schedules = Schedules(app)
        schedules.add("a", "t", every(60))
        beat = make_beat(app)
        for count in (1, 2):
            clock.forward(60)
            beat.run_due()
            clock.forward(2)
            beat.run_due()
            assert len({message.id for message in queued(admin)}) == admin.llen("celery") == count
        assert schedules["a"].total_run_count == 2
