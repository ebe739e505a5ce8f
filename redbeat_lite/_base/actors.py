"""Actor and way of a change: a person or program, and the part of the package that it uses."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
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
    """The actor of a change, such as a user's name, and its way, such as the command line."""

    actor: str
    way: Way


#: Actor of changes that the beat makes by itself.
BEAT = Who("beat", "beat")

_actor: ContextVar[str | None] = ContextVar("redbeat_lite_actor", default=None)
_way: ContextVar[Way] = ContextVar("redbeat_lite_way", default="api")


class _Assignment(AbstractContextManager[None]):
    """Block in which a context variable has another value.

    It cannot be used as a decorator, which would be wrong for a coroutine or a generator: their
    body runs after the call has returned.
    """

    def __init__(self, variable: ContextVar[Any], value: str) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token: Token[Any] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


@public
def acting_as(actor: str) -> AbstractContextManager[None]:
    """Name the actor of the changes in a ``with`` block.

    This actor overrides the ``actor`` of a ``Schedules``. It is also the actor of changes by
    ``locks`` and ``PipelineRun``. It applies to this thread or asyncio task alone.

    Parameters:
        actor: 1 to 100 characters without control characters, such as the name of the user who has
            signed in.

    Raises:
        InvalidEntry: the actor is no such text.
    """
    return _Assignment(_actor, check_actor(actor))


def by_way(way: Way) -> AbstractContextManager[None]:
    """Let changes in a ``with`` block be recorded as made this way, such as by the command line."""
    return _Assignment(_way, way)


def who(actor: str | None = None) -> Who:
    """Return the actor of a change that is made now, and its way, such as the command line.

    The actor is the one that :func:`acting_as` has set, or else ``actor``, or else the user and the
    host of this process.
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
    """Return the user and the host of this process, as an actor."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # In a container, the user may have no name.
        user = str(os.getuid())
    return storable(f"{user}@{socket.gethostname()}")[:MAX_ACTOR]
