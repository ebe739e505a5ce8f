"""Counting what a piece of code asks of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock
from uuid import uuid4

from redis.connection import AbstractConnection

from tests.support.server import Server


@contextmanager
def commands(server: Server) -> Iterator[list[str]]:
    """The commands that any client sends meanwhile, as the server's MONITOR tells them; those of scripts left out.

    The list is complete once the block has ended.
    """
    seen: list[str] = []
    with server.client() as watcher, server.client() as marker:
        marker.ping()
        with watcher.monitor() as monitor:
            yield seen
            end = uuid4().hex
            marker.echo(end)
            for command in monitor.listen():
                if end in command["command"]:
                    break
                if command["client_type"] != "lua":
                    seen.append(command["command"])


#: How redis-py packs the command that loads a script.
_LOAD = b"*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n"


@contextmanager
def round_trips() -> Iterator[list[int]]:
    """The sizes in bytes of what redis-py clients of this process send meanwhile; a pipeline is one trip.

    A call of a script that the server does not have fails, and is repeated once the script is loaded. That counts as
    one call, because it depends on the tests before whether the server has the script.
    """
    trips: list[int] = []
    loads = False
    send = AbstractConnection.send_packed_command

    def counted(self: AbstractConnection, command: object, *args: object, **kwargs: object) -> None:
        nonlocal loads
        packed = b"".join(command) if isinstance(command, list) else command
        assert isinstance(packed, bytes)
        loaded_before = loads
        loads = packed.startswith(_LOAD)
        if not loads:
            trips.append(len(packed))
        elif not loaded_before:
            trips.pop()  # the call that failed; a pipeline may lack several scripts
        send(self, command, *args, **kwargs)

    with mock.patch.object(AbstractConnection, "send_packed_command", counted):
        yield trips
