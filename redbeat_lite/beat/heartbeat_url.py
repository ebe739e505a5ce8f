"""Heartbeat URL of a monitoring service, which raises an alarm if requests stop.

The leader requests the URL every minute.
"""

from __future__ import annotations

from functools import partial
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from .._base.threads import Ticker
from .leader import Leader

#: Seconds between two requests.
PERIOD = 60.0

#: Timeout of a request in seconds.
TIMEOUT = 10.0


def heartbeat_ticker(url: str, leader: Leader) -> Ticker:
    """Return a thread that requests the URL, and logs the first of several failures in a row.

    The log names only the host, because the path may be a secret.
    """
    failure = f"beat: the heartbeat URL of {urlsplit(url).hostname} cannot be requested"
    return Ticker(
        "redbeat-lite-heartbeat-url",
        lambda: PERIOD,
        partial(request_heartbeat, url, leader),
        failure,
    )


def request_heartbeat(url: str, leader: Leader) -> None:
    """Request the URL, if this process leads.

    Raises:
        OSError: the request has failed. The error does not contain the URL, which may be a secret.
    """
    if not leader.holds_lease:
        return
    try:
        with urlopen(url, timeout=TIMEOUT) as reply:
            # urlopen() has checked the status. Do not read the whole body, which may be long.
            reply.read(1)
    except (OSError, HTTPException, ValueError) as exc:
        raise OSError(_reason(exc)) from None


def _reason(exc: Exception) -> str:
    """Return why a request failed.

    The result has no text of the server, because such a text may repeat a secret path.
    """
    if isinstance(exc, HTTPError):
        return f"status {exc.code}"
    # A URLError is only a wrapper, and its ``reason`` is the error itself.
    return type(getattr(exc, "reason", exc)).__name__
