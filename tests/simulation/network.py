"""Sockets between the simulated processes and the model server, with every loss that a network knows."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from enum import Enum
from math import ceil
from typing import Any

from tests.simulation.commands import OK, Status
from tests.simulation.primitives import Waiters
from tests.simulation.server import ModelServer
from tests.simulation.wire import Request
from tests.simulation.world import MICROS, Process, World


class Loss(Enum):
    """A fault that meets one request."""

    BEFORE = "request lost, connection cut"
    AFTER = "reply lost, connection cut"
    HALF_OPEN = "nothing arrives any more, connection open"
    LATE_REPLY = "reply late"
    LATE_REQUEST = "request late"


#: The share of requests that are late where the network of a process is bad.
_JITTERS = 0.3

#: Seconds by which a request or a reply may be late; short delays matter to short leases.
_DELAYS = (0.05, 0.3, 1.0, 3.0, 9.0)


class Network:
    """Carries requests to the server and replies back.

    Parameters:
        host: name of the server.
    """

    def __init__(self, world: World, server: ModelServer, host: str) -> None:
        self.host = host
        self._world = world
        self._server = server
        self._server.deliver = self._deliver
        self.is_up = True
        #: Seconds that each request takes longer than usual.
        self.slowness = 0.0
        #: Asked for each request.
        self.draw_loss: Callable[[Process, list[list[bytes]]], Loss | None] = lambda _process, _commands: None
        self.sockets: list[Socket] = []
        self.round_trips = 0
        #: Called with each command and the reply to it.
        self.observe: Callable[[Process, list[bytes], Any], None] = lambda _process, _command, _reply: None

    def connect(self, process: Process, timeout: float | None) -> Socket:
        """Open a connection; raise ConnectionRefusedError if the server is down, TimeoutError if it is out of reach."""
        self._world.wait(self.latency(process))
        if process.is_cut_off:
            self._world.wait(timeout)
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
        if process.is_dead or not self.is_up:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        socket = Socket(self._world, self, process)
        self.sockets = [other for other in self.sockets if not other.is_gone]
        self.sockets.append(socket)
        process.at_death.append(socket.close)
        return socket

    def cut_all(self) -> None:
        """Cut all connections."""
        for socket in self.sockets:
            socket.cut()
        self.sockets = []

    def make_half_open(self, process: Process) -> None:
        """Let nothing through any more on all connections of a process."""
        for socket in self.sockets:
            if socket.process is process:
                socket.is_half_open = True

    def latency(self, process: Process) -> float:
        """Seconds that a request or a reply of this process is on its way; now and then many."""
        is_slow = process.random.random() < 0.05
        return self.slowness + process.random.uniform(0.000_05, 0.08 if is_slow else 0.002)

    def _time_to_request(self, process: Process) -> float:
        seconds = self.latency(process)
        if process.jitter and process.random.random() < _JITTERS:
            seconds += process.random.uniform(0.0, process.jitter)
        return seconds

    def _time_to_reply(self, process: Process) -> float:
        return process.slowness + self.latency(process)

    def _delay(self, process: Process) -> float:
        """Seconds by which something is late that a fault has met."""
        return process.random.uniform(0.5, 1.0) * process.random.choice(_DELAYS)

    def send(self, socket: Socket, commands: list[list[bytes]]) -> None:
        """Take a request on its way to the server."""
        self.round_trips += 1
        loss = self.draw_loss(socket.process, commands)
        if socket.is_half_open:
            return
        seconds = self._time_to_request(socket.process)
        if loss is Loss.LATE_REQUEST:
            seconds += self._delay(socket.process)
        arrival = max(self._world.now_us + int(seconds * MICROS), socket.last_arrival + 1)
        socket.last_arrival = arrival
        self._world.at(arrival, lambda: self._arrive(socket, commands, loss))

    def _arrive(self, socket: Socket, commands: list[list[bytes]], loss: Loss | None) -> None:
        if not self.is_up or socket.is_cut_off:
            return
        if loss is Loss.BEFORE:
            socket.cut()
            return
        replies = [self._run(socket, command) for command in commands]
        if loss is Loss.AFTER:
            socket.cut()
            return
        if loss is Loss.HALF_OPEN:
            socket.is_half_open = True
            return
        seconds = self._time_to_reply(socket.process)
        if loss is Loss.LATE_REPLY:
            seconds += self._delay(socket.process)
        socket.reply(replies, seconds)

    def _run(self, socket: Socket, command: list[bytes]) -> Any:
        name = command[0].upper()
        if name == b"MULTI":
            socket.queued = []
            return OK
        if name == b"EXEC":
            queued, socket.queued = socket.queued or [], None
            return [self._run(socket, each) for each in queued]
        if socket.queued is not None:
            socket.queued.append(command)
            return Status(b"QUEUED")
        if name == b"SUBSCRIBE":
            socket.channels.update(dict.fromkeys(command[1:]))
            return [b"subscribe", command[1], len(socket.channels)]
        if name == b"UNSUBSCRIBE":
            channels = command[1:] or list(socket.channels)
            socket.channels.clear()
            return [b"unsubscribe", channels[0] if channels else None, 0]
        if name == b"PING" and socket.channels:
            return [b"pong", b"".join(command[1:])]
        reply = self._server.reply(command)
        self.observe(socket.process, command, reply)
        return reply

    def _deliver(self, channel: bytes, message: bytes) -> int:
        subscribers = [socket for socket in self.sockets if channel in socket.channels and not socket.is_gone]
        for socket in subscribers:
            socket.reply([[b"message", channel, message]], self._time_to_reply(socket.process))
        return len(subscribers)


class Socket:
    """One connection, with the part of a socket's interface that redis-py uses."""

    def __init__(self, world: World, network: Network, process: Process) -> None:
        self._world = world
        self._network = network
        self.process = process
        self.channels: dict[bytes, None] = {}
        #: Commands of a transaction that has begun.
        self.queued: list[list[bytes]] | None = None
        #: Whether the connection was lost, with all that is on its way.
        self.is_cut_off = False
        #: Whether the client has closed it. What it has sent before still arrives.
        self.is_closed = False
        #: Whether nothing arrives any more, in either direction, and nobody says so.
        self.is_half_open = False
        self.last_arrival = 0
        self._last_reply = 0
        #: Replies that have arrived and were not read.
        self.replies: deque[Any] = deque()
        self._timeout: float | None = None
        self._waiters = Waiters(world)

    @property
    def is_gone(self) -> bool:
        return self.is_cut_off or self.is_closed

    # -- the server's end --------------------------------------------------------------------------

    def reply(self, replies: list[Any], delay: float) -> None:
        """Let replies arrive after some seconds, behind all that was sent before."""
        arrival = max(self._world.now_us + int(delay * MICROS), self._last_reply + 1)
        self._last_reply = arrival
        self._world.at(arrival, lambda: self._receive(replies))

    def _receive(self, replies: list[Any]) -> None:
        if not self.is_gone and not self.is_half_open:
            self.replies.extend(replies)
            self._waiters.wake_all_now()

    def cut(self) -> None:
        """Lose the connection."""
        self.is_cut_off = True
        self.channels.clear()
        self._waiters.wake_all()

    # -- the client's end --------------------------------------------------------------------------

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        return self._timeout

    def sendall(self, request: Request) -> None:
        if self.is_gone:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        self._network.send(self, request)

    def wait(self, timeout: float | None) -> bool:
        """Wait for replies or for the end of the connection; return whether either is there in time."""
        if self.replies or self.is_gone:
            return True
        if timeout == 0:
            return False
        ends = None if timeout is None else self._world.now_us + ceil(timeout * MICROS)
        while not self.replies and not self.is_gone:
            left = None if ends is None else (ends - self._world.now_us) / MICROS
            if left is not None and left <= 0:
                return False
            self._waiters.wait(left)
        return True

    def shutdown(self, how: int) -> None:
        del how
        self.close()

    def close(self) -> None:
        self.is_closed = True
        self.channels.clear()
        self._waiters.wake_all()

    def getpeername(self) -> tuple[str, int]:
        return (self._network.host, 6379)

    getsockname = getpeername

    def fileno(self) -> int:
        return -1
