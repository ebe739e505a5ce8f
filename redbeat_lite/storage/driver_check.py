"""Whether kombu takes the redis-py that is installed. What needs both asks at its start: no later try would help."""

from __future__ import annotations

from typing import Any

import kombu
from celery import Celery
from kombu.exceptions import VersionMismatch

from ..errors import ConfigurationError


def check_driver(app: Celery) -> None:
    """Raise ConfigurationError if kombu refuses this redis-py. Opens no connection; brokers that are not Redis pass."""
    try:
        channel: Any = getattr(app.connection_for_write().transport, "Channel", None)
    except Exception:  # noqa: BLE001 - who opens the connection says what is wrong with its URL
        return
    # kombu looks at the version here, when it opens a channel; its other transports have no such method.
    look = getattr(channel, "_get_client", None)
    if look is None:
        return
    try:
        look(channel.__new__(channel))
    except VersionMismatch as exc:
        raise ConfigurationError(
            f"kombu {kombu.__version__} refuses the redis-py that is installed: {exc}. Install the one it wants "
            "(pip install 'celery[redis]'), or what takes this one (pip install 'celery<5.7' 'kombu<5.7')"
        ) from None
