"""A beat that cannot use Redis says so by itself: no incident can be written there."""

from __future__ import annotations

from ..clock import elapsed, wall_ms
from ..events import IncidentClosed, IncidentOpened
from ..instants import from_ms
from ..runs.incident import LEADERLESS, Case
from .vitals import Vitals

#: Seconds after which it is said again.
_AGAIN = 3600.0


class CutOff:
    """Tells the hooks that nobody leads, as far as this beat can see; ``lease`` is in seconds."""

    def __init__(self, vitals: Vitals, lease: float) -> None:
        self._vitals = vitals
        self._patience = lease + LEADERLESS
        self._since: float | None = None
        self._says_at = 0.0
        self._opened: IncidentOpened | None = None

    def goes_on(self, why: str) -> None:
        """Redis cannot be used, for this reason, in which is no password."""
        now = elapsed()
        if self._since is None:
            self._since, self._says_at = now, now + self._patience
        if now <= self._says_at:
            return
        self._says_at = now + _AGAIN
        if self._opened is None:
            case = Case("no_leader", "", wall_ms(), "")
            self._opened = IncidentOpened(case.id, case.kind, None, from_ms(case.since), "")
        self._opened = self._opened._replace(text=f"{why}, for {now - self._since:.0f} s")
        self._vitals.tell(self._opened)

    def is_over(self) -> None:
        """It can be used again, by this beat or by another that leads."""
        opened, self._opened, self._since = self._opened, None, None
        if opened is not None:
            self._vitals.tell(IncidentClosed(*opened, from_ms(wall_ms())))
