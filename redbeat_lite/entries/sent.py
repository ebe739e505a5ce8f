"""Nominal times of the last occurrences that were sent, as the state of an entry carries them.

The text is made of deltas that go back in time, in hexadecimal milliseconds: the first from the
state's ``last`` to the newest, which is the same instant, and each further one from an occurrence
to the one before it; of equal ones in a row there is one, with their number in decimal.
``0,3e8*2,7d0`` says: sent for ``last``, for one and for two seconds before it, and for four. It is
empty where nothing was sent in this generation, by which task ids are named, or nobody has kept it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from .._base.times import MAX_MS, MIN_MS
from ..settings import MAX_HISTORY

_is_text = re.compile(r"[0-9a-f,*-]*").fullmatch

#: How notes begin that hold nothing else, which end with the next quotation mark and a brace.
_OPENS = '{"sent":"'
_BEGINS, _AROUND = len(_OPENS), len(_OPENS) + 2

#: Of the number of equal deltas.
_DIGITS = len(str(MAX_HISTORY))
_numbers = re.compile(rf"\*([0-9]{{1,{_DIGITS}}})(?=,|$)").findall


def and_sent(deltas: str, last: int | None, emitted: Sequence[int], history: int) -> str:
    """The text after more was sent, after ``last``, oldest first; ``history`` says how many to
    keep, 0 for none.
    """
    if not history:
        return ""
    for nominal in emitted:
        deltas = _one_more(deltas, nominal - last, history) if deltas and last is not None else "0"
        last = nominal
    return deltas


@lru_cache(maxsize=256)  # entries of one interval have the same answer
def _one_more(deltas: str, delta: int, history: int) -> str:
    head, _, rest = deltas[2:].partition(",")
    newest = f"{delta:x}"
    step, number = _read(head)
    if step == newest:
        number = min(number + 1, history - 1)
    else:
        number, rest = min(1, history - 1), deltas[2:]
    older = _first(rest, history - 1 - number) if rest else ""
    if not number:
        return "0"
    return f"0,{_group(newest, number)},{older}" if older else f"0,{_group(newest, number)}"


def _first(deltas: str, number: int) -> str:
    """At most so many of a text without a beginning, the oldest of which goes first."""
    excess = deltas.count(",") + 1 - number
    if "*" in deltas:
        excess += sum(max(int(times), 1) - 1 for times in _numbers(deltas))
    while excess > 0:
        newer, _, oldest = deltas.rpartition(",")
        step, these = _read(oldest)
        left = _group(step, max(these - excess, 0))
        excess -= these
        deltas = f"{newer},{left}" if newer and left else newer or left
    return deltas


def _read(group: str) -> tuple[str, int]:
    """A delta, and how many of it there are in a row."""
    step, _, times = group.partition("*")
    # Whatever else stands there, nobody here has written it.
    is_number = times.isdecimal() and times.isascii() and len(times) <= _DIGITS
    return step, max(int(times), 1) if is_number else 1


def _group(step: str, number: int) -> str:
    return f"{step}*{number}" if number > 1 else step if number else ""


def times(deltas: str, last: int | None) -> tuple[int, ...]:
    """Nominal times, the newest first; up to the first that cannot be read."""
    found: list[int] = []
    if last is None or not deltas:
        return ()
    for group in deltas.split(","):
        step, number = _read(group)
        try:
            delta = int(step, 16)
        except ValueError:
            break
        for _ in range(min(number, MAX_HISTORY - len(found))):
            last -= delta
            if not MIN_MS <= last <= MAX_MS:
                return tuple(found)
            found.append(last)
    return tuple(found)


def notes_of(deltas: str, room: int) -> str:
    """Notes that hold nothing else, in at most ``room`` characters; the oldest are left out where
    that is too few.
    """
    if len(deltas) + _AROUND > room:
        deltas = shortened(deltas, room - _AROUND)
    return f'{_OPENS}{deltas}"}}' if deltas else ""


def alone_in(notes: str) -> str | None:
    """The text in notes that hold nothing else; ``None`` where they do."""
    deltas = notes[_BEGINS:-2]
    return deltas if notes == f'{_OPENS}{deltas}"}}' and '"' not in deltas else None


def beside_others(found: Any) -> str:
    """The text in notes that hold more; empty where it is none. A record that cannot be read stops
    no entry.
    """
    return found if isinstance(found, str) and _is_text(found) else ""


def shortened(deltas: str, room: int) -> str:
    """The text without the oldest, in at most ``room`` characters."""
    return (
        deltas if len(deltas) <= room else deltas[: max(deltas.rfind(",", 0, max(room + 1, 0)), 0)]
    )
