"""Puts the package on a world: its clocks, threads, queues, connections and random names."""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import redis

import redbeat_lite
from redbeat_lite import threads
from tests.simulation.network import Network
from tests.simulation.primitives import Alarm, Queue, SimpleQueue, ThreadHandle, Threading, Time
from tests.simulation.world import World


class Randomness:
    """Draws what the package draws from the operating system."""

    def __init__(self, world: World) -> None:
        self._world = world

    def urandom(self, size: int) -> bytes:
        process = self._world.current
        assert process is not None
        return process.random.randbytes(size)

    def token_hex(self, size: int) -> str:
        return self.urandom(size).hex()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def _own_modules() -> list[ModuleType]:
    prefix = redbeat_lite.__name__ + "."
    return [module for name, module in sorted(sys.modules.items()) if name.startswith(prefix)]


@contextmanager
def seams(world: World, network: Network) -> Iterator[None]:
    """Let all of the package that is loaded live in this world."""
    randomness = Randomness(world)
    substitutes: dict[Any, Any] = {
        time: Time(world),
        threading: Threading(world),
        queue: Queue(world),
    }
    functions: dict[Any, Any] = {
        queue.SimpleQueue: lambda: SimpleQueue(world),
        threading.get_ident: substitutes[threading].get_ident,
        threads.Alarm: lambda: Alarm(world),
        threads.start_native: lambda run, _name: ThreadHandle(world, run).start(),
    }
    with ExitStack() as stack:
        for module in _own_modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, ModuleType) and value in substitutes:
                    stack.enter_context(patch.object(module, name, substitutes[value]))
                elif isinstance(value, type | BuiltinFunctionType | FunctionType) and value in functions:
                    stack.enter_context(patch.object(module, name, functions[value]))
        # Fewer looks at conditions while a beat waits. They cost most of the time, and a message ends a wait at once.
        stack.enter_context(patch("redbeat_lite.beat.wakeup._SLICE", 0.5))
        # The client looks by the clock whether a connection has been idle for so long that it needs a ping.
        stack.enter_context(patch("redis.connection.time", substitutes[time]))
        stack.enter_context(patch("redis.client.time", substitutes[time]))
        stack.enter_context(patch("redbeat_lite.uuids.os", randomness))
        stack.enter_context(patch("redbeat_lite.beat.tokens.secrets", randomness))
        stack.enter_context(patch.object(os, "getpid", lambda: _pid(world)))
        stack.enter_context(patch.object(socket, "gethostname", lambda: _host(world)))
        _replace_connections(stack, world, network)
        yield


def _pid(world: World) -> int:
    process = world.current
    return 1 if process is None else 100 + world.processes.index(process)


def _host(world: World) -> str:
    process = world.current
    return "nowhere" if process is None else process.name


def _replace_connections(stack: ExitStack, world: World, network: Network) -> None:
    make_pool: Any = redis.ConnectionPool.__init__
    make_connection: Any = redis.Connection.__init__

    def pool_init(self: Any, *args: Any, **options: Any) -> None:
        make_pool(self, *args, **{**options, "protocol": 2})

    def connection_init(self: Any, *args: Any, **options: Any) -> None:
        make_connection(self, *args, **{**options, "protocol": 2})

    def connect(self: Any) -> Any:
        process = world.current
        assert process is not None
        connected = network.connect(process, self.socket_connect_timeout)
        connected.settimeout(self.socket_timeout)
        return connected

    stack.enter_context(patch.object(redis.ConnectionPool, "__init__", pool_init))
    stack.enter_context(patch.object(redis.Connection, "__init__", connection_init))
    stack.enter_context(patch.object(redis.Connection, "_connect", connect))
