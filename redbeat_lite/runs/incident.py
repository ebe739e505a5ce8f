"""An incident: as people see it, and as it is stored in Redis."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Self, get_args

from .._base.public import public
from .._base.times import from_ms
from ..store.json_values import dumps, loads_as

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

#: Kind and name of the entry, empty for the whole schedule. One incident per key is open at most.
Key = tuple[Kind, str]

#: Seconds after the end of a lease until a schedule without a leader is an incident. Each stand-by
#: asks for the lease when it ends.
LEADERLESS = 10.0

#: Most characters of an incident's text.
_MAX_TEXT = 300


@public
@dataclass(frozen=True, slots=True)
class Incident:
    """An expectation that does not hold, from when to when.

    Parameters:
        id: the same in hooks, commands and pages.
        kind: which expectation does not hold.
        entry: name of the entry; ``None`` for the whole schedule.
        since: when it was opened.
        text: the trouble in words.
        count: how often it was reported so far.
        acknowledged: the note of the person who has taken it up; ``None``: nobody has.
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
    """Stored form of an incident. Instants are in epoch milliseconds.

    Parameters:
        kind, name: its key.
        times: how often it was reported while it was open.
        nominal: nominal time of the run that opened it. Earlier runs cannot close it.
        announced: whether the hooks have heard that it is open.
        generation: generation of the entry. It changes when an entry is removed and added again.
        the others: as for :class:`Incident`.
    """

    kind: Kind
    name: str
    since: int
    text: str
    times: int = 1
    nominal: int | None = None
    note: str | None = None
    announced: bool = False
    until: int | None = None
    generation: str = ""

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    def field(self) -> str:
        """Field in the hash of incidents, another one after the close than while it is open.

        The same key may open again before the hooks have heard of the close.
        """
        if self.until is None:
            return f"{self.kind}:{self.name}"
        return f"{self.since}:{self.kind}:{self.name}"

    @property
    def id(self) -> str:
        """Eight digits, which follow from the key and the start."""
        text = f"{self.kind}:{self.name}\0{self.since}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def encode(self) -> str:
        """Return the JSON. Instants are texts, because Lua would round them."""
        stored = {
            "text": self.text[:_MAX_TEXT],
            "count": self.times,
            "told": self.announced,
            "generation": self.generation,
            "since": str(self.since),
        }
        if self.note:
            stored["note"] = self.note
        if self.nominal is not None:
            stored["nominal"] = str(self.nominal)
        if self.until is not None:
            stored["until"] = str(self.until)
        return dumps(stored)

    @classmethod
    def decode(cls, field: str, raw: bytes) -> Self:
        """Read a field of the hash.

        Raises:
            one of :data:`redbeat_lite.store.redis_values.UNREADABLE`: it is not an incident.
        """
        kind, _, name = field.lstrip("0123456789").removeprefix(":").partition(":")
        if kind not in KINDS:
            raise ValueError(f"{kind[:30]} is no kind of incident")
        stored = loads_as(dict, raw)
        nominal = stored.get("nominal")
        until = stored.get("until")
        case = cls(
            kind,
            name,
            int(stored["since"]),
            str(stored["text"]),
            int(stored["count"]),
            None if nominal is None else int(nominal),
            stored.get("note"),
            bool(stored.get("told")),
            None if until is None else int(until),
            stored.get("generation", ""),
        )
        case.shown()  # raises if an instant is out of range
        return case

    def shown(self) -> Incident:
        """Return the incident as people see it."""
        return Incident(
            self.id,
            self.kind,
            self.name or None,
            from_ms(self.since),
            self.text,
            self.times,
            self.note,
            None if self.until is None else from_ms(self.until),
        )
