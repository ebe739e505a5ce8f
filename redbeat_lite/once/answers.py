"""What the scripts of the once-locks answer."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Verdict(NamedTuple):
    """What :meth:`LockStore.begin` decided: one of the words in ``once/begin.lua``, and its text; and why the run could
    not be recorded, empty where it was."""

    word: str
    text: str
    unrecorded: str = ""


class Seen(IntEnum):
    """What ``guard/state.lua`` tells of a message."""

    #: The first of its attempt, or the one before it died.
    NEVER = 0
    #: This attempt, or a later one, runs or has ended.
    COPY = 1
    #: An earlier copy was refused, and may have died before it could store the result that says so.
    REFUSED = 2


class Ended(NamedTuple):
    """What was given back, and whom that concerns; and why the run could not be recorded, as above."""

    standby: bool
    released: bool
    waiters: bool
    unrecorded: str = ""


class Turn(NamedTuple):
    """The first of those who wait for a lock that is free."""

    message: str
    #: Not to be published but ended, and then to leave: its time has passed.
    too_old: bool
