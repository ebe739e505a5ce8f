"""Sockets between the simulated processes and the model server, with every loss that a network knows."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from tests.simulation.commands import OK, Status
from tests.simulation.server import ModelServer
from tests.simulation.wire import Request
from tests.simulation.world import MICROS, Process, Waiters, World


class Loss(Enum):
    """A fault that meets one request."""

    BEFORE = "request lost, connection cut"
    AFTER = "reply lost, connection cut"
    HALF_OPEN = "nothing arrives any more, connection open"
    LATE_REPLY = "reply late"
    LATE_REQUEST = "request late"
    AT_NEXT_TERM = "request held back until another beat leads"


#: Seconds that a request is on its way at least.
_SHORTEST = 0.000_05

#: The share of requests that are late where the network of a process is bad.
_JITTERS = 0.3

#: Seconds by which a request or a reply may be late; short delays matter to short leases.
_DELAYS = (0.05, 0.3, 1.0, 3.0, 9.0)


#: Commands that concern the connection over which they come.
_OF_CONNECTIONS = frozenset({b"MULTI", b"EXEC", b"SUBSCRIBE", b"UNSUBSCRIBE"})


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
        #: Requests that are held back until another beat leads.
        self._held: list[Callable[[], None]] = []
        #: When the request of the last command was sent off, epoch microseconds.
        self.left_us = 0
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
        draw = process.random.random
        longest = 0.08 if draw() < 0.05 else 0.002
        return self.slowness + _SHORTEST + (longest - _SHORTEST) * draw()

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
        loss = self.draw_loss(socket.process, commands)
        if not socket.is_half_open:
            arrival = self._draw_arrival(socket, loss)
            self._carry(socket, commands, loss, arrival)

    def exchange(self, socket: Socket, commands: list[list[bytes]], gives_up_us: int | None) -> None:
        """Take a request to the server, and take the replies back if they arrive before anything else happens.

        Otherwise they are on their way, as after :meth:`send`.

        Parameters:
            gives_up_us: when the client waits no longer.
        """
        world = self._world
        loss = self.draw_loss(socket.process, commands)
        if socket.is_half_open:
            return
        arrival = self._draw_arrival(socket, loss)
        if loss is not None or not world.is_free_until(arrival):
            self._carry(socket, commands, loss, arrival)
            return
        if not self.is_up:
            return
        world.do_at(arrival, lambda: self._answer(socket, commands, gives_up_us))

    def _carry(self, socket: Socket, commands: list[list[bytes]], loss: Loss | None, arrival: int) -> None:
        """Let a request arrive at an instant, or hold it back until another beat leads."""

        def arrive() -> None:
            self._arrive(socket, commands, loss)

        if loss is Loss.AT_NEXT_TERM:
            self._held.append(arrive)
        else:
            self._world.at(arrival, arrive)

    def let_held_arrive(self) -> None:
        """Let the requests arrive that were held back: another beat leads."""
        held, self._held = self._held, []
        for arrive in held:
            self._world.soon(arrive)

    def _answer(self, socket: Socket, commands: list[list[bytes]], gives_up_us: int | None) -> None:
        """Run a request that has arrived, and take the replies back if nothing else happens before they arrive."""
        world = self._world
        replies = [self._run(socket, command) for command in commands]
        arrival = socket.arrival_of_reply(self._time_to_reply(socket.process))
        is_in_time = gives_up_us is None or arrival < gives_up_us
        if not is_in_time or socket.is_gone or socket.is_half_open or not world.is_free_until(arrival):
            socket.reply_at(arrival, replies)
            return
        world.now_us = arrival
        socket.replies.extend(replies)

    def _draw_arrival(self, socket: Socket, loss: Loss | None) -> int:
        """Draw when a request arrives at the server: behind all that was sent before."""
        self.round_trips += 1
        seconds = self._time_to_request(socket.process)
        if loss is Loss.LATE_REQUEST:
            seconds += self._delay(socket.process)
        arrival = max(self._world.now_us + int(seconds * MICROS), socket.last_arrival + 1)
        socket.last_arrival = arrival
        socket.left_us = self._world.now_us
        return arrival

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
        self.left_us = socket.left_us
        name = command[0].upper()
        if name in _OF_CONNECTIONS or socket.queued is not None or socket.channels:
            return self._run_for_connection(socket, name, command)
        reply = self._server.reply(command)
        self.observe(socket.process, command, reply)
        return reply

    def _run_for_connection(self, socket: Socket, name: bytes, command: list[bytes]) -> Any:
        """Run a command that concerns its connection, or meets one with a transaction or a subscription."""
        if name == b"MULTI":
            socket.queued = []
            return OK
        if name == b"EXEC":
            queued, socket.queued = socket.queued or [], None
            return [self._run(socket, queued_command) for queued_command in queued]
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
        self.world = world
        self._network = network
        self.process = process
        self.channels: dict[bytes, None] = {}
        #: Commands of a transaction that has begun.
        self.queued: list[list[bytes]] | None = None
        #: Whether the connection was lost, with all that is on its way.
        self.is_cut_off = False
        #: Whether it was lost, or the client has closed it. What the client has sent before still arrives.
        self.is_gone = False
        #: Whether nothing arrives any more, in either direction, and nobody says so.
        self.is_half_open = False
        #: When the last request was sent off, and when it arrives, epoch microseconds.
        self.left_us = 0
        self.last_arrival = 0
        self._last_reply = 0
        #: Replies that have arrived and were not read.
        self.replies: deque[Any] = deque()
        self._timeout: float | None = None
        self._waiters = Waiters(world)

    # -- the server's end --------------------------------------------------------------------------

    def reply(self, replies: list[Any], delay: float) -> None:
        """Let replies arrive after some seconds, behind all that was sent before."""
        self.reply_at(self.arrival_of_reply(delay), replies)

    def arrival_of_reply(self, delay: float) -> int:
        """Return when a reply arrives: behind all that was sent before."""
        arrival = max(self.world.now_us + int(delay * MICROS), self._last_reply + 1)
        self._last_reply = arrival
        return arrival

    def reply_at(self, instant_us: int, replies: list[Any]) -> None:
        self.world.at(instant_us, lambda: self._receive(replies))

    def _receive(self, replies: list[Any]) -> None:
        if not self.is_gone and not self.is_half_open:
            self.replies.extend(replies)
            self._waiters.wake_all_now()

    def cut(self) -> None:
        """Lose the connection."""
        self.is_cut_off = True
        self.is_gone = True
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

    def exchange(self, request: Request) -> bool:
        """Send commands and wait for the replies; return whether these or the end of the connection come in time."""
        if self.is_gone:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        ends_us = None if self._timeout is None else self.world.instant_in(self._timeout)
        self._network.exchange(self, request, ends_us)
        return self._wait_until(ends_us)

    def wait(self, timeout: float | None) -> bool:
        """Wait for replies or for the end of the connection; return whether either is there in time."""
        if self.replies or self.is_gone:
            return True
        if timeout == 0:
            return False
        return self._wait_until(None if timeout is None else self.world.instant_in(timeout))

    def _wait_until(self, ends_us: int | None) -> bool:
        while not self.replies and not self.is_gone:
            if ends_us is not None and ends_us <= self.world.now_us:
                return False
            self._waiters.wait_until(ends_us)
        return True

    def shutdown(self, how: int) -> None:
        del how
        self.close()

    def close(self) -> None:
        self.is_gone = True
        self.channels.clear()
        self._waiters.wake_all()

    def getpeername(self) -> tuple[str, int]:
        return (self._network.host, 6379)

    def fileno(self) -> int:
        return -1
