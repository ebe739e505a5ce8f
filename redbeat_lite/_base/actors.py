"""The actor of a change and the way of the change, for the record of changes."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal, NamedTuple

from .errors import InvalidEntry
from .public import public
from .text import is_short_text, storable

#: Way of a change: through which part of the package it came.
Way = Literal["api", "cli", "web", "config", "beat"]

#: Maximum number of characters of an actor. Each changed entry stores one.
MAX_ACTOR = 100


class Who(NamedTuple):
    """The actor of a change, such as a user's name, and the way of the change."""

    actor: str
    way: Way


#: Actor of changes that the beat makes by itself.
BEAT = Who("beat", "beat")

_actor: ContextVar[str | None] = ContextVar("redbeat_lite_actor", default=None)
_way: ContextVar[Way] = ContextVar("redbeat_lite_way", default="api")


@contextmanager
def _assigned(variable: ContextVar[Any], value: str) -> Iterator[None]:
    """Give a context variable another value during a block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@public
def acting_as(actor: str) -> AbstractContextManager[None]:
    """Name the actor of the changes in a ``with`` block.

    This actor overrides the ``actor`` of a ``Schedules``. It is also the actor of changes by
    ``locks`` and ``PipelineRun``. It counts in this thread or asyncio task alone.

    Parameters:
        actor: 1 to 100 characters without control characters, such as the name of the user who has
            signed in.

    Raises:
        InvalidEntry: the actor is no such text.
    """
    return _assigned(_actor, check_actor(actor))


def by_way(way: Way) -> AbstractContextManager[None]:
    """Set the way of the changes in a ``with`` block."""
    return _assigned(_way, way)


def who(actor: str | None = None) -> Who:
    """Return the actor and the way of a change that is made now.

    The actor is that of :func:`acting_as`; without it ``actor``; without both the user and the host
    of this process.
    """
    return Who(_actor.get() or actor or _user_at_host(), _way.get())


def check_actor(actor: object) -> str:
    """Return the actor, or raise InvalidEntry if it cannot be one."""
    if not is_short_text(actor, MAX_ACTOR):
        raise InvalidEntry(
            "actor", f"text of 1 to {MAX_ACTOR} characters without control characters", actor
        )
    return actor


@cache
def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # In a container, the user may have no name.
        user = str(os.getuid())
    return storable(f"{user}@{socket.gethostname()}")[:MAX_ACTOR]
