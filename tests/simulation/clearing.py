"""A process that clears once-locks of entries, in whatever state their tasks are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redbeat_lite import locks
from tests.simulation.apps import make_app
from tests.simulation.jobs import FAULTS

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

#: Name of the process.
CLEARER = "clearer"

#: Seconds between two calls, on average.
_PAUSE = 5.0


class Clearer:
    """Clears one lock after the other, each drawn at random."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._world = scenario.world
        self._story = scenario.story
        self._app = make_app(scenario.world, scenario.setup)
        scenario.bodies.register(self._app)
        self.is_done = False

    def run(self) -> None:
        """Clear locks until ``is_done`` is set."""
        calls = 0
        while not self.is_done:
            calls += 1
            name = f"clearing {calls}"
            random = self._world.random_for(name)
            self._world.wait(random.expovariate(1 / _PAUSE))
            keys = self._scenario.keys_of_locks
            if keys and not self.is_done and self._story.happens(name):
                self._clear(random.choice(keys))

    def _clear(self, key: str) -> None:
        try:
            was_held = locks(self._app).clear(key)
        except FAULTS as exc:
            self._story.tell(f"clearing {key} is unanswered: {type(exc).__name__}")
        else:
            self._story.counts["clearings"] += 1
            self._story.counts["locks cleared"] += was_held
            self._story.tell(f"clears {key}")
