"""What a beat has to know of the broker."""

from __future__ import annotations

from typing import Any


def unconfirmed(connection: Any) -> bool:
    """Whether a broker that could confirm what it takes is not asked to: what it fails to take then counts as sent."""
    return connection.transport.driver_type == "amqp" and not connection.transport_options.get("confirm_publish")


class BrokerDown(Exception):
    """The broker cannot be reached, or takes no message at all."""
