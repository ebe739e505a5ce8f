"""Who acts, and by what way: what the record of changes tells of every change."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal, NamedTuple

from .errors import InvalidEntry, is_plain, storable
from .public import public

#: How a change was made.
Way = Literal["api", "cli", "web", "config", "beat"]

#: Longest actor, in characters: it is kept with each entry that was changed.
MAX_ACTOR = 100


class Who(NamedTuple):
    """Somebody, and the way that was taken."""

    actor: str
    way: Way


#: A beat, where no person has a part in what it does.
BEAT = Who("beat", "beat")

_actor: ContextVar[str | None] = ContextVar("redbeat_lite_actor", default=None)
_way: ContextVar[Way] = ContextVar("redbeat_lite_way", default="api")


class _Set(AbstractContextManager[None]):
    """A variable is set. No decorator: what a coroutine or a generator does comes when the call of it is long over."""

    def __init__(self, variable: ContextVar[Any], value: str) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


@public
def acting_as(actor: str) -> AbstractContextManager[None]:
    """Name who makes the changes of a ``with`` block: those of every ``Schedules``, whatever ``actor`` it was given,
    of ``locks`` and of ``PipelineRun``.

    It holds for this thread, or this asyncio task, and for what that calls.

    Parameters:
        actor: 1 to 100 characters, no control characters, such as the name of the user who is signed in.

    Raises:
        InvalidEntry: it is none.
    """
    return _Set(_actor, check_actor(actor))


def by_way(way: Way) -> AbstractContextManager[None]:
    """A block of code whose changes are made in this way."""
    return _Set(_way, way)


def who(actor: str | None = None) -> Who:
    """Who acts here and now: of :func:`acting_as`, else ``actor``, else the user and the host of this process."""
    return Who(_actor.get() or actor or _user_at_host(), _way.get())


def check_actor(actor: object) -> str:
    """``actor`` as the name of somebody; raises InvalidEntry where it is none."""
    if not is_plain(actor, MAX_ACTOR):
        raise InvalidEntry("actor", f"text of 1 to {MAX_ACTOR} characters without control characters", actor)
    return actor


@cache
def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run a user that has no name
        user = str(os.getuid())
    return storable(f"{user}@{socket.gethostname()}")[:MAX_ACTOR]
