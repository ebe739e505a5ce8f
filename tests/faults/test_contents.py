"""A server that forgets, or holds rubbish: what is sound goes on.

Those run in the soak. In `make test`, `tests/acceptance/test_flush.py` and `test_garbage.py` lose or spoil
each key of a beat that works less.
"""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery

from redbeat_lite import Entry, Schedules, every
from tests.acceptance.test_garbage import DEFINITIONS
from tests.faults.conftest import MakeScenario, Publish, StartServer, only_long
from tests.faults.scenario import Scenario, load
from tests.support.beats import KEYS
from tests.support.server import Server
from tests.support.waiting import eventually

#: In place of a key: whatever the server holds.
ALL = "*"


@only_long
def test_flushall(
    own_server: StartServer,
    scenario_on: MakeScenario,
    publish: Publish,
    lease: float,
) -> None:
    server = own_server()
    scenario = scenario_on(server)
    scenario.begin()
    while scenario.left > 0:
        scenario.pause(0.5, 1.5)
        scenario.note_fault(lease + 1.5, new_phase=True)
        forget(server, ALL)
        scenario.await_message()
        scenario.pause(1, 2)
    verdict = scenario.verdict(period=None, silent=longest_silence(lease))
    publish("flushed", verdict)


@only_long
def test_eviction_of_a_key_that_follows_from_others(
    own_server: StartServer, scenario_on: MakeScenario, publish: Publish, lease: float
) -> None:
    scenario = evict(scenario_on, own_server(), lease, KEYS.due, KEYS.meta, KEYS.leader)
    verdict = scenario.verdict(silent=longest_silence(lease))
    publish("evicted", verdict)


@only_long
def test_eviction_of_what_entries_are(
    own_server: StartServer,
    scenario_on: MakeScenario,
    publish: Publish,
    lease: float,
) -> None:
    scenario = evict(scenario_on, own_server(), lease, KEYS.state, KEYS.entries, new_phase=True)
    verdict = scenario.verdict(period=None, silent=longest_silence(lease))
    publish("evicted definitions", verdict)


def longest_silence(lease: float) -> float:
    """Return in seconds: an interval, the time until the next renewal, and another interval."""
    return 1 + lease / 4 + 1.5


def evict(
    scenario_on: MakeScenario,
    server: Server,
    lease: float,
    *victims: str,
    new_phase: bool = False,
) -> Scenario:
    """Make a scenario in which each of these keys is evicted once.

    Parameters:
        new_phase: whether the entries then begin again, with another phase.
    """
    scenario = scenario_on(server)
    scenario.begin()
    for victim in victims:
        scenario.pause(0.5, 1.5)
        scenario.note_fault(lease + 2, new_phase=new_phase)
        forget(server, victim)
        scenario.await_message()
    return scenario


def forget(server: Server, victim: str) -> None:
    """Remove a key that is there, or all of them."""
    with server.client() as client, client.pipeline() as pipe:
        if victim == ALL:
            assert pipe.flushall().dbsize().execute() == [True, 0]
        else:
            assert client.delete(victim)


@only_long
def test_two_hundred_poisoned_entries_among_a_thousand(
    own_server: StartServer,
    scenario_on: MakeScenario,
    publish: Publish,
    make_app: Callable[..., Celery],
) -> None:
    server = own_server()
    scenario = scenario_on(server)
    scenario.beats.start()
    scenario.begin()
    schedules = Schedules(make_app(broker_url=server.url))
    added = [f"more{n:03}" for n in range(500)]
    names, sound = added[:200], added[200:]
    with scenario.begins(sound):
        schedules.add_many(Entry(name, "proj.add", every(1), misfire="all", expires=3600) for name in added)
    scenario.pause(0.5, 1)
    scenario.note_fault(1)
    with server.client() as client:
        client.hset(KEYS.entries, mapping={name: DEFINITIONS[n % len(DEFINITIONS)] for n, name in enumerate(names)})
    eventually(lambda: set(schedules.quarantined()) == set(names), what="the quarantine")
    verdict = scenario.verdict(entries=[*load(), *sound])
    publish("poisoned", verdict)
