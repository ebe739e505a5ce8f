"""Everything at once: a fault drawn by lot every few seconds, for as many minutes as one likes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest
import redis
from celery import Celery

from redbeat_lite import Schedules, every
from tests.faults.driver import Stage
from tests.faults.guarded import Guarded
from tests.faults.page import SOAK, keep, summary
from tests.support.beats import KEYS
from tests.support.proxy import Proxy
from tests.support.server import DURABLE

MINUTES = float(os.environ.get("SOAK_MINUTES", "2"))

Fault = Callable[[], None]


class Faults:
    """What can happen to beats and their server. Each comes back when everything is in order again, or soon will be."""

    def __init__(self, stage: Stage, server: Guarded, proxy: Proxy) -> None:
        self.stage, self.server, self.proxy = stage, server, proxy
        self.url = server.behind(proxy.port)

    def kill(self) -> None:
        self.stage.kill(self.stage.leader())
        self.stage.beat(url=self.url)

    def stop(self) -> None:
        self.stage.stop(self.stage.leader())
        self.stage.beat(url=self.url)

    def freeze(self) -> None:
        with self.stage.frozen(self.stage.leader()):
            self.stage.pause(0.1, 3)

    def freeze_a_stand_by(self) -> None:
        leader = self.stage.leader()
        with self.stage.frozen(next(each for each in self.stage.beats if each is not leader)):
            self.stage.pause(0.1, 2)

    def restart_the_server(self) -> None:
        self.server.stop()
        self.stage.pause(0.1, 2)
        self.server.start()

    def crash_the_server(self) -> None:
        self.server.stop(kill=True)
        self.stage.pause(0.1, 2)
        self.server.start()

    def hang_the_server(self) -> None:
        self.server.freeze()
        self.stage.pause(0.1, 4)
        self.server.thaw()

    def cut_connections(self) -> None:
        self.proxy.reset()

    def refuse_connections(self) -> None:
        self.proxy.refuse()
        self.stage.pause(0.1, 3)
        self.proxy.heal()

    def swallow_everything(self) -> None:
        self.proxy.black_hole = True
        self.stage.pause(0.1, 3)
        self.proxy.reset()
        self.proxy.heal()

    def swallow_replies(self) -> None:
        self.proxy.swallow_replies = True
        self.stage.pause(0.1, 3)
        self.proxy.reset()
        self.proxy.heal()

    def slow_the_network(self) -> None:
        self.proxy.delay = self.stage.chance.uniform(0.005, 0.05)
        self.stage.pause(0.5, 2)
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
            self.stage.pause(0.1, 2)
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
    own_server: Callable[..., Guarded], make_app: Callable[..., Celery], capsys: pytest.CaptureFixture[str]
) -> None:
    server = own_server(**DURABLE)
    app = make_app(broker_url=server.url)

    @app.task(name="proj.add", shared=False)
    def add() -> None:
        """Is only sent."""

    with Proxy(server.port) as proxy:
        stage = Stage(60 * MINUTES, server.client, server.behind(proxy.port), lease=2, trim=True)
        try:
            for _ in range(3):
                stage.beat()
            stage.begin()
            faults, counted = Faults(stage, server, proxy).all(), Counter[str]()
            schedules = Schedules(app)
            while stage.left > 0:
                stage.pause(1, 4)
                _edit(stage, schedules)
                name = stage.chance.choice(sorted(faults))
                counted[name] += 1
                with stage.outage():
                    faults[name]()
            verdict = stage.verdict()
        finally:
            stage.close()
    assert (verdict.lost, verdict.doubled) == (0, 0), verdict.missing
    stall = round(verdict.stall, 2)
    result = {"minutes": MINUTES, "seed": stage.seed, "stall": stall, **verdict.as_dict()}
    keep(SOAK, result)
    with capsys.disabled():
        print(f"\n{summary(result)}")
        print(*(f"{count:5} × {name.replace('_', ' ')}" for name, count in counted.most_common()), sep="\n")


def _edit(stage: Stage, schedules: Schedules) -> None:
    """Somebody works on the schedule meanwhile."""
    name = f"x{stage.chance.randrange(20)}"
    try:
        if name in schedules:
            stage.chance.choice([schedules.remove, schedules.pause, schedules.resume, schedules.run_now])(name)
        else:
            schedules.add(name, "proj.add", every(stage.chance.randrange(100, 3000) / 1000))
    except (redis.RedisError, LookupError):
        pass
