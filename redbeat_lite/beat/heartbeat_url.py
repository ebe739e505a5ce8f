"""Heartbeat URL, which the leader requests every minute. If it stops, a service gives alarm."""

from __future__ import annotations

from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from celery.utils.log import get_logger

from .._base.clock import elapsed
from .._base.threads import Ticker
from .leader import Leader

logger = get_logger(f"celery.{__name__}")

#: Seconds between two requests.
PERIOD = 60.0

#: Timeout of a request in seconds.
TIMEOUT = 10.0

#: Seconds between two warnings about failed requests.
_SILENCE = 3600.0

#: Seconds between two checks whether a request is due.
_LOOK = 1.0


class HeartbeatUrl:
    """Thread that requests the URL. It logs only the host, because the path may be a secret."""

    def __init__(self, url: str, leader: Leader) -> None:
        self._url = url
        self._leader = leader
        #: When the URL was last requested, and the last warning logged, in seconds of
        #: :func:`elapsed`.
        self._requested_at = float("-inf")
        self._warned_at = float("-inf")
        self.ticker = Ticker("redbeat-lite-heartbeat-url", lambda: _LOOK, self.ask)

    def ask(self) -> None:
        """Request the URL, if this process leads and the last request was a minute ago."""
        if not self._leader.leading or elapsed() - self._requested_at < PERIOD:
            return
        self._requested_at = elapsed()
        try:
            with urlopen(self._url, timeout=TIMEOUT) as reply:
                reply.read(1)
        except (OSError, HTTPException, ValueError) as exc:
            self._warn(exc)

    def _warn(self, exc: Exception) -> None:
        """Log a failed request, at most once an hour."""
        if elapsed() - self._warned_at < _SILENCE:
            return
        self._warned_at = elapsed()
        host = urlsplit(self._url).hostname
        logger.warning("beat: the heartbeat URL of %s cannot be requested: %s", host, _reason(exc))


def _reason(exc: Exception) -> str:
    """Return why a request failed, without texts of the server, which may repeat a secret path."""
    if isinstance(exc, HTTPError):
        return f"status {exc.code}"
    return type(getattr(exc, "reason", exc)).__name__
