"""What only the leader does with the schedule: each call names its term, and is refused once that is over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..actors import BEAT
from ..errors import without_values
from ..uuids import drawn
from .changes import line_of
from .records import (
    ANY_REVISION,
    Advance,
    Bad,
    Mark,
    Stored,
    Term,
    check_term,
    due_of,
    entries_of,
    score_of,
)
from .redis_values import text
from .store import Store

#: Bytes of texts in one reply to the leader, about: several times that is taken in the server while it is made.
_REPLY = 16_000_000


class LeaderStore(Store):
    """The store of the beat that leads."""

    #: When the next backfill is due, epoch milliseconds, as :meth:`peek` has seen it last; ``None``: there is none.
    backfill_due: int | None = None

    def peek(self, term: Term, now: int, limit: int, revision: bytes = b"") -> tuple[list[Stored], int | None]:
        """What is due at ``now`` (epoch ms), and when the next entry comes if nothing is.

        From both ends: the oldest, the newest, the second oldest, and so on; at most ``limit``, of large ones fewer.
        Raises Refrozen where the freezes are of another revision.
        """
        keys = self.keys
        where = (keys.leader, keys.due, keys.entries, keys.state, keys.meta, keys.of_backfills.due)
        reply = self._run("schedule/peek", where, (*term, now, limit, _REPLY, revision))
        check_term(reply)
        self.backfill_due = score_of(reply[0])
        if len(reply) > 2:
            return entries_of(reply[1:]), None
        next_entry = reply[1]
        return [], score_of(next_entry[1]) if next_entry else None

    def commit(
        self,
        term: Term,
        now: int,
        advances: Sequence[Advance],
        deadlines: str = "",
        revision: bytes = ANY_REVISION,
    ) -> list[bool | str]:
        """Advance entries. Returns for each whether it was advanced (``True``), was changed since it was read
        (``False``), or why the broker refused its messages.

        Parameters:
            deadlines: the key of those that advances have.
            revision: of the freezes that they were planned under.

        Raises:
            Refrozen: the freezes are of another revision, so nothing was advanced.
        """
        keys = self.keys
        where = [keys.leader, keys.due, keys.entries, keys.state, keys.meta]
        lists: dict[str, int] = {}
        new_deadlines = [advance.deadlines for advance in advances]
        place: int | str = ""
        encoded = ""
        if any(new_deadlines):
            place = lists.setdefault(deadlines, 6)
            encoded = json.dumps(new_deadlines)
        args: list[Any] = [*term, now, drawn(), place, encoded, revision]
        for name, guard, state, score, commands, ranges, _ in advances:
            args += (name, f"{due_of(score)} {len(commands) + len(ranges)} {guard}", state or "")
            for command, target, value in (*commands, *ranges) if ranges else commands:
                if command == "publish":
                    args += (f"publish {target}", value)
                else:
                    args += (f"{command} {lists.setdefault(target, len(where) + len(lists) + 1)}", value)
        reply = self._run("schedule/commit", where + list(lists), args)
        check_term(reply)
        return [text(result) if isinstance(result, bytes) else result == 1 for result in reply[1:]]

    def quarantine(self, term: Term, bad: Sequence[Bad]) -> list[bool]:
        """Set these entries aside, unless they were changed since they were read; tells of each whether it was."""
        keys = self.keys
        errors = {error for _, error, _ in bad}
        line = line_of(BEAT, "quarantined", without_values(errors.pop()) if len(errors) == 1 else "")
        args: list[Any] = [*term, line.change]
        for stored, _, record in bad:
            args += (stored.name, stored.definition or b"", stored.state or b"", record)
        where = (keys.leader, keys.due, keys.entries, keys.state, keys.quarantine)
        reply = self._run("schedule/quarantine", (*where, keys.changes, keys.changed), args)
        check_term(reply)
        return [done == 1 for done in reply[1:]]

    def mark(self, term: Term) -> Mark:
        """Mark the database of the schedule with something that no other one holds, not even a copy of it."""
        value = drawn()
        self.remember("mark", value, term)
        return Mark(self.keys.meta, "mark", value.encode())

    def bears(self, mark: Mark) -> bool:
        """Whether this mark is still there; the next leader's takes its place."""
        return bool(self._client.hget(mark.key, mark.field) == mark.value)
