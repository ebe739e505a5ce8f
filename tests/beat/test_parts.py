"""A batch that goes in parts: what befalls it between two of them, while the server commits the first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
import redis

from redbeat_lite import Entry, Schedules, every, locks
from redbeat_lite.beat.dispatch.broker import BrokerDown
from redbeat_lite.beat.dispatch.planner import MOST
from redbeat_lite.storage.leader_store import LeaderStore
from tests.beat.ways import Setup
from tests.support.beats import KEYS
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import queued
from tests.support.server import Server

pytestmark = needs_batches

HERD = 300


def taken_over(setup: Setup) -> None:
    setup.broker.hincrby(KEYS.leader, "term", 1)


def frozen(setup: Setup) -> None:
    setup.schedules.freezes.add("*", seconds=3600)


def told_to_stop(setup: Setup) -> None:
    setup.beat.close()
    raise SystemExit


def cut_off(setup: Setup) -> None:
    raise redis.ConnectionError("cut")


#: The second part of the first batch, while the server commits the first; and the first part of the second batch, which
#: was looked for meanwhile, while the server commits the last part of the first one.
MOMENTS = {"second part": 1, "second batch": 2}


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("befalls", [taken_over, frozen, told_to_stop, cut_off])
def test_what_befalls_it_between_two_parts_loses_and_doubles_nothing(
    make_app: MakeApp,
    make_beat: MakeBeat,
    server: Server,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    befalls: Callable[[Setup], None],
    moment: str,
    once: bool,
) -> None:
    setup = Setup("one step", make_app, make_beat, server)
    setup.schedules.add_many(Entry(f"e{number}", "t", every(10), (number,), once=once) for number in range(HERD))
    setup.schedules.add("first", "t", every(5))
    clock.forward(5)
    setup.beat.run_due()  # it knows the broker now, and how quick that is
    setup.beat._dispatcher._most, setup.beat._dispatcher._batch_size = MOST, HERD * 2 // 3
    monkeypatch.setattr("redbeat_lite.beat.dispatch.dispatcher._BATCH", 60)  # on a slow machine, too
    commit, sent = LeaderStore.commit, list[int]()

    def then(store: LeaderStore, *args: Any) -> Any:
        if len(sent) == MOMENTS[moment]:
            befalls(setup)
        sent.append(len(args[2]))
        return commit(store, *args)

    monkeypatch.setattr(LeaderStore, "commit", then)
    clock.forward(5)
    with suppress(SystemExit, redis.ConnectionError):
        setup.beat.run_due()
    monkeypatch.undo()
    out = of_herd(setup)
    assert 0 < len(out) < HERD
    held = {lock.task_id for lock in locks(setup.app).list()}
    if once:
        assert not {*out} - held
    if befalls in (taken_over, frozen):
        assert len(held) == len(out) * once, "what is known not to have been sent holds no lock"

    for freeze in setup.schedules.freezes:
        setup.schedules.freezes.thaw(freeze.id)
    setup.broker.delete(KEYS.leader)
    setup.beat = make_beat(setup.app)
    while not setup.beat.run_due():
        pass
    assert len(of_herd(setup)) == len({*of_herd(setup)}) == HERD


def test_a_broker_that_fails_while_the_server_refuses_the_part_before_is_down_and_no_more(
    make_app: MakeApp,
    make_beat: MakeBeat,
    own_server: Callable[..., Server],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redbeat_lite.beat.dispatch.dispatcher._BATCH", 60)  # on a slow machine, too
    server = own_server()
    with server.client() as admin:
        admin.execute_command(
            "ACL", "SETUSER", "planner", "on", ">secret", "~{redbeat-lite}:*", "~celery", "&*", "+@all"
        )
        url = server.url.replace("redis://", "redis://planner:secret@")
        app = make_app(broker_url=server.url, redbeat_lite_url=url)
        schedules = Schedules(app)
        schedules.add("first", "t", every(5))
        schedules.add_many(Entry(f"e{each}", "t", every(10), options={"queue": "other"}) for each in range(HERD))
        beat = make_beat(app)
        clock.forward(5)
        beat.run_due()
        clock.forward(5)
        dispatcher = beat._dispatcher
        dispatcher._most = MOST
        publish = mock.Mock(wraps=dispatcher._publish)
        publish.side_effect = [mock.DEFAULT, BrokerDown("cut")]
        with mock.patch.object(dispatcher, "_publish", publish), pytest.raises(BrokerDown):
            beat.run_due()
        beat.run_due()
        assert len({message.id for message in queued(admin, "other")}) == admin.llen("other") == HERD


@pytest.mark.parametrize(("number", "sizes"), [(500, [126, 126, 126, 122]), (201, [102, 99])])
def test_each_part_is_of_a_like_size_and_goes_in_the_order_of_due_times(
    make_app: MakeApp,
    make_beat: MakeBeat,
    server: Server,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    sizes: list[int],
) -> None:
    setup = Setup("one step", make_app, make_beat, server)
    setup.schedules.add("first", "t", every(5))
    setup.schedules.add_many(Entry(f"e{each:03}", "t", every(1000 + each)) for each in range(number))
    clock.forward(5)
    setup.beat.run_due()
    setup.schedules.remove("first")
    setup.beat._dispatcher._most = MOST
    monkeypatch.setattr("redbeat_lite.beat.dispatch.dispatcher._BATCH", 60)  # on a slow machine, too
    clock.forward(1800)
    with mock.patch.object(setup.beat.store, "commit", side_effect=setup.beat.store.commit) as commit:
        setup.beat.run_due()
    parts = [[advance.name for advance in call.args[2]] for call in commit.call_args_list]
    assert [*map(len, parts)] == sizes
    assert parts == [*map(sorted, parts)]


def of_herd(setup: Setup) -> list[str]:
    return [message.id for message in queued(setup.broker) if message.entry != "first"]
