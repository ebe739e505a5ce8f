"""The actor of a change, and the way of the change, which the record of changes keeps."""

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

#: The ways of a change.
Way = Literal["api", "cli", "web", "config", "beat"]

#: Longest actor in characters. Each changed entry keeps one.
MAX_ACTOR = 100


class Who(NamedTuple):
    """The actor of a change, and its way."""

    actor: str
    way: Way


#: The beat itself, for changes without a person.
BEAT = Who("beat", "beat")

_actor: ContextVar[str | None] = ContextVar("redbeat_lite_actor", default=None)
_way: ContextVar[Way] = ContextVar("redbeat_lite_way", default="api")


class _Assignment(AbstractContextManager[None]):
    """A value that a context variable has while a block runs.

    It is no decorator, because the body of a coroutine or a generator runs after the call of it has
    returned.
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

    It holds for every ``Schedules``, whatever ``actor`` it has, for ``locks`` and for
    ``PipelineRun``, in this thread or asyncio task, and in the functions that it calls.

    Parameters:
        actor: 1 to 100 characters without control characters, such as the name of the user who is
            signed in.

    Raises:
        InvalidEntry: the actor is no such text.
    """
    return _Assignment(_actor, check_actor(actor))


def by_way(way: Way) -> AbstractContextManager[None]:
    """Set the way of the changes in a ``with`` block."""
    return _Assignment(_way, way)


def who(actor: str | None = None) -> Who:
    """Return the actor and the way of a change that happens now.

    The actor is the one of :func:`acting_as`, else ``actor``, else the user and the host of this
    process.
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
        # The user of a container may have no name.
        user = str(os.getuid())
    return storable(f"{user}@{socket.gethostname()}")[:MAX_ACTOR]
