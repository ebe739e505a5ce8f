"""The keys of the model server: values of six types, each with or without an instant of expiry."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from enum import Enum

Hash = dict[bytes, bytes]
List = deque[bytes]
Set = dict[bytes, None]
Key = bytes

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class CommandError(Exception):
    """Error reply to one command; its text begins with the error's code."""


class Refusal(Enum):
    """Why a server takes no writes, as it says it."""

    READ_ONLY = "READONLY You can't write against a read only replica."
    NO_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."


class SortedSet:
    """Members with scores, in the order of score and member."""

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self._ordered: list[tuple[float, bytes]] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def put(self, member: bytes, score: float) -> bool:
        """Store a member; return whether it is new."""
        is_new = member not in self.scores
        self.scores[member] = score
        self._ordered = None
        return is_new

    def remove(self, member: bytes) -> bool:
        """Remove a member; return whether it was there."""
        if member not in self.scores:
            return False
        del self.scores[member]
        self._ordered = None
        return True

    @property
    def ordered(self) -> list[tuple[float, bytes]]:
        """All pairs of score and member, in their order."""
        if self._ordered is None:
            self._ordered = sorted((score, member) for member, score in self.scores.items())
        return self._ordered

    def rank(self, member: bytes) -> int | None:
        if member not in self.scores:
            return None
        return bisect_left(self.ordered, (self.scores[member], member))


class Stream:
    """Lines in the order of their ids; an id is a pair of milliseconds and a number."""

    #: Lines in one node. The server trims whole nodes where the length is given with ``~``.
    NODE = 100

    def __init__(self) -> None:
        self.lines: list[tuple[tuple[int, int], list[bytes]]] = []
        self.last = (0, 0)

    def __len__(self) -> int:
        return len(self.lines)

    def append(self, now: int, fields: list[bytes]) -> bytes:
        """Add a line under the next id; return the id."""
        self.last = max((now, 0), (self.last[0], self.last[1] + 1))
        self.lines.append((self.last, fields))
        return b"%d-%d" % self.last

    def trim(self, length: int, *, is_about: bool) -> None:
        """Drop the oldest lines beyond a length."""
        surplus = max(len(self.lines) - length, 0)
        if is_about:
            surplus -= surplus % self.NODE
        del self.lines[:surplus]


Value = bytes | Hash | List | Set | SortedSet | Stream

NAMES: dict[type, str] = {
    bytes: "string",
    dict: "hash",
    deque: "list",
    SortedSet: "zset",
    Stream: "stream",
}


class Members(dict[bytes, None]):
    """A set. It is a class of its own, so that its type differs from that of a hash."""


NAMES[Members] = "set"


def _copied(value: Value) -> Value:
    """Return a copy of a value that does not change with it."""
    if isinstance(value, SortedSet):
        members = SortedSet()
        members.scores = value.scores.copy()
        return members
    if isinstance(value, Stream):
        stream = Stream()
        stream.lines = value.lines.copy()
        stream.last = value.last
        return stream
    return copy(value)


class Database:
    """Keys with their values.

    Parameters:
        now_us: returns the time of the server in epoch microseconds.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.now_us = now_us
        self._values: dict[Key, Value] = {}
        self._expires: dict[Key, int] = {}
        #: Called with a list and the values that are pushed to it.
        self.note_pushed: Callable[[Key, Sequence[bytes]], None] = lambda _key, _values: None
        #: Why the server takes no writes; ``None``: it does.
        self.refusal: Refusal | None = None

    @property
    def now(self) -> int:
        """The time of the server in epoch milliseconds."""
        return self.now_us() // 1000

    def all_keys(self) -> Iterator[Key]:
        """All keys that have not expired, in the order of their creation."""
        return (key for key in list(self._values) if self.find(key) is not None)

    def find(self, key: Key) -> Value | None:
        """Return the value of a key, whatever its type."""
        expires = self._expires.get(key)
        if expires is not None and self.now_us() // 1000 > expires:
            self.delete(key)
        return self._values.get(key)

    def kind(self, key: Key) -> str:
        """Return the name of a key's type, or ``none``."""
        value = self.find(key)
        return "none" if value is None else NAMES[type(value)]

    def get(self, key: Key, kind: type) -> Value | None:
        """Return the value of a key that is of this type; raise CommandError if it is of another one."""
        value = self.find(key)
        if value is not None and type(value) is not kind:
            raise CommandError(WRONG_TYPE)
        return value

    def create(self, key: Key, kind: type) -> Value:
        """Return the value of a key of this type, which is made empty if it does not exist."""
        value = self.get(key, kind)
        if value is None:
            value = self._values[key] = kind()
        return value

    def put(self, key: Key, value: Value) -> None:
        """Store a value in place of another one and its expiry."""
        self._values[key] = value
        self._expires.pop(key, None)

    def delete(self, key: Key) -> bool:
        """Remove a key; return whether it was there."""
        self._expires.pop(key, None)
        return self._values.pop(key, None) is not None

    def drop_empty(self, key: Key) -> None:
        """Remove a key whose last member was removed."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, (bytes, Stream)) and not value:
            self.delete(key)

    def expire_at(self, key: Key, instant: int) -> bool:
        """Let a key expire at an instant in epoch ms; return whether the key exists."""
        if self.find(key) is None:
            return False
        if instant <= self.now:
            self.delete(key)
        else:
            self._expires[key] = instant
        return True

    def expiry(self, key: Key) -> int | None:
        """The instant in epoch ms at which a key expires."""
        return self._expires.get(key)

    def copy(self) -> tuple[dict[Key, Value], dict[Key, int]]:
        """A copy of everything, for :meth:`restore`."""
        return {key: _copied(value) for key, value in self._values.items()}, self._expires.copy()

    def restore(self, copied: tuple[dict[Key, Value], dict[Key, int]]) -> None:
        """Go back to a copy."""
        self._values, self._expires = copied

    def clear(self) -> None:
        """Remove all keys."""
        self._values.clear()
        self._expires.clear()
