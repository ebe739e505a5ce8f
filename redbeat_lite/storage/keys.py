"""The data model: every key of the schedule, and what it holds; ``once`` and ``pipeline`` have ``keys`` of their own.

All keys begin with ``{p}``. This is the prefix in braces, as in ``{redbeat-lite}:due``, or a prefix
that has braces at its end, as in ``myapp:{beat}:due``. So Redis Cluster puts them in one hash slot,
and a script may use them together.

====================  =======  ======================================================================================
key                   type     holds
====================  =======  ======================================================================================
``{p}:due``           zset     entry name -> due time, whole epoch milliseconds; ``+inf`` for an entry that will not
                               fire by itself (paused, disabled, finished). Every stored entry has a score, so one
                               ``ZRANGE`` lists all of them in due order.
``{p}:entries``       hash     name -> definition, versioned JSON (:mod:`redbeat_lite.entries.definition`)
``{p}:state``         hash     name -> state, compact text (:mod:`redbeat_lite.entries.state`)
``{p}:leader``        hash     ``token``, ``term``, ``host``, ``pid``, ``since``, ``format``, the highest that it
                               understands, ``report`` (JSON, at each renewal); lives as long as the leader's lease
``{p}:beats``         zset     token of a beat (``host:pid:random:owner``) -> when its next sign of life is due, in
                               epoch milliseconds of the server; lives for an hour after the last one
``{p}:meta``          hash     ``format``; ``term``, the last term given out; ``clock``, the leader's last wall-clock
                               reading; ``ticked``, the last sign of life of any leader's loop, in epoch milliseconds
                               of the server; ``config:<owner>`` -> JSON list of that owner's config entries;
                               ``refused``, JSON of what the leader has refused of its configuration, until it or the
                               next leader reads its own anew (:mod:`redbeat_lite.storage.records`);
                               ``removed``, not empty: config entries were removed by hand, and the leader has not put
                               them back yet; ``commit``, the id of the leader's last commit and the reply to it;
                               ``zones``, JSON list of the time zones by which entries are planned; ``ahead``, not
                               empty: a clock reading by which some are that is ahead of the leader's; ``mark``, by
                               which the leader knows this database again over its connection to the broker;
                               ``feed``, the id up to which a leader has read the ends of runs; ``freezes``, the text of
                               :class:`redbeat_lite.entries.freezes.Freezes`; ``defined``, drawn anew whenever a
                               definition is written, by which the leader knows that none has changed
``{p}:quarantine``    hash     name -> JSON of the error, the definition and the state that could not be used
``{p}:calendars``     hash     name of a calendar -> a text of its name with its revision, its last date and its days
``{p}:backfills:…``            ``due``, ``entries``, ``state``, ``quarantine`` of backfills by their ids, as above, in
                               the form of :mod:`redbeat_lite.storage.stored_backfill`
``{p}:changes``       stream   the record of changes: the last 10,000 lines, about, each of what one call has done
                               (:mod:`redbeat_lite.storage.changes`)
``{p}:changed``       hash     name -> the last change of this entry, with the version and the generation that it left;
                               of a removed one, too, until there are more than 10,000 of those, or about as many as
                               there are entries: then any of them may be dropped
``{p}:reply:<id>``    string   what became of the entries of one call that wrote some, for a minute: who lost the reply
                               sends the same call again, and is given the same
``{p}:wake``          channel  something changed that a waiting beat should look at
====================  =======  ======================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..settings import key_root
from ..uuids import drawn

#: Version of everything above, and that from the first freeze on: a beat that does not know freezes would send
#: what is frozen. A process refuses to touch a schedule whose number is higher than the highest that it understands.
FORMAT = 1
FREEZING = UNDERSTOOD = 2


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
        """A key that keeps the reply to one call."""
        return self.reply(drawn())

    def reply(self, call: str) -> str:
        """The key that keeps the reply to one call."""
        return f"{self.prefix}:reply:{call}"

    @property
    def prefix(self) -> str:
        """The beginning of all keys, for example ``"{redbeat-lite}"``; :meth:`of` takes it, too."""
        return self.leader.removesuffix(":leader")

    @property
    def of_backfills(self) -> Keys:
        """Those of the schedule of backfills, which is one of its own, but for its leader."""
        own = ("due", "entries", "state", "quarantine", "changed")
        return replace(self, **{part: f"{self.prefix}:backfills:{part}" for part in own})
