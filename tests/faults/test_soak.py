"""Everything at once: a fault drawn by lot every few seconds, for as many minutes as one likes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest
import redis
from celery import Celery

from redbeat_lite import EntryExists, EntryNotFound, Schedules
from tests.faults.conftest import StartServer
from tests.faults.page import SOAK, keep, summary
from tests.faults.scenario import Scenario
from tests.faults.user import User
from tests.harness.history import HistoryLog
from tests.support.beats import KEYS
from tests.support.proxy import Proxy
from tests.support.server import DURABLE, GuardedServer

MINUTES = float(os.environ.get("SOAK_MINUTES", "2"))

Fault = Callable[[], None]


class Faults:
    """What can happen to beats and their server. Each comes back when everything is in order again, or soon will be."""

    def __init__(self, scenario: Scenario, server: GuardedServer, proxy: Proxy) -> None:
        self.scenario = scenario
        self.server = server
        self.proxy = proxy
        self.url = server.behind(proxy.port)

    def kill(self) -> None:
        self.scenario.beats.kill(self.scenario.beats.leader())
        self.scenario.beats.start(url=self.url)

    def stop(self) -> None:
        self.scenario.beats.stop(self.scenario.beats.leader())
        self.scenario.beats.start(url=self.url)

    def freeze(self) -> None:
        with self.scenario.beats.leader().frozen():
            self.scenario.pause(0.1, 3)

    def freeze_a_stand_by(self) -> None:
        with self.scenario.beats.followers()[0].frozen():
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
    own_server: StartServer,
    make_app: Callable[..., Celery],
    log: HistoryLog,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = own_server(**DURABLE)
    app = make_app(broker_url=server.url)

    @app.task(name="proj.add", shared=False)
    def add() -> None:
        """Is only sent."""

    with Proxy(server.port) as proxy:
        url = server.behind(proxy.port)
        scenario = Scenario(60 * MINUTES, log, server.client, url, lease=2, trim=True)
        user = User(Schedules(app), log, unsure=True)
        try:
            for _ in range(3):
                scenario.beats.start()
            scenario.begin()
            faults, counted = Faults(scenario, server, proxy).all(), Counter[str]()
            while scenario.left > 0:
                scenario.pause(1, 4)
                edit(scenario, user)
                name = scenario.chance.choice(sorted(faults))
                counted[name] += 1
                with scenario.outage(what=name):
                    faults[name]()
            verdict = scenario.verdict()
        finally:
            scenario.close()
    result = {"minutes": MINUTES, "seed": scenario.seed, **verdict.as_dict()}
    keep(SOAK, result)
    with capsys.disabled():
        print(f"\n{summary(result)}")
        print(*(f"{count:5} × {name.replace('_', ' ')}" for name, count in counted.most_common()), sep="\n")


def edit(scenario: Scenario, user: User) -> None:
    """Let a user change something, while servers are killed."""
    name = f"x{scenario.chance.randrange(20)}"
    milliseconds = scenario.chance.randrange(100, 3000)
    act = scenario.chance.choice(["remove", "pause", "resume", "run_now", "edit"])
    try:
        if name not in user.schedules:
            user.add(name, milliseconds)
        elif act == "edit":
            user.edit(name, milliseconds)
        elif act == "run_now":
            user.schedules.run_now(name)  # The audit judges only runs by rule.
        else:
            user.change(act, name)
    except (redis.RedisError, EntryExists, EntryNotFound):
        pass  # The history leaves open whether the call took effect.
