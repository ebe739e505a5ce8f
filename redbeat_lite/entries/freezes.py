"""Freezes: what keeps selected entries from firing for a time, and edits none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.ids import random_hex
from .._base.public import public
from .._base.times import from_ms, to_ms
from ..store.changes import Change
from ..store.json_values import dumps, loads
from .entry import Entry
from .selection import Selection

#: Characters of a revision by which it is known as one that came after another.
_MARK = 8


@public
class Freeze(NamedTuple):
    """A time in which some entries do not fire.

    At its end, each entry's misfire policy decides on the runs that were due meanwhile.

    Parameters:
        id: by which it is thawed.
        name, tag, task: which entries: patterns of names and of tasks, and one of their tags.
        since, until: when it was made, and when it ends unless it is thawed.
        note, actor: why, and who made it.
        thawed: when it was ended early; ``None``: it was not.
    """

    id: str
    name: str
    tag: str | None
    task: str
    since: datetime
    until: datetime
    note: str = ""
    actor: str = ""
    thawed: datetime | None = None

    @property
    def selection(self) -> Selection:
        return Selection(self.name, self.tag, self.task)

    @property
    def end(self) -> datetime:
        return self.thawed or self.until

    def holds(self, now: int) -> bool:
        """Whether it has not ended at ``now`` (epoch ms)."""
        return self.thawed is None and to_ms(self.until) > now


class Freezes(NamedTuple):
    """All freezes of a schedule: those that hold, and those of which the end is still to be seen
    to.

    They are stored as ``text``: a revision, ``|``, and JSON. The revision begins with a mark that
    the next ones keep: under another one, what was there was lost.
    """

    all: tuple[Freeze, ...] = ()
    text: bytes = b""

    @classmethod
    def of(cls, text: bytes) -> Freezes:
        """Those of a text; none where it is garbage."""
        with suppress(InvalidEntry, TypeError, ValueError, OverflowError, CorruptEntry):
            return cls(tuple(map(_decoded, loads(text.partition(b"|")[2]))), text)
        return cls((), text)

    def replaced(self, *freezes: Freeze) -> Freezes:
        """The next revision, which has these."""
        stored = [[to_ms(v) if isinstance(v, datetime) else v for v in each] for each in freezes]
        mark = self.revision[:_MARK].decode(errors="replace") or random_hex(4)
        return Freezes(freezes, f"{mark}{random_hex(8)}|{dumps(stored)}".encode())

    def lost(self, before: Freezes, now: int) -> list[Freeze]:
        """Those of ``before`` that are in force at ``now`` (epoch ms), and which nobody has ended:
        they were lost.
        """
        known = {each.id for each in self.all}
        is_next = self.revision[:_MARK] == before.revision[:_MARK]
        if is_next:
            return []
        return [freeze for freeze in before.holding(now) if freeze.id not in known]

    @property
    def revision(self) -> bytes:
        return self.text.partition(b"|")[0]

    def until(self, now: int, entry: Entry | None = None) -> int | None:
        """When the last of those ends that hold an entry, or all there are, at ``now``; ``None``:
        none. Epoch ms.
        """
        ends = [
            to_ms(freeze.until)
            for freeze in self.holding(now)
            if freeze.selection.is_all or (entry is not None and freeze.selection.covers(entry))
        ]
        return max(ends, default=None)

    def holding(self, now: int) -> list[Freeze]:
        """The freezes that have not ended at ``now`` (epoch ms)."""
        return [freeze for freeze in self.all if freeze.holds(now)]


def recorded(lines: Iterable[Change]) -> Iterator[Freeze]:
    """Those that the record of changes tells of, by its lines, both from the newest on."""
    thawed: dict[str | None, datetime] = {}
    for change in lines:
        told: dict[str, Any] = {
            field: after for field, _, after in change.fields if after is not None
        }
        if change.action == "thawed":
            thawed[told.get("id")] = change.at
        elif change.action == "frozen":
            with suppress(TypeError, ValueError, LookupError):
                until, end = datetime.fromisoformat(told.pop("until")), thawed.get(told["id"])
                told = {"tag": None, "note": change.note, "actor": change.actor, **told}
                yield Freeze(**told, since=change.at, until=until, thawed=end)


def _decoded(stored: list[Any]) -> Freeze:
    id, name, tag, task, since, until, note, actor, thawed = stored
    times = from_ms(since), from_ms(until)
    return Freeze(
        id, *Selection.of(name, tag, task), *times, note, actor, thawed and from_ms(thawed)
    )
