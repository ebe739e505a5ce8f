"""An incident, as people see it and as it is stored in Redis."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Self, get_args

from msgspec import json

from .._base.json_values import dumps
from .._base.public import public
from .._base.times import from_ms

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
]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: Kind of an incident, and name of its entry (empty for the whole schedule). At most one incident
#: with the same key is open.
Key = tuple[Kind, str]

#: Seconds from the end of the last leader's lease until the incident ``no_leader`` opens. A
#: stand-by beat, if there is one, has taken over by then.
LEADERLESS = 10.0

#: Maximum number of characters of an incident's text.
_MAX_TEXT = 300


@public
@dataclass(frozen=True, slots=True)
class Incident:
    """An expectation that was not met, and when.

    Parameters:
        id: id of the incident, in hooks, commands and pages.
        kind: kind of the expectation that was not met.
        entry: name of the entry; ``None`` for the whole schedule.
        since: when the incident was opened.
        text: the trouble in words.
        count: how often it was reported so far.
        acknowledged: note of the person who has acknowledged it; ``None``: nobody has.
        until: when the incident was closed; ``None`` while it is open.
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
    """Incident with all that Redis holds of it. Instants are in epoch milliseconds.

    Parameters:
        kind, name: key of the incident.
        times: how often it was reported while it was open.
        nominal: nominal time (time by the schedule) of the run that opened it. Earlier runs cannot
            close it.
        generation: random text in the entry's state. It changes when the entry is removed and
            added again.
        since, text, note, until: as for :class:`Incident`, where ``note`` is ``acknowledged``.
    """

    kind: Kind
    name: str
    since: int
    text: str
    times: int = 1
    nominal: int | None = None
    note: str | None = None
    until: int | None = None
    generation: str = ""

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    def field(self) -> str:
        """Field of the incident in the hash of open incidents."""
        return f"{self.kind}:{self.name}"

    @property
    def id(self) -> str:
        """Id of eight hexadecimal digits, derived from the key and the start."""
        text = f"{self.field}\0{self.since}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def encode(self) -> str:
        """Return the JSON of this incident: a list of its fields. A long text is cut."""
        return dumps(self._replace(text=self.text[:_MAX_TEXT], note=self.note or None))

    @classmethod
    def decode(cls, field: bytes, raw: bytes) -> Self:
        """Return a stored incident.

        Parameters:
            field: its :attr:`field`.
            raw: its JSON, as :meth:`encode` returns it.

        Raises:
            one of :data:`redbeat_lite.store.redis_values.UNREADABLE`: it is not an incident.
        """
        case = json.decode(raw, type=cls)
        case.shown()  # This raises if an instant is out of range.
        if case.field.encode() != field:
            raise ValueError("the field is of another incident")
        return case

    def shown(self) -> Incident:
        """Return the incident as people see it."""
        return Incident(
            id=self.id,
            kind=self.kind,
            entry=self.name or None,
            since=from_ms(self.since),
            text=self.text,
            count=self.times,
            acknowledged=self.note,
            until=None if self.until is None else from_ms(self.until),
        )
