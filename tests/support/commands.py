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


@contextmanager
def round_trips() -> Iterator[list[int]]:
    """The sizes in bytes of what redis-py clients of this process send meanwhile; a pipeline is one trip."""
    trips: list[int] = []
    send = AbstractConnection.send_packed_command

    def counted(self: AbstractConnection, command: object, *args: object, **kwargs: object) -> None:
        trips.append(sum(map(len, command)) if isinstance(command, list) else len(command))  # type: ignore[arg-type]
        send(self, command, *args, **kwargs)

    with mock.patch.object(AbstractConnection, "send_packed_command", counted):
        yield trips
