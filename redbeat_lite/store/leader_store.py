"""Calls that only the leader makes. Each passes the leader's term, and fails if that is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from .._base.actors import BEAT
from .._base.ids import random_hex
from .._base.text import without_values
from ..entries.changes import Stored, line_of
from .records import (
    IGNORES_FREEZE,
    Advance,
    Bad,
    Refused,
    Term,
    check_term,
    entries_of,
    score_of,
    stored_score,
)
from .redis_values import text
from .scripts import packed_text
from .store import Store
from .transact import Step

# Move of an entry into the quarantine.
# Values $1 to $4: name, expected definition, expected state, record for the quarantine.
_SET_ASIDE = """
    IF HGET entries $1 IS $2
    IF HGET state $1 IS $3
    HSET quarantine $1 $4
    ZREM due $1
    HDEL entries $1
    HDEL state $1
    NAMED $1
"""

# End of a sync of the configuration. Values $1 to $3: the placeholder that was stored when the sync
# began, its stamp, and the record of refused entries.
_END_SYNC = """
    IF HGET meta synced IS $1
    HSET meta synced $2 refused $3
"""


class LeaderStore(Store):
    """The store of the beat that leads."""

    #: Due time of the next backfill in epoch ms, as the last :meth:`peek` has found it; ``None`` if
    #: there is none.
    backfill_due: int | None = None

    def peek(self, term: Term, now: int, limit: int) -> tuple[list[Stored], int | None, bytes]:
        """Return the entries that are due at ``now`` (epoch ms), or when the next entry is due.

        If more than ``limit`` entries are due, half of those returned are the oldest ones, and half
        are the newest ones, so that a backlog and new entries both make progress.

        Parameters:
            limit: maximum number of entries.

        Returns:
            three values: the due entries in due order; if no entry is due, the due time of the
            next one, else ``None``; and the stored text of the last freeze. The due time is
            ``None``, too, if no entry will become due. While a freeze holds, no entry is due, and
            the next due time is the end of the freeze.

        Raises:
            Lost: the term is over.
        """
        reply = self.backend.scripts.run(
            "schedule/peek",
            self.keys,
            backfills_due=self.keys.of_backfills.due,
            token=term.token,
            term=term.number,
            now=now,
            limit=limit,
        )
        check_term(reply)  # The reply is [0] if the term is over.
        # Scores are texts. ``first`` has the name and the score of the entry that is due first, or
        # is empty if no entry is stored.
        backfill_score, first, parts, freeze = reply
        self.backfill_due = score_of(backfill_score)
        due = entries_of(parts)
        if due or not first:
            return due, None, freeze
        return [], score_of(first[1]), freeze

    def commit(
        self, term: Term, advances: Sequence[Advance], planned_at: int = IGNORES_FREEZE
    ) -> list[bool | str]:
        """Advance entries: write their next states and due times, and run their commands.

        Parameters:
            advances: at most one for each entry.
            planned_at: when the entries were planned, in epoch ms.

        Returns:
            For each entry ``True`` if it was advanced, ``False`` if it was changed since it was
            read, or why the broker refused its messages.

        Raises:
            Frozen: a freeze ends later than ``planned_at``, so nothing was advanced.
        """
        # Key that a command writes -> its place among the script's keys, from 1.
        places: dict[str, int] = {}
        packed = []
        for name, guard, state, score, commands in advances:
            # Commands for the script, with a number in place of each key.
            placed = []
            for kind, target, value in commands:
                # "publish" sends to a channel, which is no key.
                place = target if kind == "publish" else places.setdefault(target, len(places) + 1)
                placed.append((kind, place, value))
            # To the script, an empty state means that the entry is removed.
            packed.append((packed_text(name), guard, state or "", stored_score(score), placed))
        # If the reply is lost, the client sends this call again, with the same id (``call``). The
        # script recognises the id, and returns the same reply.
        reply = self.backend.scripts.run(
            "schedule/commit",
            self.keys,
            others=list(places),
            token=term.token,
            term=term.number,
            call=random_hex(),
            planned_at=planned_at,
            advances=msgspec.msgpack.encode(packed),
        )
        check_term(reply)
        # The first item of the reply is about the term. Then each entry has 1, 0, or a text that
        # says why the broker refused its messages.
        return [text(result) if isinstance(result, bytes) else result == 1 for result in reply[1:]]

    def quarantine(self, term: Term, bad: Sequence[Bad]) -> list[bool]:
        """Quarantine entries that have not changed since they were read.

        Parameters:
            bad: the entries as read, with their errors and the texts to keep in the quarantine.

        Returns:
            for each entry, whether it was quarantined.
        """
        steps = []
        for stored, error, record in bad:
            values = (stored.name, stored.definition or b"", stored.state or b"", record)
            line = line_of(BEAT, "quarantined", without_values(error))
            steps.append(Step(_SET_ASIDE, values, line))
        return self._edit(steps, term)

    def end_sync(self, placeholder: str, stamp: str, refused: Refused, term: Term) -> None:
        """Store the stamp of a sync, and the record of the entries that the leader refused.

        If ``placeholder`` is no longer stored, this does nothing. The stamp is the last write of
        the sync, because a fail-over undoes the last writes. So a fail-over that undoes a part of
        the sync undoes the stamp, too.

        Parameters:
            placeholder: text that was stored in place of the stamp when the sync began. A process
                that removes a config entry meanwhile replaces it.
        """
        self._edit([Step(_END_SYNC, (placeholder, stamp, refused.encode()))], term)

    def mark(self, term: Term) -> bytes:
        """Write a new random value into the database, and return it.

        A client that reads this value uses the same database. An older copy of the database does
        not have the value.
        """
        value = random_hex()
        self.remember("mark", value, term)
        return value.encode()

    def is_marked(self, mark: bytes, client: Any = None) -> bool:
        """Return whether a client reads this mark, and so uses the same database as this store.

        ``False``, too, if another beat has become the leader and has written a mark of its own.

        Parameters:
            client: client of the broker; by default, the one of this store.
        """
        return bool((client or self._client).hget(self.keys.meta, "mark") == mark)
