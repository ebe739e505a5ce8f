"""Faults of workers, their beats and their server, drawn by lot."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.faults.driver import BACK, Stage
from tests.support.processes import Process
from tests.support.server import Server

#: Seconds that the lock of a dead worker lasts: longer than a busy machine holds up one that lives.
LEASE = 3

#: A message that a worker had taken comes again after three seconds; by default, after an hour.
TRANSPORT = {
    "visibility_timeout": 3,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 2,
}


class Faults:
    """What can happen to the workers and to what they depend on. Each is over soon, and what ended is there anew."""

    #: When the server was away, or workers were about to find it again: on the monotonic clock.
    away: list[tuple[float, float]]

    #: Workers that may have had a message in their hands when they or the server were killed.
    takers: int

    def __init__(self, stage: Stage, server: Server, lease: float, start: Callable[[], Process]) -> None:
        self._stage, self._server, self._lease, self._start = stage, server, lease, start
        self.away = []
        self.takers = 0

    def kill_the_leader(self) -> None:
        self._stage.struck(self._lease + 1.5)
        self._stage.kill(self._stage.leader())
        self._stage.beat()
        self._stage.flows()

    def kill_a_worker(self) -> None:
        self.takers += 1
        self._stage.kill(self._stage.any_worker())
        self._start()

    def lose_the_machine_of_a_worker(self) -> None:
        self.takers += 1
        self._stage.kill(self._stage.any_worker(), whole=True)
        self._start()

    def kill_a_child(self) -> None:
        self._stage.kill_child()

    def stop_a_worker(self) -> None:
        self._stage.stop(self._stage.any_worker())
        self._start()

    def freeze_a_worker(self) -> None:
        with self._stage.frozen(self._stage.any_worker()):
            self._stage.pause(0.2, LEASE / 2)

    def crash_the_server(self) -> None:
        start = time.monotonic()
        self.takers += len(self._stage.workers)
        with self._stage.loss_of_their_broker(), self._stage.outage():
            self._server.stop(kill=True)
            self._stage.pause(0.2, 1)
            self._server.start()
        self.away.append((start, time.monotonic() + BACK))


def strike(stage: Stage, faults: Faults, kinds: Sequence[str] = ()) -> int:
    """Let each of them happen once, and go on as long as there is time, in an order drawn by lot.

    Parameters:
        kinds: names of faults; all by default.

    Returns:
        how many there were.
    """
    drawn = list(kinds or (name for name in dir(faults) if callable(getattr(faults, name)) and name[0] != "_"))
    struck = 0
    while struck < len(drawn) or stage.left > 0:
        if struck % len(drawn) == 0:
            stage.chance.shuffle(drawn)
        print(f"{time.monotonic():.2f} {drawn[struck % len(drawn)]}")
        getattr(faults, drawn[struck % len(drawn)])()
        struck += 1
        stage.pause(0.2, 1)
        stage.revive()
    return struck
