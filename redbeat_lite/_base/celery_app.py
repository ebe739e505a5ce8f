"""Tasks of a Celery app, and the connection to its broker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from .errors import ConfigurationError
from .text import text_of

if TYPE_CHECKING:
    from celery import Celery

#: Type of a kombu driver -> its transport options that limit the time of a publish. Kombu has no
#: common name for them.
_TIMEOUT_OPTIONS = {
    "redis": ("socket_timeout", "socket_connect_timeout"),
    "amqp": ("read_timeout", "write_timeout", "connect_timeout"),
}

#: Retry policy of a publish: one retry, without a pause.
TWICE = {"max_retries": 1, "interval_start": 0, "interval_step": 0}

#: Function that returns the connection over which this thread or task publishes, or ``None`` for a
#: connection of the app's pool.
_make_connection: ContextVar[Callable[[], Any]] = ContextVar(
    "redbeat_lite_connection", default=lambda: None
)


def load_tasks(app: Celery) -> None:
    """Import the modules of the app and register its tasks, as a worker does at its start.

    An error of a module is raised.
    """
    app.loader.import_default_modules()
    app.finalize()


def is_importing() -> bool:
    """Return whether this call happens during the import of a module.

    Then the module may define more tasks further down.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module_spec = frame.f_globals.get("__spec__")
        # Python sets this attribute of a module's spec while it runs the module.
        if frame.f_code.co_name == "<module>" and getattr(module_spec, "_initializing", False):
            return True
        frame = frame.f_back
    return False


def publish_timeouts(connection: Any, timeout: float) -> dict[str, Any]:
    """Return the transport options that end a publish after ``timeout`` seconds.

    A shorter timeout in the user's own options stays. A longer one is meant for workers, which can
    wait longer than a publisher.

    Parameters:
        connection: connection of kombu, which need not be open.
    """
    options = connection.transport_options
    names = _TIMEOUT_OPTIONS.get(connection.transport.driver_type, ())
    limits = {name: min(options.get(name) or timeout, timeout) for name in names}
    if "master_name" in options:
        # kombu asks one sentinel after another for the master. redis-py 8 asks a sentinel that is
        # down several times, with pauses, so nothing would be sent for a minute. Give a sentinel
        # one try, and leave time for the others.
        share = {name: min(limits[name], timeout / 4) for name in names}
        own = options.get("sentinel_kwargs") or {}
        limits["sentinel_kwargs"] = {**share, "retry": None, **own}
    return limits


def broker_connection(app: Celery) -> Any:
    """Return the connection over which the app publishes. It is not open yet.

    Raises:
        ConfigurationError: the broker's URL cannot be read.
    """
    try:
        return app.connection_for_write()
    except ValueError:
        # Do not show kombu's error, which quotes the URL. Special characters in the password are
        # the usual cause.
        raise ConfigurationError(
            "broker_url: expected the URL of a broker, with special characters of the "
            "password in percent form; it cannot be read"
        ) from None


def default_queue(app: Celery) -> str:
    """Return the default queue and its broker as text, without user and password.

    The text is empty if the URL cannot be read. The publisher reports such a URL.
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
    """Have publishes in this block fail after two attempts, because a person does not wait long.

    The block gets a new connection, because connections of the app's pool may have no timeouts, and
    other threads use them. The first publish makes it, so a block that publishes nothing needs no
    broker.

    Parameters:
        timeout: seconds of one attempt.
    """
    # The connection of the block, once it is made.
    made: list[Any] = []

    @cache
    def make_connection() -> Any:
        """Make the connection of the block; raise ConfigurationError if the broker is wrong."""
        try:
            connection = broker_connection(app)
            connection.transport_options |= publish_timeouts(connection, timeout) | TWICE
        except ConfigurationError:
            raise
        except Exception as exc:
            # A transport that is unknown or not installed may raise anything.
            raise ConfigurationError(f"broker_url: {text_of(exc)}") from exc
        made.append(connection)
        try:
            # This connects, as the first publish would.
            _ = connection.default_channel
        except ValueError as exc:
            # kombu asks a Sentinel for its master only now, and the settings may not name it.
            raise ConfigurationError(f"broker_transport_options: {text_of(exc)}") from exc
        return connection

    token = _make_connection.set(make_connection)
    try:
        yield
    finally:
        _make_connection.reset(token)
        for connection in made:
            with suppress(Exception):  # A broken connection may raise anything.
                connection.release()


def own_connection() -> Any:
    """Return the connection of :func:`short_publish_timeout`, or ``None`` outside such a block.

    Raises:
        ConfigurationError: the URL of the broker cannot be read, or its transport cannot be used.
    """
    make_connection = _make_connection.get()
    return make_connection()


def own_options() -> dict[str, Any]:
    """Return options of ``apply_async``: :func:`own_connection`, if any, and no retry by Celery."""
    connection = own_connection()
    return {} if connection is None else {"connection": connection, "retry": False}
