"""A TCP proxy that tests put before a server: it can stop forwarding, or lead new connections elsewhere."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from types import TracebackType

from tests.support.server import free_port


class Proxy:
    """Forwards connections to a port.

    Parameters:
        target: the port of the server that new connections lead to; may be changed at any time.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = free_port()
        #: While set, connections are accepted, and what is sent over them is swallowed.
        self.black_hole = False
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client, self.target), daemon=True).start()

    def _forward(self, client: socket.socket, target: int) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", target)) as server:
            while not self._closed:
                for source in select.select([client, server], [], [], 0.2)[0]:
                    received = source.recv(65_536)
                    if not received:
                        return
                    if not self.black_hole:
                        (server if source is client else client).sendall(received)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._closed = True
        self._listener.close()
