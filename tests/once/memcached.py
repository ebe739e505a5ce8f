"""A small memcached: the commands of its text protocol that a lock needs, for clients that speak it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer


class _Connection(StreamRequestHandler):
    """Serves one client. With ``noreply`` a command gets no answer, as in memcached."""

    server: _Server

    def handle(self) -> None:
        for line in self.rfile:
            command, key, *rest = line.decode().split()
            answer = getattr(self, f"_{command}")(key, *rest)
            if rest[-1:] != ["noreply"]:
                self.wfile.write(answer)

    def _add(self, key: str, flags: str, seconds: str, length: str, *_: str) -> bytes:
        value = self.rfile.read(int(length))
        self.rfile.readline()
        with self.server.lock:
            if self._value(key) is not None:
                return b"NOT_STORED\r\n"
            self.server.values[key] = (value, time.monotonic() + int(seconds))
        return b"STORED\r\n"

    def _get(self, key: str) -> bytes:
        with self.server.lock:
            value = self._value(key)
        if value is None:
            return b"END\r\n"
        return b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key.encode(), len(value), value)

    def _delete(self, key: str, *_: str) -> bytes:
        with self.server.lock:
            return b"NOT_FOUND\r\n" if self.server.values.pop(key, None) is None else b"DELETED\r\n"

    def _value(self, key: str) -> bytes | None:
        value, until = self.server.values.get(key, (None, 0.0))
        return value if time.monotonic() < until else None


class _Server(ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.lock = threading.Lock()
        self.values: dict[str, tuple[bytes, float]] = {}


@contextmanager
def memcached() -> Iterator[tuple[str, int]]:
    """Run the server in a thread; yields its address."""
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield "127.0.0.1", server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
