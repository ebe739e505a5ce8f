"""The data model: every key of the schedule, what it holds, and what type it has.

Locks, pipelines and records of runs have keys of their own, which other modules describe. All keys
begin with ``{p}``. This is the prefix in braces, as in ``{redbeat-lite}:due``, or a prefix that
has braces at its end, as in ``myapp:{beat}:due``. So Redis Cluster puts them in one hash slot, and
a script may use them together.

``{p}:due`` (sorted set)
    name of an entry -> due time in whole epoch ms; ``+inf`` for an entry that will not fire by
    itself, because it is paused, disabled or finished. Every stored entry has a score, so one
    ``ZRANGE`` lists all of them in due order.
``{p}:entries`` (hash)
    name -> definition, versioned JSON (:mod:`redbeat_lite.entries.model`)
``{p}:state`` (hash)
    name -> state, compact text (:mod:`redbeat_lite.entries.state`)
``{p}:leader`` (hash, expires with the leader's lease)
    ``token``, ``term``, ``host``, ``pid`` and ``since`` of the leader; ``report``, JSON that each
    renewal writes
``{p}:beats`` (sorted set, expires an hour after the last sign of life)
    token of a beat (``host:pid:random:owner``) -> time from which it counts as silent, in epoch ms
    of the server: its last sign of life if it leads, else the end of the lease that it waits for
``{p}:meta`` (hash)
    - ``format``: number of the format of the schedule
    - ``term``: number of the last term
    - ``ticked``: last sign of life of any leader's loop, in epoch ms of the server
    - ``commit``: id of the leader's last commit, and the reply to it
    - ``config:<owner>``: JSON list of the names of that owner's config entries
    - ``refused``: JSON of :class:`redbeat_lite.store.records.Refused`, until a leader reads its
      configuration again
    - ``synced``: stamp of the leader's last sync of its configuration; another text while a sync
      runs, after another process has stored or removed a config entry, and after an entry was
      quarantined or discarded
    - ``pauses``: random text that every pause and resumption replaces, so that the leader reads
      again which config entries are paused
    - ``freeze``: text of the last freeze (:mod:`redbeat_lite.entries.freeze`)
    - ``zones``: name of the time zone that all entries were planned in; after a change of the zone,
      another text until all entries have been rescheduled
    - ``set_back``: when the server's clock was found to be set back, in epoch ms, until all entries
      have been rescheduled
    - ``mark``: random text. If the leader reads it through its connection to the broker, the broker
      uses this database
    - ``feed``: id of the last end of a run that a leader has read
    - ``announced``: id of the last news of an incident that hooks have handled
``{p}:quarantine`` (hash)
    name -> JSON of the error, and of the definition and state that could not be used
``{p}:calendars`` (hash)
    name of a calendar -> text of its name with its revision, its last date and its days
``{p}:backfills:due``, ``:state``, ``:quarantine`` (as above)
    backfills by their ids; ``:state`` holds the whole backfill
    (:mod:`redbeat_lite.entries.backfill`)
``{p}:changes`` (stream)
    record of changes, about the last 10,000 lines, one per call
    (:mod:`redbeat_lite.entries.changes`)
``{p}:reply:<id>`` (string, expires after a minute)
    reply to one call that has written entries. A client that has lost the reply sends the call
    again and gets the same reply.
``{p}:wake`` (channel)
    message to the waiting beat that something has changed
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import ResponseError

from ..settings import key_root
from .redis_values import text

#: Type of each key that exists once, by its name after the prefix.
TYPES = {
    "due": "zset",
    "entries": "hash",
    "state": "hash",
    "leader": "hash",
    "beats": "zset",
    "meta": "hash",
    "quarantine": "hash",
    "calendars": "hash",
    "changes": "stream",
    "backfills:due": "zset",
    "backfills:entries": "hash",
    "backfills:state": "hash",
    "backfills:quarantine": "hash",
    "runs:feed": "stream",
    "runs:incidents": "hash",
    "runs:news": "stream",
    "runs:deadlines": "zset",
    "runs:failures": "hash",
    "runs:alive": "zset",
    "once:index": "zset",
    "once:fence": "string",
    "once:workers": "hash",
    "guard:index": "zset",
    "pipelines": "zset",
    "ended-runs": "zset",
}

#: Type of the keys that exist once per entry, lock or task, by the beginning of their names.
_FAMILIES = {
    "runs:of:": "zset",
    "once:lock:": "hash",
    "once:wait:": "zset",
    "once:parked:": "hash",
    "guard:": "hash",
    "turns:": "zset",
    "reply:": "string",
}


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
    wake: str

    @classmethod
    def of(cls, prefix: str) -> Keys:
        """Return the keys under ``prefix``, for example ``"redbeat-lite"``."""
        return cls(*(f"{key_root(prefix)}:{part}" for part in cls.__slots__))

    def reply(self, call: str) -> str:
        """Return the key for the reply to the call with this id."""
        return f"{self.prefix}:reply:{call}"

    @property
    def prefix(self) -> str:
        """Beginning of all keys, for example ``"{redbeat-lite}"``; :meth:`of` accepts it, too."""
        return self.leader.removesuffix(":leader")

    @property
    def failures(self) -> str:
        """Key of the entries' failures in a row (:mod:`redbeat_lite.runs.run_store`)."""
        return f"{self.prefix}:runs:failures"

    @property
    def of_backfills(self) -> Keys:
        """Keys of the backfills, which are a schedule of their own with the same leader."""
        own = ("due", "entries", "state", "quarantine")
        return replace(self, **{part: f"{self.prefix}:backfills:{part}" for part in own})


