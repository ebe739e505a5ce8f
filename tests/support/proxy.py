"""A TCP proxy that tests put before a server: it can delay, swallow, cut and refuse, or lead connections elsewhere."""

from __future__ import annotations

import re
import select
import socket
import ssl
import struct
import threading
import time
from contextlib import suppress
from types import TracebackType

from tests.support.server import free_port

_Pair = tuple[socket.socket, socket.socket]


class Proxy:
    """Forwards connections to a port.

    Parameters:
        target: the port of the server that new connections lead to; may be changed at any time.
        tls: what ends the encryption of the clients' side, where that is encrypted.
    """

    def __init__(self, target: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        self.port = free_port()
        #: While set, connections are accepted, and what is sent over them is swallowed, in both directions …
        self.black_hole = False
        #: … or only on its way to the server …
        self.swallow_requests = False
        #: … or only on its way back.
        self.swallow_replies = False
        #: Seconds by which everything that is sent is held up.
        self.delay = 0.0
        #: Seconds by which replies are held up.
        self.delay_replies = 0.0
        #: What the server answers to a request with this in it is lost, and the connection with it; each match once.
        self.lose_reply_to: re.Pattern[bytes] | None = None
        #: How many replies were.
        self.lost = 0
        self._answered: set[bytes] = set()
        self._half_open: frozenset[_Pair] = frozenset()
        self._tls = tls
        self._pairs: set[_Pair] = set()
        self._closed = False
        self._listener: socket.socket | None = None
        self.accept()

    @property
    def url(self) -> str:
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}/0"

    @property
    def connections(self) -> frozenset[_Pair]:
        """Those that are open."""
        return frozenset(self._pairs)

    def accept(self) -> None:
        """Take connections; the end of :meth:`refuse`."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Reset all connections and take no new ones."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
            listener.close()
        self.reset()

    def reset(self) -> None:
        """Cut all connections, without a word of goodbye."""
        for pair in list(self._pairs):
            for end in pair:
                with suppress(OSError):
                    # With no time to linger, closing sends RST instead of FIN.
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RDWR)

    def swallow_open(self) -> None:
        """Swallow what is sent over the connections that are open now, as a firewall does that has lost its state."""
        self._half_open = self.connections

    def heal(self) -> None:
        """Forward everything at once again."""
        self._half_open = frozenset()
        self.black_hole = self.swallow_requests = self.swallow_replies = False
        self.lose_reply_to = None
        self.delay = 0.0
        self.delay_replies = 0.0
        if self._listener is None:
            self.accept()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._forward, args=(client, self.target), daemon=True).start()

    def _forward(self, client: socket.socket, target: int) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", target)) as server:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            pair = (client, server)
            self._pairs.add(pair)
            try:
                self._pump(pair)
            finally:
                self._pairs.discard(pair)
                client.close()

    def _pump(self, pair: _Pair) -> None:
        client, server = pair
        loses = False
        while not self._closed:
            # What TLS has decrypted already, no select() would tell of.
            waiting = isinstance(client, ssl.SSLSocket) and client.pending()
            for source in [client] if waiting else select.select([client, server], [], [], 0.2)[0]:
                received = source.recv(65_536)
                if not received:
                    return
                if self.delay:
                    time.sleep(self.delay)
                if source is server and self.delay_replies:
                    time.sleep(self.delay_replies)
                if source is client:
                    loses = loses or self._loses_reply_to(received)
                elif loses:
                    self.lost += 1
                    return
                if pair not in self._half_open and not self._swallows(source is client):
                    (server if source is client else client).sendall(received)

    def _loses_reply_to(self, request: bytes) -> bool:
        found = self.lose_reply_to and self.lose_reply_to.search(request)
        if not found or found[0] in self._answered:
            return False
        self._answered.add(found[0])
        return True

    def _swallows(self, request: bool) -> bool:
        return self.black_hole or (self.swallow_requests if request else self.swallow_replies)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._closed = True
        self.refuse()
