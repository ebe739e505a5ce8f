"""Processes that hold once-locks for pieces of code, by the public ``lock``."""

from __future__ import annotations

from typing import Any

from redbeat_lite import LockUnavailable, lock
from tests.simulation.apps import Setup, make_app
from tests.simulation.story import Story
from tests.simulation.world import Process, World

KEYS = ("account", "ledger")

#: Seconds between two looks of a body at whether it has lost its lock.
_LOOK = 0.5


class Holder:
    """Takes one lock after the other, and notes each body in the history."""

    def __init__(self, world: World, setup: Setup, story: Story, process: Process) -> None:
        self._world = world
        self._random = process.random
        self._story = story
        self._process = process
        self._app = make_app(world, setup)
        process.at_death.append(self._die)
        self._body: dict[str, Any] | None = None

    def run(self) -> None:
        """Hold locks for ever."""
        while True:
            self._world.wait(self._random.expovariate(1 / 6.0))
            key = self._random.choice(KEYS)
            try:
                self._work(key)
            except LockUnavailable:
                self._story.tell(f"no server for the lock {key}")

    def _work(self, key: str) -> None:
        lease = self._random.choice((1.0, 3.0, 10.0))
        timeout = self._random.choice((0.0, 2.0))
        self._story.counts["locks asked for"] += 1
        with lock(self._app, key, lease=lease, timeout=timeout) as held:
            if not held or held.lost:
                return
            self._begin(key, held.fence)
            ends = self._story.now + self._random.uniform(0.2, 8.0) * 1000
            while self._story.now < ends and not held.lost:
                self._world.wait(_LOOK)
            self._end(lost=held.lost)

    def _begin(self, key: str, fence: int | None) -> None:
        self._story.tell(f"takes the lock {key}, fence {fence}")
        self._story.counts["locks taken"] += 1
        now = self._story.now
        self._body = {"kind": "body", "id": f"{fence}", "key": key, "began": now, "ended": now, "done": False}
        self._story.records.append(self._body)
        self._story.fences.append((key, fence))

    def _end(self, *, lost: bool) -> None:
        assert self._body is not None
        self._body |= {"ended": self._story.now, "done": not lost}
        self._body = None
        self._story.tell("has lost the lock" if lost else "gives the lock back")

    def _die(self) -> None:
        if self._body is not None:
            self._body["ended"] = self._story.now
