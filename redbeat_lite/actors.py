"""Who acts, and by what way: what the record of changes tells of every change."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Literal, NamedTuple

from .errors import InvalidEntry, storable

#: How a change was made.
Way = Literal["api", "cli", "config", "beat"]

#: Longest actor, in characters: it is kept with each entry that was changed.
MAX_ACTOR = 100

#: Control characters, and halves of characters, which nothing can store.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Who(NamedTuple):
    """Somebody, and the way that was taken."""

    actor: str
    way: Way


#: A beat, where no person has a part in what it does.
BEAT = Who("beat", "beat")

_actor: ContextVar[str | None] = ContextVar("redbeat_lite_actor", default=None)
_way: ContextVar[Way] = ContextVar("redbeat_lite_way", default="api")


@contextmanager
def acting_as(actor: str) -> Iterator[None]:
    """A block of code, or with ``@`` a function, whose changes are told to be somebody's: those of every ``Schedules``,
    whatever ``actor`` it was given, and of ``locks``.

    It holds for this thread, or this asyncio task, and for what that calls.

    Parameters:
        actor: 1 to 100 characters, no control characters, such as the name of the user who is signed in.

    Raises:
        InvalidEntry: it is none.
    """
    token = _actor.set(check_actor(actor))
    try:
        yield
    finally:
        _actor.reset(token)


@contextmanager
def by_way(way: Way) -> Iterator[None]:
    """A block of code whose changes are made in this way."""
    token = _way.set(way)
    try:
        yield
    finally:
        _way.reset(token)


def who(actor: str | None = None) -> Who:
    """Who acts here and now: of :func:`acting_as`, else ``actor``, else the user and the host of this process."""
    return Who(_actor.get() or actor or _user_at_host(), _way.get())


def check_actor(actor: object) -> str:
    """``actor`` as the name of somebody.

    Raises:
        InvalidEntry: not text, empty, too long, or with control characters in it.
    """
    if not isinstance(actor, str) or not 1 <= len(actor) <= MAX_ACTOR or _FORBIDDEN.search(actor):
        raise InvalidEntry("actor", f"text of 1 to {MAX_ACTOR} characters without control characters", actor)
    return actor


@cache
def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run a user that has no name
        user = str(os.getuid())
    return storable(f"{user}@{socket.gethostname()}")[:MAX_ACTOR]
