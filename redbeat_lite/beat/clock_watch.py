"""Noticing that somebody has set the wall clock: it and the time that passed no longer agree."""

from __future__ import annotations

from ..clock import elapsed, wall_ms

#: Milliseconds by which the wall clock may differ from the time that passed before it counts as having been set.
SLACK = 1000


class ClockWatch:
    """What the wall clock said at the last look, and how much time has passed since."""

    def __init__(self) -> None:
        self._seen: tuple[int, float] | None = None

    @property
    def was_set(self) -> bool:
        """Whether the clock was set since the last look, forwards or back."""
        return abs(self._shift()) > SLACK

    def look(self) -> int:
        """Remember what time it is; returns the milliseconds by which the clock has gone back, or 0.

        A clock that was set back by less than has passed since the last look has been everywhere already.
        """
        now, back = wall_ms(), -self._shift()
        went_back = self._seen is not None and back > SLACK and now < self._seen[0]
        self._seen = (now, elapsed())
        return back if went_back else 0

    def _shift(self) -> int:
        if self._seen is None:
            return 0
        wall, passed = self._seen
        return wall_ms() - wall - round(1000 * (elapsed() - passed))
