"""Freezes: selected entries do not fire for a time, without an edit of these entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Annotated, ClassVar, NamedTuple

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.fields import Model
from .._base.ids import random_hex
from .._base.json_values import dumps, loads
from .._base.public import public
from .._base.times import to_ms
from .changes import Change
from .entry import Entry
from .model import NAME, TAG
from .selection import PATTERN, Selection

#: Length of the mark at the beginning of a revision, in characters. A revision and its successor
#: have the same mark.
_MARK = 8


@public
class Freeze(Model, frozen=True):
    """Time in which some entries do not fire.

    At its end, each entry's misfire policy decides on the runs that were due meanwhile.

    Parameters:
        id: its id, for ``thaw``.
        name, tag, task: which entries it selects: a pattern of names, a tag, a pattern of tasks.
        since: time at which it was made.
        until: time at which it ends unless it is thawed before.
        note: reason.
        actor: name of the person or program that made it.
        thawed: time at which it was ended early; ``None`` if it was not.
    """

    forms: ClassVar[str] = "an object"

    id: Annotated[str, NAME]
    name: Annotated[str, PATTERN]
    tag: Annotated[str | None, TAG]
    task: Annotated[str, PATTERN]
    since: datetime
    until: datetime
    note: str = ""
    actor: str = ""
    thawed: datetime | None = None

    @property
    def selection(self) -> Selection:
        """Selection of the entries that do not fire."""
        return Selection(self.name, self.tag, self.task)

    @property
    def end(self) -> datetime:
        """Time at which the freeze ends, or was ended early."""
        return self.thawed or self.until

    def holds(self, now: int) -> bool:
        """Whether the freeze is still active at ``now`` (epoch ms)."""
        return self.thawed is None and to_ms(self.until) > now


class Freezes(NamedTuple):
    """Freezes of a schedule: active ones, and ended ones that the beat has not handled yet.

    They are stored as ``text``: a revision, ``|``, and JSON. The revision begins with a mark that
    the next revisions keep. So a text with another mark shows that the server has lost the earlier
    freezes.
    """

    all: tuple[Freeze, ...] = ()
    text: bytes = b""

    @classmethod
    def of(cls, text: bytes) -> Freezes:
        """Return the freezes of a stored text; none if the text cannot be read."""
        # Anybody may have written the text.
        with suppress(TypeError, ValueError, OverflowError, CorruptEntry):
            _, _, freezes_json = text.partition(b"|")
            return cls(tuple(map(Freeze.decode, loads(freezes_json))), text)
        return cls((), text)

    def replaced(self, *freezes: Freeze) -> Freezes:
        """Return the next revision, with these freezes."""
        stored = [freeze.encode() for freeze in freezes]
        # The first revision makes a new mark, and each later one keeps the mark.
        mark = self.revision[:_MARK].decode(errors="replace") or random_hex(4)
        return Freezes(freezes, f"{mark}{random_hex(8)}|{dumps(stored)}".encode())

    def lost(self, before: Freezes, now: int) -> list[Freeze]:
        """Return the freezes of ``before`` that the server has lost and that would still be active.

        Parameters:
            before: the freezes as they were read before.
            now: epoch ms.
        """
        # A freeze is missing on purpose if this text was made from the earlier one.
        is_successor = self.revision[:_MARK] == before.revision[:_MARK]
        if is_successor:
            return []
        ids = {freeze.id for freeze in self.all}
        return [freeze for freeze in before.holding(now) if freeze.id not in ids]

    @property
    def revision(self) -> bytes:
        """Beginning of the stored text, up to the first ``|``: another one after each change."""
        return self.text.partition(b"|")[0]

    def until(self, now: int, entry: Entry | None = None) -> int | None:
        """Return the latest end, in epoch ms, of the freezes that are active at ``now``.

        ``None`` if there are none.

        Parameters:
            entry: entry that the freezes must select; with ``None``, only freezes that select all
                entries count.
        """
        ends = [
            to_ms(freeze.until)
            for freeze in self.holding(now)
            if freeze.selection.is_all or (entry is not None and freeze.selection.covers(entry))
        ]
        return max(ends, default=None)

    def holding(self, now: int) -> list[Freeze]:
        """Return the freezes that are still active at ``now`` (epoch ms)."""
        return [freeze for freeze in self.all if freeze.holds(now)]


def recorded(lines: Iterable[Change]) -> Iterator[Freeze]:
    """Yield the freezes in lines of the record of changes, the newest first.

    Parameters:
        lines: the newest first, so that the thaw of a freeze comes before the freeze.
    """
    # Id of a freeze -> time of its thaw.
    thawed: dict[str | None, datetime] = {}
    for change in lines:
        # The record has the fields of a freeze as the new values of a change.
        fields = {field: after for field, _, after in change.fields if after is not None}
        id_ = fields.get("id")
        if change.action == "thawed":
            thawed[id_] = change.at
        elif change.action == "frozen":
            stored = {
                "tag": None,
                "since": change.at,
                "note": change.note,
                "actor": change.actor,
                "thawed": thawed.get(id_),
                **fields,
            }
            with suppress(InvalidEntry):  # A line that cannot be read is left out.
                yield Freeze.decode(stored)
