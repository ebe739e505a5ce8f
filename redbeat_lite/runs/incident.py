"""An incident, as people see it, and as it lies in Redis while it is open."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Self, get_args

from ..instants import from_ms
from ..public import public
from ..storage.json_values import dumps, loads_as

Kind = Literal[
    "missed",
    "not_consumed",
    "late",
    "too_long",
    "failed",
    "paused",
    "no_success",
    "quarantined",
    "cannot_publish",
    "behind",
    "nobody_records",
    "no_leader",
    "unread",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: What makes an incident the only one of its kind: the kind, and the name of the entry, empty for the whole schedule.
Key = tuple[Kind, str]

#: Seconds after the end of a lease at which somebody should lead again: each stand-by asks when it ends.
LEADERLESS = 10.0

#: Characters of what is said of one.
_MAX_TEXT = 300


@public
@dataclass(frozen=True, slots=True)
class Incident:
    """An expectation that does not hold, from when to when.

    Parameters:
        id: the same wherever it is told, however often.
        kind: what does not hold.
        entry: name of the entry; ``None`` where it is the whole schedule.
        since: when it was opened.
        text: what is wrong, in words.
        count: how often it was found so far.
        acknowledged: the note of whoever has taken it up; ``None``: nobody has.
        until: when it was closed; ``None`` while it is open.
    """

    id: str
    kind: Kind
    entry: str | None
    since: datetime
    text: str
    count: int = 1
    acknowledged: str | None = None
    until: datetime | None = None


class Case(NamedTuple):
    """An incident as it is stored. Instants are epoch milliseconds.

    Parameters:
        kind, name: its key.
        times: how often it was found.
        nominal: nominal time of the run that it was opened for; none before it can close it.
        told: whether the hooks were told that it is open.
        generation: of the entry; one that was removed and added is another.
        the others: as for :class:`Incident`.
    """

    kind: Kind
    name: str
    since: int
    text: str
    times: int = 1
    nominal: int | None = None
    note: str | None = None
    told: bool = False
    until: int | None = None
    generation: str = ""

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    def field(self) -> str:
        """Under which it is stored: another one once it is closed, as it may open again before all have heard of it."""
        return f"{self.kind}:{self.name}" if self.until is None else f"{self.since}:{self.kind}:{self.name}"

    @property
    def id(self) -> str:
        """Eight digits, which follow from the key and the beginning."""
        return hashlib.sha256(f"{self.kind}:{self.name}\0{self.since}".encode()).hexdigest()[:8]

    def encode(self) -> str:
        """JSON. Instants are texts: Lua, which changes some fields, would round them."""
        instants = {"since": self.since, "nominal": self.nominal, "until": self.until}
        stored = {"text": self.text[:_MAX_TEXT], "count": self.times, "told": self.told, "generation": self.generation}
        if self.note:
            stored["note"] = self.note
        return dumps(stored | {name: str(ms) for name, ms in instants.items() if ms is not None})

    @classmethod
    def decode(cls, field: str, raw: bytes) -> Self:
        """What :meth:`encode` made; raises one of :data:`.streams.UNREADABLE` where it is something else."""
        kind, _, name = field.lstrip("0123456789").removeprefix(":").partition(":")
        if kind not in KINDS:
            raise ValueError(f"{kind[:30]} is no kind of incident")
        stored = loads_as(dict, raw)
        nominal, until = (None if stored.get(each) is None else int(stored[each]) for each in ("nominal", "until"))
        since, times = int(stored["since"]), int(stored["count"])
        from_ms(since), from_ms(until or 0)
        note, told, generation = stored.get("note"), bool(stored.get("told")), stored.get("generation", "")
        return cls(kind, name, since, str(stored["text"]), times, nominal, note, told, until, generation)

    def shown(self) -> Incident:
        """The same for people."""
        until = None if self.until is None else from_ms(self.until)
        since, entry = from_ms(self.since), self.name or None
        return Incident(self.id, self.kind, entry, since, self.text, self.times, self.note, until)
