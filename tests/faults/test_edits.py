"""A user changes entries while leaders are killed. Each change whose call has returned holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from celery import Celery

from redbeat_lite import Schedules
from tests.faults.conftest import MakeScenario, StartServer
from tests.faults.user import User
from tests.harness.history import HistoryLog

#: Milliseconds between two runs of an entry before an edit.
BEFORE = 300

#: The same after an edit.
AFTER = 700

NAMES = ("edited", "paused", "frozen", "removed")


def changes(user: User) -> Iterator[None]:
    """Change entries, again and again. Each step ends after two changes."""
    while True:
        for milliseconds in (AFTER, BEFORE):
            user.edit("edited", milliseconds)
            user.change("pause", "paused")
            yield
            user.freeze("frozen")
            user.change("remove", "removed")
            yield
            user.change("resume", "paused")
            user.edit("edited", milliseconds + 100)
            yield
            user.thaw("frozen")
            user.add("removed", BEFORE)
            yield


def test_changes_hold_while_leaders_are_killed(
    own_server: StartServer,
    scenario_on: MakeScenario,
    make_app: Callable[..., Celery],
    log: HistoryLog,
    lease: float,
) -> None:
    server = own_server()
    scenario = scenario_on(server)
    scenario.begin()
    user = User(Schedules(make_app(broker_url=server.url)), log, misfire="all")
    for name in NAMES:
        user.add(name, BEFORE)
    scenario.pause(0.7)
    for step, _ in enumerate(changes(user)):
        scenario.pause(0.7, 1.1)
        if step % 4 == 1:
            scenario.kill_leader(lease)
        if step >= 3 and scenario.left <= 0:
            break
    scenario.verdict()
