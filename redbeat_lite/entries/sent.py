"""Nominal times of the last occurrences that were sent, as the state of an entry carries them.

The text is made of deltas that go back in time, in hexadecimal milliseconds: the first from the state's ``last`` to the
newest, which is the same instant, and each further one from an occurrence to the one before it. ``0,3e8,7d0`` says:
sent for ``last``, for a second before it, and for three seconds before it. It is empty where nothing was sent in this
generation, by which task ids are named, or nobody has kept it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..instants import MAX_MS, MIN_MS

_is_text = re.compile(r"[0-9a-f,-]*").fullmatch

#: How notes begin that hold nothing else, which end with the next quotation mark and a brace.
_OPENS = '{"sent":"'
_BEGINS, _AROUND = len(_OPENS), len(_OPENS) + 2


def and_sent(deltas: str, last: int | None, emitted: Sequence[int], history: int) -> str:
    """The text after more was sent.

    Parameters:
        deltas: the text before.
        last: the state's ``last`` before.
        emitted: nominal times, oldest first.
        history: how many to keep; 0 for none.
    """
    if not history:
        return ""
    for nominal in emitted:
        deltas = f"0,{nominal - last:x}{deltas[1:]}" if deltas and last is not None else "0"
        last = nominal
    if (commas := deltas.count(",")) < history:
        return deltas
    return deltas.rsplit(",", commas + 1 - history)[0]


def times(deltas: str, last: int | None) -> tuple[int, ...]:
    """Nominal times, the newest first; up to the first that cannot be read."""
    found: list[int] = []
    if last is None or not deltas:
        return ()
    for delta in deltas.split(","):
        try:
            last -= int(delta, 16)
        except ValueError:
            break
        if not MIN_MS <= last <= MAX_MS:
            break
        found.append(last)
    return tuple(found)


def notes_of(deltas: str, room: int) -> str:
    """Notes that hold nothing else, in at most ``room`` characters; the oldest are left out where that is too few."""
    deltas = shortened(deltas, room - _AROUND)
    return f'{_OPENS}{deltas}"}}' if deltas else ""


def alone_in(notes: str) -> str | None:
    """The text in notes that hold nothing else; ``None`` where they do."""
    if notes.startswith(_OPENS) and notes.find('"', _BEGINS) == len(notes) - 2:
        return notes[_BEGINS:-2]
    return None


def beside_others(found: Any) -> str:
    """The text in notes that hold more; empty where it is none. A record that cannot be read stops no entry."""
    return found if isinstance(found, str) and _is_text(found) else ""


def shortened(deltas: str, room: int) -> str:
    """The text without the oldest, in at most ``room`` characters."""
    return deltas if len(deltas) <= room else deltas[: max(deltas.rfind(",", 0, max(room + 1, 0)), 0)]
