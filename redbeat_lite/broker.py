"""The connection to the broker, before it is open, and how whoever cannot wait for the broker publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any

from celery import Celery

from .errors import ConfigurationError

#: Transport options that bound a publish, by the driver's type; kombu has no common name for them.
_TIMEOUTS = {
    "redis": ("socket_timeout", "socket_connect_timeout"),
    "amqp": ("read_timeout", "write_timeout", "connect_timeout"),
}

#: Have a connection tried once more, and at once.
TWICE = {"max_retries": 1, "interval_start": 0, "interval_step": 0}

#: Opens the connection of who publishes here, where that is not one of the app's own.
_OWN: ContextVar[Callable[[], Any]] = ContextVar("own", default=lambda: None)


def publish_timeouts(connection: Any, timeout: float) -> dict[str, float]:
    """The transport options that cut a publish after so many seconds; the connection need not be open."""
    # Shorter is the user's to say; longer is meant for workers, who may well wait, and would hang whoever publishes.
    own = connection.transport_options
    return {
        option: min(own.get(option) or timeout, timeout)
        for option in _TIMEOUTS.get(connection.transport.driver_type, ())
    }


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


def default_queue(app: Celery) -> str:
    """Return the default queue and its broker as text, without user and password.

    The text is empty if the URL cannot be read, which the publisher reports.
    """
    try:
        connection = broker_connection(app)
        options = connection.transport_options
        place = f"{connection.hostname}:{connection.port}"
        database = str(connection.virtual_host or "").strip("/") or "0"
    except (ConfigurationError, KeyError):  # kombu raises KeyError for an unknown transport
        return ""
    queue = options.get("global_keyprefix", "") + app.conf.task_default_queue
    return f"{queue} on {place}/{database}"


@contextmanager
def given_up_soon(app: Celery, timeout: float) -> Iterator[None]:
    """Have what this thread publishes in here given up soon, after two tries: a worker may wait, a person may not.

    It goes over a connection of its own, for those of the app may have no timeouts, and are used by others.

    Parameters:
        timeout: seconds of a try.
    """
    opened: list[Any] = []

    @cache
    def connection() -> Any:
        opened.append(made := broker_connection(app))
        made.transport_options |= publish_timeouts(made, timeout) | TWICE
        return made

    before = _OWN.set(connection)
    try:
        yield
    finally:
        _OWN.reset(before)
        for each in opened:
            with suppress(Exception):  # one that was given up may fail in any way
                each.release()


def own_connection() -> Any:
    """The connection to publish over that is given up soon; ``None`` where those of the app will do."""
    return _OWN.get()()


def own_options() -> dict[str, Any]:
    """The same as options of ``apply_async``, which then publishes once."""
    connection = own_connection()
    return {} if connection is None else {"connection": connection, "retry": False}
