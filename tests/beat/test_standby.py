"""What a beat that stands by hears and asks while it waits."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import timedelta

import pytest
import redis

from redbeat_lite import Scheduler, Schedules, every
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.waiting import eventually


def test_changes_of_the_schedule_are_no_reason_to_ask_for_the_lease(make_app: MakeApp, make_beat: MakeBeat) -> None:
    app = make_app()
    leader, standby = make_beat(app), make_beat(app)
    leader.run_due()
    asked: list[float] = []
    acquire, heard = standby.leader.acquire, threading.Event()

    def counted() -> float:
        asked.append(acquire())
        return asked[-1]

    standby.leader.acquire = counted  # type: ignore[method-assign]
    standby._parts.wakeup.listen()
    get_message = standby._parts.wakeup._pubsub.get_message

    def noted(timeout: float) -> object:
        message = get_message(timeout=timeout)
        if message and message["data"] == b"head":
            heard.set()
        return message

    standby._parts.wakeup._pubsub.get_message = noted

    def beat() -> None:
        with suppress(SystemExit):
            while True:
                standby.tick()

    thread = threading.Thread(target=beat)
    thread.start()
    eventually(lambda: asked, what="the first question of the stand-by")
    schedules = Schedules(app)
    for number in range(20):  # each is due before all others
        schedules.add(f"e{number}", "t", every(timedelta(hours=20 - number)))
        assert heard.wait(10)
        heard.clear()
    assert len(asked) == 1
    schedules.freeze(60, "deploy")
    eventually(lambda: b"deploy" in standby._parts.leadership.freeze_memory.seen, what="a look at what is frozen now")
    asked[1:] = []
    leader.close()
    eventually(lambda: asked[1:], what="its question for the lease that was given back")
    assert asked[1:] == [0.0]
    standby.close()
    thread.join(10)


@pytest.mark.parametrize("leads", [True, False])
def test_a_subscription_that_was_cut_ends_the_wait(make_app: MakeApp, client: redis.Redis, leads: bool) -> None:
    """What was said before there is a new one is gone."""
    scheduler = Scheduler(make_app())
    scheduler._parts.wakeup.listen()
    begun = threading.Event()

    def wait() -> None:
        scheduler._parts.wakeup.wait(60, until=begun.set, leads=leads)  # type: ignore[arg-type,func-returns-value]

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(10)
    client.client_kill_filter(_type="pubsub")
    thread.join(20)
    assert not thread.is_alive()
    scheduler.close()
