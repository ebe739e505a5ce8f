"""Trouble that concerns everything: each failure is one line, the waits grow, and the end is one line too.

A beat that cannot use Redis says so by itself to the hooks: no incident can be written there.
"""

from __future__ import annotations

from celery.utils.log import get_logger

from ..clock import elapsed, wall_ms
from ..errors import text_of
from ..events import IncidentClosed, IncidentOpened
from ..instants import from_ms
from ..runs.incident import LEADERLESS, Case
from .dispatch.broker import BrokerDown
from .vitals import Vitals

logger = get_logger(f"celery.{__name__}")

#: Longest wait in seconds between tries to reach a server or a broker that is gone. Short, because each try is cheap
#: and what is due should go out within five seconds of a recovery, of which the first batch after it takes its share.
_LAST_RETRY = 3.0

#: Seconds after which it is said again that nobody leads, as far as this beat can see.
_AGAIN = 3600.0


class Outage:
    """The failures of one beat since it last worked; ``lease`` is in seconds."""

    def __init__(self, vitals: Vitals, lease: float) -> None:
        self._vitals = vitals
        self._patience = lease + LEADERLESS
        self._failures = 0
        self._since = 0.0
        self._cut_off: float | None = None  #: since when Redis cannot be used
        self._says_at = 0.0
        self._opened: IncidentOpened | None = None

    def goes_on(self, what: str, exc: BaseException) -> float:
        """Log one line about a failure, and tell how many seconds to wait: 1, 2, 3, 3 …"""
        if not self._failures:
            self._since = elapsed()
        # An outage may last for days: 2.0 ** 1024 is more than a float holds.
        seconds = min(2.0 ** min(self._failures, 10), _LAST_RETRY)
        self._failures += 1
        why = f"{what}: {text_of(exc)}"
        self._vitals.failing(why)
        if isinstance(exc, BrokerDown):
            self._reaches_redis()  # what is due was read before
        else:
            self._is_cut_off(why)
        logger.error("beat: %s; trying again in %g s", why, seconds)
        return seconds

    def is_over(self) -> None:
        """Say so, if there was one."""
        if self._failures:
            logger.warning("beat: working again after %.1f s", elapsed() - self._since)
        self._failures = 0
        self._vitals.recovered()
        self._reaches_redis()

    def _is_cut_off(self, why: str) -> None:
        """Tell the hooks in time that nobody leads, as far as this beat can see; in the reason is no password."""
        now = elapsed()
        if self._cut_off is None:
            self._cut_off, self._says_at = now, now + self._patience
        if now <= self._says_at:
            return
        self._says_at = now + _AGAIN
        if self._opened is None:
            case = Case("no_leader", "", wall_ms(), "")
            self._opened = IncidentOpened(case.id, case.kind, None, from_ms(case.since), "")
        self._opened = self._opened._replace(text=f"{why}, for {now - self._cut_off:.0f} s")
        self._vitals.tell(self._opened)

    def _reaches_redis(self) -> None:
        """It can be used again, by this beat or by another that leads."""
        opened, self._opened, self._cut_off = self._opened, None, None
        if opened is not None:
            self._vitals.tell(IncidentClosed(*opened, from_ms(wall_ms())))
