"""The data model: every key of the schedule and what it holds.

Locks, pipelines and records of runs have keys of their own, in ``keys`` of their rooms. All keys
begin with ``{p}``. This is the prefix in braces, as in ``{redbeat-lite}:due``, or a prefix that
has braces at its end, as in ``myapp:{beat}:due``. So Redis Cluster puts them in one hash slot, and
a script may use them together.

``{p}:due`` (sorted set)
    name of an entry -> due time in whole epoch ms; ``+inf`` for an entry that will not fire by
    itself, because it is paused, disabled or finished. Every stored entry has a score, so one
    ``ZRANGE`` lists all of them in due order.
``{p}:entries`` (hash)
    name -> definition, versioned JSON (:mod:`redbeat_lite.entries.definition`)
``{p}:state`` (hash)
    name -> state, compact text (:mod:`redbeat_lite.entries.state`)
``{p}:leader`` (hash, expires with the leader's lease)
    ``token``, ``term``, ``host``, ``pid`` and ``since`` of the leader; ``format``, the highest
    that it understands; ``report``, JSON that each renewal writes
``{p}:beats`` (sorted set, expires an hour after the last sign of life)
    token of a beat (``host:pid:random:owner``) -> time of its next sign of life, in epoch ms of the
    server
``{p}:meta`` (hash)
    - ``format``: version of the schedule
    - ``term``: number of the last term
    - ``clock``: last reading of the leader's wall clock
    - ``ticked``: last sign of life of any leader's loop, in epoch ms of the server
    - ``commit``: id of the leader's last commit, and the reply to it
    - ``config:<owner>``: JSON list of the names of that owner's config entries
    - ``refused``: JSON of :class:`redbeat_lite.storage.records.Refused`, until a leader reads its
      configuration again
    - ``removed``: not empty if config entries were removed by hand, until the leader restores them
    - ``pauses``: random, and changed by every pause and resumption, so that the leader reads which
      config entries are paused
    - ``freezes``: text of :class:`redbeat_lite.entries.freezes.Freezes`
    - ``zones``: JSON list of the time zones that entries were planned by
    - ``ahead``: clock reading, if entries were planned by a clock that was ahead of the leader's
    - ``mark``: random; by it the leader recognises this database through its connection to the
      broker
    - ``feed``: id up to which a leader has read the ends of runs
``{p}:quarantine`` (hash)
    name -> JSON of the error, and of the definition and state that could not be used
``{p}:calendars`` (hash)
    name of a calendar -> text of its name with its revision, its last date and its days
``{p}:backfills:due``, ``:entries``, ``:state``, ``:quarantine`` (as above)
    backfills by their ids (:mod:`redbeat_lite.storage.stored_backfill`)
``{p}:changes`` (stream)
    record of changes, about the last 10,000 lines, one per call
    (:mod:`redbeat_lite.storage.changes`)
``{p}:changed`` (hash)
    name -> last change of this entry, with the version and generation after it. Those of removed
    entries are kept, too. If they are more than 10,000, or about as many as there are entries, any
    of them may be dropped.
``{p}:reply:<id>`` (string, expires after a minute)
    reply to one call that has written entries. A client that has lost the reply sends the call
    again and gets the same reply.
``{p}:wake`` (channel)
    message to the waiting beat that something has changed
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..settings import key_root
from ..uuids import drawn

#: Version of a schedule without freezes.
FORMAT = 1

#: Version of a schedule from its first freeze on. A beat that does not know freezes would send
#: frozen entries.
FREEZING = 2

#: Highest version that this process understands. It does not touch a schedule with a higher one.
UNDERSTOOD = FREEZING


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of the keys and the channel under one prefix."""

    due: str
    entries: str
    state: str
    leader: str
    beats: str
    meta: str
    quarantine: str
    calendars: str
    changes: str
    changed: str
    wake: str

    @classmethod
    def of(cls, prefix: str) -> Keys:
        """Name the keys under ``prefix``, for example ``"redbeat-lite"``."""
        return cls(*(f"{key_root(prefix)}:{part}" for part in cls.__slots__))

    def new_reply(self) -> str:
        """Return a new key for the reply to one call."""
        return self.reply(drawn())

    def reply(self, call: str) -> str:
        """Return the key for the reply to the call with this id."""
        return f"{self.prefix}:reply:{call}"

    @property
    def prefix(self) -> str:
        """Beginning of all keys, for example ``"{redbeat-lite}"``; :meth:`of` accepts it, too."""
        return self.leader.removesuffix(":leader")

    @property
    def of_backfills(self) -> Keys:
        """Keys of the backfills, which are a schedule of their own with the same leader."""
        own = ("due", "entries", "state", "quarantine", "changed")
        return replace(self, **{part: f"{self.prefix}:backfills:{part}" for part in own})
