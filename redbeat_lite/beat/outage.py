"""Trouble that concerns everything: each failure is one line, the waits grow, and the end is one line too."""

from __future__ import annotations

from celery.utils.log import get_logger

from ..clock import elapsed
from ..errors import text_of
from .cut_off import CutOff
from .dispatch.broker import BrokerDown
from .vitals import Vitals

logger = get_logger(__name__)

#: Longest wait in seconds between tries to reach a server or a broker that is gone. Short, because each try is cheap
#: and what is due should go out within five seconds of a recovery, of which the first batch after it takes its share.
_LAST_RETRY = 3.0


class Outage:
    """The failures of one beat since it last worked; ``lease`` is in seconds."""

    def __init__(self, vitals: Vitals, lease: float) -> None:
        self._vitals = vitals
        self._cut_off = CutOff(vitals, lease)
        self._failures = 0
        self._since = 0.0

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
            self._cut_off.is_over()  # what is due was read before
        else:
            self._cut_off.goes_on(why)
        logger.error("beat: %s; trying again in %g s", why, seconds)
        return seconds

    def is_over(self) -> None:
        """Say so, if there was one."""
        if self._failures:
            logger.warning("beat: working again after %.1f s", elapsed() - self._since)
        self._failures = 0
        self._vitals.recovered()
        self._cut_off.is_over()
