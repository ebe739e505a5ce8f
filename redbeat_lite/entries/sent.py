"""Nominal times of the last sent occurrences, as a compact text in the state of an entry.

The text has the distances between the occurrences in hexadecimal milliseconds, from the newest to
the oldest. The first distance is 0: the newest occurrence is the state's ``last``. Each further one
leads from an occurrence to the one before it. Equal distances in a row are written once, with their
number in decimal. ``0,3e8*2,7d0`` means that occurrences were sent for ``last``, and for one, two
and four seconds before it.

The text is empty if nothing was sent in this generation, to which the task ids belong, or if no
history is kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from .._base.times import MAX_MS, MIN_MS
from ..settings import MAX_HISTORY

_is_text = re.compile(r"[0-9a-f,*-]*").fullmatch

#: Most digits of the number of equal distances.
_DIGITS = len(str(MAX_HISTORY))
_numbers = re.compile(rf"\*([0-9]{{1,{_DIGITS}}})(?=,|$)").findall


def and_sent(deltas: str, last: int | None, emitted: Sequence[int], history: int) -> str:
    """Return the text after further occurrences were sent.

    Parameters:
        deltas: the text before.
        last: nominal time of the last occurrence before, in epoch ms.
        emitted: nominal times of the further occurrences, the oldest first.
        history: number of occurrences to keep; 0 for none.
    """
    if not history:
        return ""
    for nominal in emitted:
        deltas = _one_more(deltas, nominal - last, history) if deltas and last is not None else "0"
        last = nominal
    return deltas


# Entries with the same interval have the same text, so the cache serves many entries.
@lru_cache(maxsize=256)
def _one_more(deltas: str, delta: int, history: int) -> str:
    """Return the text after one more occurrence, ``delta`` ms after the newest one."""
    before = deltas[2:]  # without "0,"
    newest = f"{delta:x}"
    head, _, rest = before.partition(",")
    step, number = _read(head)
    if step == newest:
        number = min(number + 1, history - 1)
    else:
        number = min(1, history - 1)
        rest = before
    if not number:
        return "0"
    older = _first(rest, history - 1 - number) if rest else ""
    text = f"0,{_group(newest, number)}"
    return f"{text},{older}" if older else text


def _first(deltas: str, number: int) -> str:
    """Return the newest ``number`` distances of a text without its leading 0."""
    excess = deltas.count(",") + 1 - number
    if "*" in deltas:
        excess += sum(max(int(times), 1) - 1 for times in _numbers(deltas))
    while excess > 0:
        newer, _, oldest = deltas.rpartition(",")
        step, equal = _read(oldest)
        left = _group(step, max(equal - excess, 0))
        excess -= equal
        deltas = ",".join(filter(None, (newer, left)))
    return deltas


def _read(group: str) -> tuple[str, int]:
    """Return a distance as it is written, and the number of equal ones in a row."""
    step, _, times = group.partition("*")
    is_number = times.isdecimal() and times.isascii() and len(times) <= _DIGITS
    if not is_number:
        # The number is missing, or the text is corrupt.
        return step, 1
    return step, max(int(times), 1)


def _group(step: str, number: int) -> str:
    """Write ``number`` equal distances."""
    if not number:
        return ""
    return f"{step}*{number}" if number > 1 else step


def times(deltas: str, last: int | None) -> tuple[int, ...]:
    """Return the nominal times in epoch ms, the newest first, up to one that cannot be read."""
    if last is None or not deltas:
        return ()
    nominals: list[int] = []
    for group in deltas.split(","):
        step, number = _read(group)
        try:
            delta = int(step, 16)
        except ValueError:
            break
        for _ in range(min(number, MAX_HISTORY - len(nominals))):
            last -= delta
            if not MIN_MS <= last <= MAX_MS:
                return tuple(nominals)
            nominals.append(last)
    return tuple(nominals)


def readable(stored: object) -> str:
    """Return a stored text.

    A corrupt text counts as an empty one, because a lost history must not stop an entry.
    """
    return stored if isinstance(stored, str) and _is_text(stored) else ""


def shortened(deltas: str, room: int) -> str:
    """Cut the oldest occurrences off, so that the text has at most ``room`` characters."""
    if len(deltas) <= room:
        return deltas
    end = deltas.rfind(",", 0, max(room + 1, 0))
    return deltas[: max(end, 0)]
