"""Everything at once: a fault drawn by lot every few seconds, for as many minutes as one likes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest
import redis
from celery import Celery

from redbeat_lite import Schedules, every
from tests.harness.scenario import Scenario
from tests.support.server import GuardedServer
from tests.faults.page import SOAK, keep, summary
from tests.support.beats import KEYS
from tests.support.proxy import Proxy
from tests.support.server import DURABLE

MINUTES = float(os.environ.get("SOAK_MINUTES", "2"))

Fault = Callable[[], None]


class Faults:
    """What can happen to beats and their server. Each comes back when everything is in order again, or soon will be."""

    def __init__(self, scenario: Scenario, server: GuardedServer, proxy: Proxy) -> None:
        self.scenario, self.server, self.proxy = scenario, server, proxy
        self.url = server.behind(proxy.port)

    def kill(self) -> None:
        self.scenario.beats.kill(self.scenario.beats.leader())
        self.scenario.beats.start(url=self.url)

    def stop(self) -> None:
        self.scenario.beats.stop(self.scenario.beats.leader())
        self.scenario.beats.start(url=self.url)

    def freeze(self) -> None:
        with self.scenario.beats.frozen(self.scenario.beats.leader()):
            self.scenario.pause(0.1, 3)

    def freeze_a_stand_by(self) -> None:
        leader = self.scenario.beats.leader()
        with self.scenario.beats.frozen(next(each for each in self.scenario.beats if each is not leader)):
            self.scenario.pause(0.1, 2)

    def restart_the_server(self) -> None:
        self.server.stop()
        self.scenario.pause(0.1, 2)
        self.server.start()

    def crash_the_server(self) -> None:
        self.server.stop(kill=True)
        self.scenario.pause(0.1, 2)
        self.server.start()

    def hang_the_server(self) -> None:
        self.server.freeze()
        self.scenario.pause(0.1, 4)
        self.server.thaw()

    def cut_connections(self) -> None:
        self.proxy.reset()

    def refuse_connections(self) -> None:
        self.proxy.refuse()
        self.scenario.pause(0.1, 3)
        self.proxy.heal()

    def swallow_everything(self) -> None:
        self.proxy.black_hole = True
        self.scenario.pause(0.1, 3)
        self.proxy.reset()
        self.proxy.heal()

    def swallow_replies(self) -> None:
        self.proxy.swallow_replies = True
        self.scenario.pause(0.1, 3)
        self.proxy.reset()
        self.proxy.heal()

    def slow_the_network(self) -> None:
        self.proxy.delay = self.scenario.chance.uniform(0.005, 0.05)
        self.scenario.pause(0.5, 2)
        self.proxy.heal()

    def steal_the_lease(self) -> None:
        self._delete(KEYS.leader)

    def lose_the_due_times(self) -> None:
        self._delete(KEYS.due)

    def forget_the_scripts(self) -> None:
        with self.server.client() as client:
            client.script_flush()

    def drop_every_client(self) -> None:
        with self.server.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def refuse_to_write(self) -> None:
        with self.server.client() as client:
            client.config_set("min-replicas-to-write", "1")
            self.scenario.pause(0.1, 2)
            client.config_set("min-replicas-to-write", "0")

    def _delete(self, key: str) -> None:
        with self.server.client() as client:
            client.delete(key)

    def all(self) -> dict[str, Fault]:
        names = [name for name in vars(type(self)) if not name.startswith("_") and name != "all"]
        return {name: getattr(self, name) for name in names}


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(60 * MINUTES + 300)
def test_random_faults_lose_and_double_nothing(
    own_server: Callable[..., GuardedServer], make_app: Callable[..., Celery], capsys: pytest.CaptureFixture[str]
) -> None:
    server = own_server(**DURABLE)
    app = make_app(broker_url=server.url)

    @app.task(name="proj.add", shared=False)
    def add() -> None:
        """Is only sent."""

    with Proxy(server.port) as proxy:
        scenario = Scenario(60 * MINUTES, server.client, server.behind(proxy.port), lease=2, trim=True)
        try:
            for _ in range(3):
                scenario.beats.start()
            scenario.begin()
            faults, counted = Faults(scenario, server, proxy).all(), Counter[str]()
            schedules = Schedules(app)
            while scenario.left > 0:
                scenario.pause(1, 4)
                _edit(scenario, schedules)
                name = scenario.chance.choice(sorted(faults))
                counted[name] += 1
                with scenario.outage():
                    faults[name]()
            verdict = scenario.verdict()
        finally:
            scenario.close(), verdict.missing
    stall = round(verdict.stall, 2)
    result = {"minutes": MINUTES, "seed": scenario.seed, "stall": stall, **verdict.as_dict()}
    keep(SOAK, result)
    with capsys.disabled():
        print(f"\n{summary(result)}")
        print(*(f"{count:5} × {name.replace('_', ' ')}" for name, count in counted.most_common()), sep="\n")


def _edit(scenario: Scenario, schedules: Schedules) -> None:
    """Somebody works on the schedule meanwhile."""
    name = f"x{scenario.chance.randrange(20)}"
    try:
        if name in schedules:
            scenario.chance.choice([schedules.remove, schedules.pause, schedules.resume, schedules.run_now])(name)
        else:
            schedules.add(name, "proj.add", every(scenario.chance.randrange(100, 3000) / 1000))
    except (redis.RedisError, LookupError):
        pass
