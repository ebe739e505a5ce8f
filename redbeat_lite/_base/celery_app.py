"""The parts of a Celery app that many rooms need: its tasks, and the connection to its broker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from .errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

#: Transport options that bound a publish, by the driver's type, because kombu has no common name
#: for them.
_TIMEOUT_OPTIONS = {
    "redis": ("socket_timeout", "socket_connect_timeout"),
    "amqp": ("read_timeout", "write_timeout", "connect_timeout"),
}

#: Retry policy of a publish: one more try, at once.
TWICE = {"max_retries": 1, "interval_start": 0, "interval_step": 0}

#: Returns the connection that this context publishes over, or ``None`` if it uses one of the app's
#: pool.
_make_connection: ContextVar[Callable[[], Any]] = ContextVar("own", default=lambda: None)


def load_tasks(app: Celery) -> None:
    """Import the modules of the app, as a worker does at its start, and have it register its tasks.

    Raises whatever a module raises.
    """
    app.loader.import_default_modules()
    app.finalize()


def is_importing() -> bool:
    """Return whether a module is being imported; it may define more tasks further down."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _is_unfinished(frame.f_globals.get("__spec__")):
            return True
        frame = frame.f_back
    return False


def _is_unfinished(spec: object) -> bool:
    return bool(getattr(spec, "_initializing", False))


def publish_timeouts(connection: Any, timeout: float) -> dict[str, float]:
    """Return the transport options that end a publish after ``timeout`` seconds. The connection
    need not be open.

    A shorter timeout of the user is kept. A longer one is meant for workers, which can wait longer
    than a publisher.
    """
    options = connection.transport_options
    names = _TIMEOUT_OPTIONS.get(connection.transport.driver_type, ())
    return {name: min(options.get(name) or timeout, timeout) for name in names}


def broker_connection(app: Celery) -> Any:
    """Return the connection that the app publishes over, not yet opened.

    Raises:
        ConfigurationError: the broker's URL cannot be read.
    """
    try:
        return app.connection_for_write()
    except ValueError:
        # Kombu's error quotes the URL, and special characters of the password are the usual cause.
        raise ConfigurationError(
            "broker_url: expected the URL of a broker, with special characters of the "
            "password in percent form; it "
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
    except (ConfigurationError, KeyError):  # Kombu raises KeyError for an unknown transport.
        return ""
    queue = options.get("global_keyprefix", "") + app.conf.task_default_queue
    return f"{queue} on {place}/{database}"


@contextmanager
def short_publish_timeout(app: Celery, timeout: float) -> Iterator[None]:
    """Publish in this block over a connection that gives up after two tries, because a person does
    not wait long.

    It is a connection of its own, because those of the app's pool may have no timeouts and are used
    by others.

    Parameters:
        timeout: seconds of a try.
    """
    opened: list[Any] = []

    @cache
    def make_connection() -> Any:
        connection = broker_connection(app)
        connection.transport_options |= publish_timeouts(connection, timeout) | TWICE
        opened.append(connection)
        return connection

    before = _make_connection.set(make_connection)
    try:
        yield
    finally:
        _make_connection.reset(before)
        for connection in opened:
            with suppress(Exception):  # A connection that was given up may raise anything.
                connection.release()


def own_connection() -> Any:
    """Return the connection of :func:`short_publish_timeout`, or ``None`` outside such a block."""
    return _make_connection.get()()


def own_options() -> dict[str, Any]:
    """Return the options with which ``apply_async`` publishes once over that connection."""
    connection = own_connection()
    return {} if connection is None else {"connection": connection, "retry": False}
