"""Entries in Redis: reading them, as :mod:`.reading` has it, and writing edits.

What only the leader does is in :mod:`.leader_store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from ..errors import CorruptEntry, UnsupportedFormat
from .changes import Line, together
from .json_values import dumps, loads, loads_as
from .keys import FREEZING, UNDERSTOOD
from .reading import Reading
from .refused import Refused
from .replies import text
from .stored import PAGE, Edit, Stored, Term, check_term, chunks, due_of

#: How often an edit is tried over when somebody else changed the entry at the same moment. An entry of 50 ms can lose
#: this race a few times in a row, not fifty times.
TRIES = 50


class Store(Reading):
    """Reads and writes entries under one prefix."""

    def put(self, edits: Iterable[Edit], term: Term | None = None) -> list[bool]:
        """Make these edits, 1,000 in a round trip; tells of each whether it was made, and records those that were.

        Raises:
            UnsupportedFormat: a newer redbeat_lite uses this prefix; nothing was written.
            Lost: the term is over; what is left of the edits was not written.
        """
        keys = self.keys
        where = (keys.due, keys.entries, keys.state, keys.quarantine, keys.meta, keys.leader)
        done: list[bool] = []
        for chunk in chunks(edits, PAGE):
            lines = together(edit.line for edit in chunk)
            number = {change: place for place, change in enumerate(lines, 1)}
            whose = bytes(number[edit.line.change] if edit.line else 0 for edit in chunk)
            args: list[Any] = [keys.wake, UNDERSTOOD, *(term or ("", "")), whose, len(lines)]
            args += chain.from_iterable(lines.items())
            for edit in chunk:
                state = edit.state or ""
                args += (edit.name, edit.expected or b"", state, edit.definition or "", due_of(edit.score))
            reply = self._run("schedule/put", (*where, keys.changes, keys.changed, keys.new_reply()), args)
            check_term(reply)
            _check_format(reply)
            done += [result == "1" for result in text(reply[1])]
        return done

    def rewrite(
        self,
        names: Iterable[str | bytes],
        decide: Callable[[Stored], Sequence[Edit]],
        term: Term | None = None,
        at_once: int = PAGE,
    ) -> list[str | bytes]:
        """Make the edits that ``decide`` finds for what is stored; asks it anew about those that changed meanwhile;
        returns the names of those it has edited, ``at_once`` in a script; raises :class:`Lost` as :meth:`put`."""
        made: list[str | bytes] = []
        for chunk in chunks(names, at_once):
            left: Sequence[str | bytes] = chunk
            for _ in range(TRIES):
                edits = [edit for stored in self.read(left) for edit in decide(stored)]
                tried = [*zip(edits, self.put(edits, term), strict=True)]
                made += [edit.name for edit, done in tried if done]
                left = [edit.name for edit, done in tried if not done]
                if not left:
                    break
        return made

    def quarantined(self, limit: int | None = None) -> dict[str, dict[str, Any]]:
        """What is in quarantine, or about ``limit`` of it: name -> ``error``, ``definition``, ``state``, ``at``."""
        where = self.keys.quarantine
        found = self._client.hscan(where, count=limit)[1] if limit else self._client.hgetall(where)
        return {text(name): quarantined_in(raw) for name, raw in found.items()}

    def discard(self, name: str, line: Line) -> bool:
        """Forget an entry that is in quarantine; tells whether it was, and records it with this line."""
        keys = (self.keys.quarantine, self.keys.changes, self.keys.changed, self.keys.new_reply())
        return bool(self._run("schedule/discard", keys, (name, line.change)))

    def record(self, line: Line, names: Sequence[str]) -> None:
        """Write a line into the record of changes about what is no edit of an entry, with at most 1,000 names."""
        keys = (self.keys.changes, self.keys.new_reply())
        self._run("schedule/note_change", keys, (line.change, *names))

    def refused(self) -> Refused:
        """What the last beat to read its configuration has refused of it."""
        return Refused.decode(self._client.hget(self.keys.meta, "refused") or b"")

    def config_names(self, owner: str) -> set[str]:
        """The config entries that ``owner`` stored last."""
        raw = self._client.hget(self.keys.meta, f"config:{owner}")
        return {name for name in loads_as(list, raw) if isinstance(name, str)}

    def owners(self) -> set[str]:
        """Those who have stored config entries."""
        fields = map(text, self._client.hkeys(self.keys.meta))
        return {field.removeprefix("config:") for field in fields if field.startswith("config:")}

    def add_config_names(self, owner: str, names: Iterable[str]) -> None:
        """Remember that these are ``owner``'s, too.

        Do so before they are stored: one that were stored without being known as the configuration's would never be
        removed.
        """
        known, names = self.config_names(owner), set(names)
        if not names <= known:
            self.set_config_names(owner, known | names)

    def freezes(self) -> bytes:
        """The text of the freezes, of :class:`~redbeat_lite.entries.freezes.Freezes`; empty if there never was one."""
        return self._client.hget(self.keys.meta, "freezes") or b""

    def set_freezes(self, before: bytes, after: bytes, line: Line | None = None) -> bool:
        """Store the text of the freezes and wake the beat, if it is still the one that was read; tells whether. Raises
        UnsupportedFormat where the beat that leads does not know them."""
        told = ("", "") if line is None else (line.change, dumps(line.fields))
        keys = (self.keys.meta, self.keys.changes, self.keys.leader)
        reply = self._run("schedule/freezes", keys, (before, after, self.keys.wake, *told, FREEZING))
        if reply == -1:
            raise UnsupportedFormat("the beat that leads is of an earlier version, and would send what is frozen")
        return bool(reply)

    def due_at(self, score: int, offset: int, limit: int) -> list[bytes]:
        """The names of at most so many of the entries with this very due time, epoch ms, in their order."""
        return [*self._client.zrangebyscore(self.keys.due, score, score, offset, limit)]

    def set_config_names(self, owner: str, names: Iterable[str], term: Term | None = None) -> None:
        """Remember which config entries ``owner`` has stored."""
        self.remember(f"config:{owner}", dumps(sorted(names)), term)

    def remember(self, field: str, value: str, term: Term | None) -> None:
        """Set a field of ``meta``."""
        args = (*(term or ("", "")), field, value)
        check_term(self._run("schedule/remember", (self.keys.leader, self.keys.meta), args))


def quarantined_in(raw: bytes) -> dict[str, Any]:
    """What a record in quarantine says, as :meth:`Store.quarantined` has it."""
    try:
        record = loads(raw)
    except CorruptEntry as exc:
        return {"error": f"quarantine record: {exc}"}
    return record if isinstance(record, dict) else {"error": "quarantine record is no object"}


def _check_format(reply: Any) -> None:
    if reply[0] == -1:
        raise UnsupportedFormat(
            f"the schedule in Redis has format {reply[1]}; this redbeat_lite reads up to {UNDERSTOOD}: update it"
        )
