"""Puts the package on a world: its clocks, threads, queues, connections and random names."""

from __future__ import annotations

import os
import queue
import random
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import celery.app.trace
import celery.signals
import celery.worker.request
import kombu.common
import redis
from kombu import pools
from kombu.pools import PoolGroup

import redbeat_lite
from redbeat_lite._base import clock, threads
from redbeat_lite.once.worker import keeper, request
from tests.simulation.network import Network
from tests.simulation.primitives import Alarm, Queue, SimpleQueue, ThreadHandle, Threading, Time, date_class
from tests.simulation.shortcuts import take_shortcuts
from tests.simulation.wire import Packer, Parser, pack_commands
from tests.simulation.workers import Requests
from tests.simulation.world import Process, World

#: Seconds between two looks at something that hardly ever changes: they cost most of the time of a seed.
_LOOKS = {
    "redbeat_lite.beat.wakeup._SLICE": 0.5,
    "redbeat_lite.beat.incidents.PERIOD": 5.0,
    "redbeat_lite.once.worker.keeper.PERIOD": 2.0,
    "redbeat_lite.once.worker.keeper._CHECK": 1.0,
}


class Randomness:
    """Draws what Celery, kombu and the package draw from the operating system."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._nobody = world.random_for("nobody")

    def __getattr__(self, name: str) -> Any:
        """Return a function of the module ``random``."""
        return getattr(self._source, name)

    def urandom(self, size: int) -> bytes:
        return self._source.randbytes(size)

    @property
    def _source(self) -> random.Random:
        process = self._world.current
        return self._nobody if process is None else process.names


class Pools:
    """One of kombu's groups of pools, of which each process has its own."""

    def __init__(self, world: World, make: Callable[..., PoolGroup]) -> None:
        self._world = world
        self._groups: dict[Process | None, PoolGroup] = defaultdict(lambda: make(limit=pools.use_global_limit))

    def __getitem__(self, connection: Any) -> Any:
        return self._groups[self._world.current][connection]


class Place(NamedTuple):
    """A name of a module, and what it stands for."""

    module: ModuleType
    name: str
    value: Any


@cache
def find_places(prefixes: tuple[str, ...], values: tuple[Any, ...], loaded: int) -> list[Place]:
    """Return the names in these packages that stand for one of these values.

    Parameters:
        loaded: number of modules that are loaded, so that a new one is looked at.
    """
    del loaded
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith(prefixes)]
    kinds = (ModuleType, type, BuiltinFunctionType, FunctionType)
    # The type itself is asked, because a lazy object, such as Django's settings, loads itself when its class is asked.
    return [
        Place(module, name, value)
        for module in modules
        for name, value in vars(module).items()
        if issubclass(type(value), kinds) and value in values
    ]


def _replace(stack: ExitStack, prefixes: tuple[str, ...], substitutes: Mapping[Any, Any]) -> None:
    """Put something else in the place of these values wherever the packages use them."""
    places = find_places(prefixes, tuple(substitutes), len(sys.modules))
    stack.callback(_put_back, places)
    for place in places:
        setattr(place.module, place.name, substitutes[place.value])


def _put_back(places: Sequence[Place]) -> None:
    for place in places:
        setattr(place.module, place.name, place.value)


@contextmanager
def seams(world: World, networks: Sequence[Network], requests: Requests) -> Iterator[None]:
    """Let all of the package that is loaded live in this world."""
    randomness = Randomness(world)
    virtual = Time(world)
    mine = Threading(world)
    with ExitStack() as stack:
        substitutes = {
            time: virtual,
            threading: mine,
            queue: Queue(world),
            queue.SimpleQueue: lambda: SimpleQueue(world),
            threading.get_ident: mine.get_ident,
            clock.elapsed: virtual.monotonic,
            threads.Alarm: lambda: Alarm(world),
            threads.start_native: lambda run, _name: ThreadHandle(world, run).start(),
        }
        _replace(stack, (f"{redbeat_lite.__name__}.",), substitutes)
        clocks = {
            time: virtual,
            time.time: virtual.time,
            time.monotonic: virtual.monotonic,
            time.sleep: virtual.sleep,
            random: randomness,
        }
        # The client of Redis looks by the clock whether a connection has been idle for so long that it needs a ping.
        # Celery draws the wait before a retry.
        _replace(stack, ("celery.", "kombu.", "redis.connection", "redis.client"), clocks)
        stack.enter_context(patch.object(celery.worker.request, "datetime", date_class(world)))
        _replace_worker_state(stack, world, requests)
        for name, seconds in _LOOKS.items():
            stack.enter_context(patch(name, seconds))
        stack.enter_context(patch.object(os, "urandom", randomness.urandom))
        # Kombu draws its number once, at its first use in a process.
        stack.enter_context(patch.object(kombu.common, "_node_id", 1))
        stack.enter_context(patch.object(os, "getpid", world.pid))
        stack.enter_context(patch.object(socket, "gethostname", lambda: _host(world)))
        _replace_connections(stack, world, {network.host: network for network in networks})
        yield


def _replace_worker_state(stack: ExitStack, world: World, requests: Requests) -> None:
    """Give each worker requests and revoked ids of its own, and let it see which of its children are dead."""
    stack.enter_context(patch.object(celery.worker.request, "task_accepted", requests.accept))
    stack.enter_context(patch.object(celery.worker.request, "task_ready", requests.end))
    stack.enter_context(patch.object(celery.worker.request, "revoked_tasks", requests.revoked))
    stack.enter_context(patch.object(celery.app.trace, "gethostname", lambda: _host(world)))
    stack.enter_context(patch.object(keeper, "state", requests))
    # These signals would hold all workers of this seed for ever.
    for signal in (celery.signals.worker_process_shutdown, celery.signals.worker_shutdown):
        stack.enter_context(patch.object(signal, "receivers", list(signal.receivers or ())))
    for module in (keeper, request):
        stack.enter_context(patch.object(module, "is_gone", world.is_gone))


def _host(world: World) -> str:
    process = world.current
    return "nowhere" if process is None else process.name


def _replace_connections(stack: ExitStack, world: World, networks: Mapping[str, Network]) -> None:
    make_pool: Any = redis.ConnectionPool.__init__
    make_connection: Any = redis.Connection.__init__
    packer = Packer()

    def pool_init(self: Any, *args: Any, **options: Any) -> None:
        make_pool(self, *args, **{**options, "protocol": 2})

    def connection_init(self: Any, *args: Any, **options: Any) -> None:
        fixed = {"protocol": 2, "parser_class": Parser, "command_packer": packer, "driver_info": None}
        make_connection(self, *args, **{**options, **fixed})

    def connect(self: Any) -> Any:
        process = world.current
        assert process is not None
        connected = networks[self.host].connect(process, self.socket_connect_timeout)
        connected.settimeout(self.socket_timeout)
        return connected

    stack.enter_context(patch.object(pools, "connections", Pools(world, pools.Connections)))
    stack.enter_context(patch.object(pools, "producers", Pools(world, pools.Producers)))
    stack.enter_context(patch.object(redis.ConnectionPool, "__init__", pool_init))
    stack.enter_context(patch.object(redis.Connection, "__init__", connection_init))
    stack.enter_context(patch.object(redis.Connection, "pack_commands", lambda _, commands: pack_commands(commands)))
    take_shortcuts(stack)
    stack.enter_context(patch.object(redis.Connection, "_connect", connect))
