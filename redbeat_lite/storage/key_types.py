"""The type of each of our keys, and the error for a key that another program uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.exceptions import ResponseError

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
    "changed": "hash",
    "backfills:due": "zset",
    "backfills:entries": "hash",
    "backfills:state": "hash",
    "backfills:quarantine": "hash",
    "backfills:changed": "hash",
    "runs:feed": "stream",
    "runs:incidents": "hash",
    "runs:closed": "stream",
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


class ForeignKey(ResponseError):
    """One of our keys has a type that we never give it, so another program uses the key.

    Parameters:
        key: its full name.
        found: the type that it has.
        expected: the type that we give it.
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
    """Raise ForeignKey if another program uses one of our keys. Takes one round trip.

    Parameters:
        root: the beginning of all keys, such as ``{redbeat-lite}``.
        others: keys that exist once per entry, lock or task, and are to be checked as well.
    """
    error = _first_foreign(client, [*(f"{root}:{name}" for name in TYPES), *others])
    if error is not None:
        raise error


def find_foreign_key(client: Any, command: Sequence[Any], exc: Exception) -> ForeignKey | None:
    """Return the error that names the key if a command failed because of the type of a key of ours.

    Parameters:
        command: the command with its arguments, as it was sent.
        exc: the error of the server, which names no key.
    """
    if "WRONGTYPE" not in str(exc):
        return None
    keys = command[3 : 3 + command[2]] if command[0] == "EVALSHA" else command[1:2]
    return _first_foreign(client, [text(key) for key in keys])


def _first_foreign(client: Any, keys: Sequence[str]) -> ForeignKey | None:
    """Return the error for the first of these keys that has a foreign type."""
    types = {key: expected for key in keys if (expected := _type_of(key))}
    pipe = client.pipeline(transaction=False)
    for key in types:
        pipe.type(key)
    found = pipe.execute() if types else []
    for (key, expected), reply in zip(types.items(), found, strict=True):
        if text(reply) not in (expected, "none"):
            return ForeignKey(key, text(reply), expected)
    return None


def _type_of(key: str) -> str | None:
    """Return the type that we give a key; ``None`` if the key is not ours."""
    _, _, name = key.partition("}:")
    if name in TYPES:
        return TYPES[name]
    for beginning, kind in _FAMILIES.items():
        if name.startswith(beginning):
            return kind
    return None
