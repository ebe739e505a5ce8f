"""An incident, as people see it and as it is stored in Redis."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, Literal, Self, get_args

from msgspec import Meta, Struct, json
from msgspec.structs import replace

from .._base.json_values import dumps
from .._base.public import public
from .._base.times import to_ms

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


#: Aware datetime.
_Instant = Annotated[datetime, Meta(tz=True)]


@public
class Incident(Struct, frozen=True, array_like=True):
    """An expectation that was not met, and when.

    Parameters:
        kind: kind of the expectation that was not met.
        entry: name of the entry; ``None`` for the whole schedule.
        since: when the incident was opened.
        text: the trouble in words.
        count: how often it was reported so far.
        acknowledged: note of the person who has acknowledged it; ``None``: nobody has.
        until: when the incident was closed; ``None`` while it is open.
        nominal: nominal time (time by the schedule) of the last run that was reported, in epoch ms.
            Earlier runs cannot close the incident.
        generation: random text in the entry's state. It changes when the entry is removed and
            added again.
    """

    kind: Kind
    entry: str | None
    since: _Instant
    text: str
    count: int = 1
    acknowledged: str | None = None
    until: _Instant | None = None
    nominal: int | None = None
    generation: str = ""

    @property
    def key(self) -> Key:
        return self.kind, self.entry or ""

    @property
    def field(self) -> str:
        """Field of the incident in the hash of open incidents."""
        return f"{self.kind}:{self.entry or ''}"

    @property
    def id(self) -> str:
        """Id in hooks, commands and pages: eight hexadecimal digits of the key and the start."""
        return hashlib.sha256(f"{self.field}\0{to_ms(self.since)}".encode()).hexdigest()[:8]

    def encode(self) -> str:
        """Return the JSON of this incident: a list of its fields. A long text is cut."""
        return dumps(replace(self, text=self.text[:_MAX_TEXT]))

    @classmethod
    def decode(cls, field: bytes, raw: bytes) -> Self:
        """Return a stored incident.

        Parameters:
            field: its :attr:`field`.
            raw: its JSON, as :meth:`encode` returns it.

        Raises:
            one of :data:`redbeat_lite.store.redis_values.UNREADABLE`: it is not an incident.
        """
        incident = json.decode(raw, type=cls)
        if incident.field.encode() != field:
            raise ValueError("the field is of another incident")
        return incident
