"""The connection to the broker, before it is open."""

from __future__ import annotations

from typing import Any

from celery import Celery

from ...errors import ConfigurationError

#: Transport options that bound a publish, by the driver's type; kombu has no common name for them.
_TIMEOUTS = {
    "redis": ("socket_timeout", "socket_connect_timeout"),
    "amqp": ("read_timeout", "write_timeout", "connect_timeout"),
}


def publish_timeouts(connection: Any, timeout: float) -> dict[str, float]:
    """The transport options that cut a publish after so many seconds; the connection need not be open."""
    # Shorter is the user's to say; longer is meant for workers, who may well wait, and would hang whoever publishes.
    own = connection.transport_options
    return {
        option: min(own.get(option) or timeout, timeout)
        for option in _TIMEOUTS.get(connection.transport.driver_type, ())
    }


def unconfirmed(connection: Any) -> bool:
    """Whether a broker that could confirm what it takes is not asked to: what it fails to take then counts as sent."""
    return connection.transport.driver_type == "amqp" and not connection.transport_options.get("confirm_publish")


class BrokerDown(Exception):
    """The broker cannot be reached, or takes no message at all."""


def broker_connection(app: Celery) -> Any:
    """The connection that messages go out through, not yet opened; raises ConfigurationError for an unreadable URL."""
    try:
        return app.connection_for_write()
    except ValueError:
        # What kombu says quotes the URL, and it is the password that makes URLs unreadable.
        raise ConfigurationError(
            "broker_url: expected the URL of a broker, with special characters of the password in percent form; it "
            "cannot be read"
        ) from None
