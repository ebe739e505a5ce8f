"""How the time of a seed passes: in one piece, or over days of which only the moments around due runs are simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.faults import SLEEP
from tests.simulation.world import MICROS

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

#: Seconds that are simulated after something was due.
_AFTER = 4.0

#: Spans in seconds that are too short to be passed over.
_SHORT = 5.0

#: How likely the system sleeps too long: far from the clock change; and near it, if the seed has drawn this fault.
_OVERSLEEPS_FAR = 0.5
_OVERSLEEPS_NEAR = 0.25

#: Seconds for which the system may sleep too long.
_NAPS = (600.0, 7200.0, 30 * 3600.0, 6 * 86_400.0)

#: Hours from the clock change within which it is near.
_NEAR = 4.0


class Timeline:
    """Lets time pass.

    A system in which nothing is due for hours does nothing but renew a lease. A seed that lasts for days
    passes over these hours, as if the machines had been suspended. They wake up early enough to recover
    before the next run is due. Now and then they oversleep, so that runs are missed. Far from the clock
    change this happens in all seeds, because it brings them there.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._world = scenario.world
        self._random = scenario.world.random_for("timeline")
        self._lead_in = scenario.setup.recovery_ms / 1000 + 1.0
        self._sleeps = 0

    def live(self, seconds: float) -> None:
        """Let so many seconds pass in which something runs."""
        if not self._scenario.setup.is_long:
            self._world.run_until(self._world.now_us + int(seconds * MICROS))
            return
        while seconds > 0:
            seconds -= self._sleep_and_live(seconds)

    def _sleep_and_live(self, most: float) -> float:
        """Pass over a span in which nothing is due, then run for a while; return for how many seconds."""
        next_us = self._scenario.next_due_us()
        wakes_us = next_us - int(self._lead_in * MICROS)
        self._sleeps += 1
        name = f"{SLEEP} {self._sleeps}"
        nap = self._random.choice(_NAPS) * self._random.random()
        oversleeps = self._random.random() < self._oversleeping(next_us)
        if oversleeps and self._scenario.story.happens(name):
            self._oversleep(name, self._end_of_nap(next_us, nap))
        elif wakes_us > self._world.now_us + _SHORT * MICROS:
            self._scenario.story.tell("nothing is due for long")
            self._world.sleep_until(wakes_us)
            self._scenario.disturb()
        ends_us = max(next_us, self._world.now_us) + int(_AFTER * MICROS)
        seconds = min((ends_us - self._world.now_us) / MICROS, most)
        self._world.run_until(self._world.now_us + int(seconds * MICROS))
        return seconds

    def _oversleeping(self, next_us: int) -> float:
        """How likely the system sleeps on at this instant, when something is due."""
        if abs(next_us - self._scenario.setup.change_us) > _NEAR * 3600 * MICROS:
            return _OVERSLEEPS_FAR
        return _OVERSLEEPS_NEAR if SLEEP in self._scenario.setup.faults else 0.0

    def _end_of_nap(self, next_us: int, seconds: float) -> int:
        """When a nap ends: not beyond the clock change if it begins long before that."""
        ends_us = next_us + int(seconds * MICROS)
        near_us = self._scenario.setup.change_us - int(_NEAR / 2 * 3600 * MICROS)
        return min(ends_us, near_us) if next_us < near_us else ends_us

    def _oversleep(self, name: str, until_us: int) -> None:
        """Pass over runs that are due."""
        story = self._scenario.story
        began = story.now
        story.counts[f"fault: {SLEEP}"] += 1
        story.tell(f"FAULT {name}: nothing runs for {(until_us - self._world.now_us) / MICROS:.0f} s")
        self._world.sleep_until(until_us)
        self._scenario.disturb()
        ended = story.now + self._scenario.setup.recovery_ms
        story.record(kind="fault", began=began, ended=ended)
