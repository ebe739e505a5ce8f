"""A URL that the leader asks for every minute, so that somebody outside notices when it does not."""

from __future__ import annotations

from collections.abc import Callable
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from celery.utils.log import get_logger

from ..clock import elapsed
from ..threads import Ticker
from .leader import Leader

logger = get_logger(f"celery.{__name__}")

#: Seconds between two requests, for which one may take, and between two lines in the log that they fail.
PERIOD, TIMEOUT, _SILENCE = 60.0, 10.0, 3600.0

#: Seconds between two looks whether it is time.
_LOOK = 1.0


class HeartbeatUrl:
    """Asks in a thread of its own. The path of the URL may be a secret, so that only its host is shown."""

    def __init__(self, url: str, leader: Leader, now: Callable[[], float] = elapsed) -> None:
        self._url = url
        self._leader = leader
        self._now = now
        self._asked = self._said = float("-inf")
        self.ticker = Ticker("redbeat-lite-heartbeat-url", lambda: _LOOK, self.ask)

    def ask(self) -> None:
        """Ask, if this process leads and has not done so within a minute."""
        if not self._leader.leading or self._now() - self._asked < PERIOD:
            return
        self._asked = self._now()
        try:
            with urlopen(self._url, timeout=TIMEOUT) as reply:
                reply.read(1)
        except (OSError, HTTPException, ValueError) as exc:
            if self._now() - self._said >= _SILENCE:
                self._said = self._now()
                host = urlsplit(self._url).hostname
                logger.warning("beat: the heartbeat URL of %s cannot be asked for: %s", host, _reason(exc))


def _reason(exc: Exception) -> str:
    """Return why a request failed, without the server's words, which may repeat a secret path."""
    if isinstance(exc, HTTPError):
        return f"status {exc.code}"
    return type(getattr(exc, "reason", exc)).__name__
