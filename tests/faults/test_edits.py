"""A user changes entries while their leaders are killed: whatever a call has said holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from celery import Celery

from redbeat_lite import Schedules
from tests.faults.conftest import On, Own
from tests.harness.calls import User
from tests.harness.history import HistoryLog

#: Milliseconds between two runs of an entry, before and after an edit.
BEFORE, AFTER = 300, 700

NAMES = ("edited", "paused", "frozen", "removed")


def changes(user: User) -> Iterator[None]:
    """Change entries, again and again; each step begins with a change."""
    while True:
        for milliseconds in (AFTER, BEFORE):
            user.update("edited", milliseconds)
            user.pause("paused")
            yield
            freeze = user.freeze("frozen")
            user.remove("removed")
            yield
            user.resume("paused")
            user.update("edited", milliseconds + 100)
            yield
            user.thaw(freeze)
            user.add("removed", BEFORE, misfire="all")
            yield


def test_what_a_call_has_said_holds_while_leaders_are_killed(
    own_server: Own, on: On, make_app: Callable[..., Celery], log: HistoryLog, lease: float
) -> None:
    server = own_server()
    scenario = on(server)
    scenario.begin()
    user = User(Schedules(make_app(broker_url=server.url)), log)
    for name in NAMES:
        user.add(name, BEFORE, misfire="all")
    scenario.pause(0.7)
    for step, _ in enumerate(changes(user)):
        scenario.pause(0.7, 1.1)
        if step % 4 == 1:
            scenario.kill_leader(lease)
        if step >= 3 and scenario.left <= 0:
            break
    scenario.verdict()
