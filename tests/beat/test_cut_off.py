"""A beat that cannot reach Redis, or not write to it, says by itself that nobody leads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from redbeat_lite import Scheduler
from redbeat_lite.beat import outage as module
from redbeat_lite.beat.dispatch.publisher import BrokerDown
from redbeat_lite.events import IncidentOpened, subscribe
from tests.beat.incidents import Listener
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.server import Server
from tests.support.waiting import eventually

PASSWORD = "secret-of-the-server"

LEASE = 4

#: Seconds after which it is said.
BOUND = LEASE + 10


class Elapsed:
    """A clock of its own for what is said."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Trouble:
    """A beat, its server, and somebody who listens."""

    def __init__(self, server: Server, app: MakeApp, make_beat: MakeBeat, clock: Elapsed) -> None:
        self.server, self.clock, self.listener = server, clock, Listener()
        url = f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0"
        options = {"socket_timeout": 0.3, "socket_connect_timeout": 0.3}
        made = app(broker_url=url, redbeat_lite_lease=LEASE, redbeat_lite_redis_options=options)
        subscribe(made, self.listener)
        self.beat: Scheduler = make_beat(made)
        self.beat._parts.wakeup.wait = lambda *args, **kwargs: None  # type: ignore[method-assign]  # turn after turn

    def turn(self, seconds: float = 0) -> None:
        """Let time pass, the beat take a turn, and whoever listens hear what it tells."""
        self.clock.now += seconds
        self.beat.tick()
        announcer = self.beat._parts.state.announcer
        delivery = announcer.delivery()
        eventually(lambda: delivery.is_complete, what="what was told is heard")

    def other_leads(self) -> None:
        with self.server.client() as client:
            client.hset(self.beat.store.keys.leader, mapping={"token": "other", "term": 1})
            client.pexpire(self.beat.store.keys.leader, 60_000)

    def leads(self) -> None:
        eventually(lambda: self.turn() or self.beat.leader.has_term, what="a leader")


@pytest.fixture
def elapsed(monkeypatch: pytest.MonkeyPatch) -> Elapsed:
    clock = Elapsed()
    monkeypatch.setattr(module, "elapsed", clock)
    return clock


@pytest.fixture
def trouble(own_server: Callable[..., Server], make_app: MakeApp, make_beat: MakeBeat, elapsed: Elapsed) -> Trouble:
    return Trouble(own_server(requirepass=PASSWORD), make_app, make_beat, elapsed)


def set_writable(server: Server, writable: bool) -> None:
    with server.client() as client:
        client.config_set("min-replicas-to-write", 0 if writable else 1)


TROUBLES: dict[str, tuple[Callable[[Server], object], Callable[[Server], object], str]] = {
    "stopped": (lambda server: server.stop(kill=True), Server.start, "refused"),
    "frozen": (Server.freeze, Server.thaw, "Timeout"),
    "read-only": (lambda server: set_writable(server, False), lambda server: set_writable(server, True), "NOREPLICAS"),
}


@pytest.mark.parametrize("kind", TROUBLES)
def test_it_is_said_each_hour_by_one_id_until_the_beat_leads_again(trouble: Trouble, kind: str) -> None:
    begin, end, why = TROUBLES[kind]
    trouble.leads()
    trouble.beat.leader.resign()
    begin(trouble.server)
    trouble.turn()
    trouble.turn(BOUND)
    assert not trouble.listener.heard
    trouble.turn(0.1)
    trouble.turn(3599)
    trouble.listener.hears("no_leader")
    trouble.turn(2)
    trouble.listener.hears("no_leader", "no_leader")
    end(trouble.server)
    trouble.leads()
    trouble.turn(3600)
    trouble.listener.hears("no_leader", "no_leader", "-no_leader")
    opened, again, closed = trouble.listener.heard
    assert opened.id == again.id == closed.id
    assert opened.since == again.since == closed.since
    assert opened.text.startswith(f"cannot use redis://127.0.0.1:{trouble.server.port}/0: ")
    assert why in opened.text
    assert opened.text.endswith(", for 14 s")
    assert PASSWORD not in str(trouble.listener.heard)


def test_it_is_over_when_another_beat_is_found_to_lead(trouble: Trouble) -> None:
    trouble.server.stop()
    trouble.turn()
    trouble.turn(BOUND + 1)
    trouble.listener.hears("no_leader")
    trouble.server.start()
    trouble.other_leads()
    trouble.turn()
    trouble.listener.hears("no_leader", "-no_leader")


def test_a_stand_by_that_reaches_the_server_never_says_it(trouble: Trouble) -> None:
    trouble.other_leads()
    trouble.turn()
    trouble.server.freeze()
    trouble.turn()
    trouble.turn(BOUND - 1)
    trouble.server.thaw()
    eventually(lambda: trouble.turn() or not trouble.beat._parts.outage._failures, what="an answer")
    trouble.server.freeze()
    trouble.turn(2)
    trouble.server.thaw()
    trouble.turn(7200)
    assert not trouble.listener.heard


def test_a_broker_that_is_away_is_no_trouble_of_the_schedule(trouble: Trouble, elapsed: Elapsed) -> None:
    outage, listener = trouble.beat._parts.outage, trouble.listener
    for _ in range(3):
        outage.handle(BrokerDown("gone"))
        elapsed.now += BOUND
    for _ in range(3):
        outage.handle(RedisConnectionError("gone"))
        elapsed.now += BOUND
    outage.handle(BrokerDown("gone"))
    listener.hears("no_leader", "-no_leader")
    assert isinstance(listener.heard[0], IncidentOpened)
    assert listener.heard[0].text == f"cannot use redis://127.0.0.1:{trouble.server.port}/0: gone, for 28 s"
