"""Spread: what ``H`` stands for in a cron expression, and when a spread interval runs, by the entry's name alone; and
jitter, which spreads what is due at the same moment. Both are the same on every machine.

As Jenkins and croniter write it: ``H`` is one value of its field, ``H(0-5)`` one of a range, which may wrap, ``H/15``
and ``H(0-29)/10`` every so many from a first one on. A day of the month is one that each month has, unless a range is
given. The digest is our own: croniter's takes the same for all fields, which leaves most minutes of the day unused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Self

from ..errors import InvalidEntry
from .cron_text import DAY, HOUR, MINUTE, MONTH, SECOND, WEEKDAY, Field, Parser, split
from .rule import RuleSchedule

_WRITTEN = re.compile(r"(^|[\s,])h", re.IGNORECASE)
_ITEM = re.compile(r"h(?:\((\w+)-(\w+)\))?(?:/(\d+))?", re.ASCII)
_FIELDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


class SpreadSchedule(RuleSchedule):
    """A schedule that may leave it to the name of its entry when it runs: then ``spread`` is true.

    What it stands for is ``resolved``: None before an entry has it, and no part of what makes two schedules the same.
    """

    spread = False
    resolved: Any = None
    _name: str | None = None

    def of(self, name: str) -> Self:
        """The schedule as the entry of this name has it; what was kept in the store stays."""
        if not self.spread or self._name == name:
            return self
        is_kept = self._name is None and self.resolved is not None
        return self.as_kept(self.resolved if is_kept else self._resolve(name), name)

    def kept(self) -> dict[str, Any]:
        """What is stored beside what was written."""
        return {"resolved": self.resolved} if self.spread and self.resolved is not None else {}

    def as_kept(self, resolved: object, name: str | None = None) -> Self:
        """The schedule with what was stored beside it."""
        if not self.spread:
            return self
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, resolved=resolved, _name=name)
        return twin

    def _resolve(self, name: str) -> object:
        raise NotImplementedError

    def _told(self) -> Any:
        if self.resolved is None:
            hint = "when it runs goes by the entry's name: ask Entry(name, task, schedule).schedule"
            raise InvalidEntry("schedule", "the schedule of an entry", self, hint=hint)
        return self.resolved


def is_spread(expression: str) -> bool:
    """Whether a cron expression has an ``H`` in it."""
    return _WRITTEN.search(expression) is not None


@lru_cache(maxsize=2048)
def resolve(expression: str, seconds: str, name: str | None) -> str:
    """A cron expression with what each ``H`` stands for; raises InvalidEntry where one is malformed, or there are not
    as many fields as there should be.

    Parameters:
        name: of the entry; None for all that each may stand for, by which one can tell what is wrong with the others.
    """
    parser, texts = Parser(expression), split(expression, seconds)
    found = [
        ",".join(_chosen(part, field, parser, name) for part in text.split(","))
        for field, text in zip(_FIELDS, texts, strict=True)
    ]
    if len(expression.split()) == 5:
        return " ".join(found[1:])
    return " ".join(found if seconds == "first" else [*found[1:], found[0]])


def _chosen(part: str, field: Field, parser: Parser, name: str | None) -> str:
    if not part.startswith("h"):
        return part
    item = _ITEM.fullmatch(part)
    if item is None:
        parser.refuse(field, part, "H is written H, H/15, H(0-29) or H(0-29)/10")
    first, last = field.low, 28 if field is DAY else field.high  # no month has fewer days
    if item[1]:
        first, last = (parser.end(end, part, field) for end in item.group(1, 2))
    width = min(last - first + (1 if first <= last else 1 + field.size), field.size)
    step = min(int(item[3]), width) if item[3] else width
    if step == 0:
        parser.refuse(field, part, "a step is a number from 1 on")
    places = range(width) if name is None else range(drawn(f"{field.column}:{name}", step), width, step)
    values = [field.low + (first - field.low + place) % field.size for place in places]
    return f"{values[0]}-{values[-1]}/{places.step}" if len(values) > 1 else str(values[0])


def offset_ms(name: str, nominal_ms: int, jitter_ms: int, gap_ms: int | None = None) -> int:
    """How long after its nominal time an occurrence is due, in milliseconds.

    Drawn evenly from 0 to ``jitter_ms``, both included, out of the entry's name and the nominal time: a beat that takes
    over, a preview and a restart all find the same offset. The plan itself is not shifted. The offset stays below
    ``gap_ms``, that to the next occurrence, so none is due as late as the nominal time of the next.
    """
    highest = jitter_ms if gap_ms is None else min(jitter_ms, gap_ms - 1)
    if highest <= 0:
        return 0
    return drawn(f"{nominal_ms}:{name}", highest + 1)


def drawn(text: str, bound: int) -> int:
    """A number from 0 to below ``bound``, which is even over texts."""
    # Unlike hash(), the same in every process; 64 bits, so the remainder is even to within bound / 2**64.
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % bound
