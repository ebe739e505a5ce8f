"""Freeze: a time in which no entry fires, without an edit of the entries.

Redis stores the last freeze or thaw as one text: the end of the freeze in epoch ms, ``|``, when it
was made in epoch ms, ``|``, and JSON of the freeze. So the scripts of the leader read the end
without decoding JSON. A thaw has the end 0, and no JSON. If a beat remembers a text that was made
later than the stored one, the server has lost the later text.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import ClassVar

from .._base.errors import CorruptEntry
from .._base.fields import Model
from .._base.json_values import dumps, loads
from .._base.public import public
from .._base.times import MAX_MS, MIN_MS, from_ms, to_ms
from .changes import Change


@public
class Freeze(Model, frozen=True):
    """Time in which no entry fires.

    At its end, each entry's misfire policy decides on the runs that were due meanwhile.

    Parameters:
        since: time at which it was made.
        until: time at which it ends unless it is thawed before.
        note: reason.
        actor: name of the person or program that made it.
    """

    forms: ClassVar[str] = "an object"

    since: datetime
    until: datetime
    note: str = ""
    actor: str = ""


def freeze_text(freeze: Freeze | None, before: bytes, now: int) -> str:
    """Return a freeze, or a thaw (``None``), as Redis stores it.

    Parameters:
        before: stored text that the new one replaces. The new text gets a later time of its making
            than that, even if the clock is behind.
        now: epoch ms.
    """
    made_at = max(now, made_at_of(before) + 1)
    if freeze is None:
        return f"0|{made_at}|"
    return f"{to_ms(freeze.until)}|{made_at}|{dumps(freeze.encode())}"


def end_of(text: bytes) -> int:
    """Return the end of a stored freeze, in epoch ms; 0 if there is none, or it is unreadable."""
    with suppress(ValueError):
        return int(text.partition(b"|")[0])
    return 0


def made_at_of(text: bytes) -> int:
    """Return when a stored freeze or thaw was made, in epoch ms; 0 if that is unreadable."""
    with suppress(ValueError, IndexError):
        return int(text.split(b"|", 2)[1])
    return 0


def last_end(text: bytes) -> int | None:
    """Return when the stored freeze has ended or will end, in epoch ms; ``None`` without one."""
    # A thaw has the end 0. It ended the freeze at the time when the thaw was made.
    return end_of(text) or made_at_of(text) or None


def freeze_of(text: bytes, now: int) -> Freeze | None:
    """Return the stored freeze if it has not ended at ``now``, in epoch ms.

    If only the JSON cannot be read, return a freeze with the stored end, because the scripts go by
    that end and let no entry fire before it.
    """
    end = end_of(text)
    if end <= now:
        return None
    # Anybody may have written the text.
    with suppress(TypeError, ValueError, IndexError, CorruptEntry):
        freeze: Freeze = Freeze.decode(loads(text.split(b"|", 2)[2]))
        return freeze
    since, until = (from_ms(min(max(ms, MIN_MS), MAX_MS)) for ms in (made_at_of(text), end))
    return Freeze(since, until, "its reason cannot be read", "unknown")


def recorded_end(change: Change) -> datetime | None:
    """Return the planned end of a freeze or of a pause, by its line in the record of changes.

    ``None`` if it has no end, or the line cannot be read.
    """
    for field, _, after in change.fields:
        if field == "until" and after is not None:
            with suppress(ValueError):
                return datetime.fromisoformat(after)
    return None