class ForeignKey(ResponseError):
    """One of our keys has a foreign type, so another program uses the key.

    Parameters:
        key: full name of the key.
        found: type of the stored key.
        expected: type that this package gives the key.
    """

    def __init__(self, key: str, found: str, expected: str) -> None:
        super().__init__(key, found, expected)
        self.key = key
        self._text = (
            f"{key} is a {found}, not a {expected}, so another program uses this key. "
            "Delete the key, or choose another redbeat_lite_key_prefix"
        )

    def __str__(self) -> str:
        return self._text


def check_types(client: Any, root: str, others: Iterable[str] = ()) -> None:
    """Raise ForeignKey if another program uses one of our keys. This takes one round trip.

    Beats check the keys from time to time, because a command finds a foreign key only when it uses
    this key.

    Parameters:
        root: the beginning of all keys, such as ``{redbeat-lite}``.
        others: keys of ours to check besides those in ``TYPES``, such as a key that was foreign
            before.
    """
    error = _first_foreign(client, [*(f"{root}:{name}" for name in TYPES), *others])
    if error is not None:
        raise error


def find_foreign_key(client: Any, command: Sequence[Any], exc: Exception) -> ForeignKey | None:
    """Return an error that names the key, if a command failed because another program uses our key.

    ``None`` if the command failed for another reason.

    Parameters:
        command: the command with its arguments, as it was sent.
        exc: the server's error, which names no key.
    """
    if "WRONGTYPE" not in str(exc):
        return None
    keys = command[1:2]  # Most commands have one key, which follows their name.
    if command[0] == "EVALSHA":
        # EVALSHA <digest of the script> <count of keys> <key> <key> … <argument> …
        count = command[2]
        keys = command[3 : 3 + count]
    return _first_foreign(client, map(text, keys))


def _first_foreign(client: Any, keys: Iterable[str]) -> ForeignKey | None:
    """Return the error for the first key with a foreign type; ``None`` if there is no such key.

    Keys that are not ours are ignored.
    """
    expected_types = {key: _type_of(key) for key in keys}
    own_keys = [key for key, expected in expected_types.items() if expected]
    if not own_keys:
        return None
    pipe = client.pipeline(transaction=False)
    for key in own_keys:
        pipe.type(key)
    for key, reply in zip(own_keys, pipe.execute(), strict=True):
        stored_type = text(reply)
        # "none" is the type of a key that does not exist.
        if stored_type not in (expected_types[key], "none"):
            return ForeignKey(key, stored_type, expected_types[key])
    return None


def _type_of(key: str) -> str:
    """Return the type that we give a key; empty if the key is not ours."""
    # All our keys begin with a prefix in braces and a colon.
    _, _, name = key.partition("}:")
    if name in TYPES:
        return TYPES[name]
    for beginning, kind in _FAMILIES.items():
        if name.startswith(beginning):
            return kind
    return ""
