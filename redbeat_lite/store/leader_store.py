"""Calls that only the leader makes. Each passes the leader's term, and fails if that is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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

# Move of an entry into the quarantine. If it is a config entry whose state was the fault, the
# leader has to store it again, so make the leader read its configuration again.
# Values $1 to $4: name, expected definition, expected state, record for the quarantine.
_QUARANTINE = """
    IF HGET entries $1 IS $2
    IF HGET state $1 IS $3
    HSET quarantine $1 $4
    ZREM due $1
    HDEL entries $1
    HDEL state $1
    NAMED $1
    HSET meta synced quarantined
"""

# End of a sync of the configuration. Values $1 to $3: the placeholder that was stored when the sync
# began, its stamp, and the record of refused entries.
_END_SYNC = """
    IF HGET meta synced IS $1
    HSET meta synced $2 refused $3
"""


class Peek(NamedTuple):
    """Due entries, as :meth:`LeaderStore.peek` reads them.

    Parameters:
        due: due entries in due order. While a freeze holds, no entry is due.
        first_due: epoch ms at which the first entry of all is due; ``None`` if no entry will fire.
            While a freeze holds, the end of the freeze.
        freeze: stored text of the last freeze or thaw; empty if there was none.
    """

    due: list[Stored]
    first_due: int | None
    freeze: bytes


class LeaderStore(Store):
    """The store of the beat that leads."""

    #: Due time of the next backfill in epoch ms, as the last :meth:`peek` has found it; ``None`` if
    #: there is none.
    backfill_due: int | None = None

    def peek(self, term: Term, now: int, limit: int) -> Peek:
        """Read the entries that are due at ``now`` (epoch ms).

        This also sets :attr:`backfill_due`. If more than ``limit`` entries are due, half of those
        returned are the oldest ones, and half are the newest ones, so that a backlog and new
        entries both make progress.

        Parameters:
            limit: maximum number of entries.

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
        first_due = score_of(first[1]) if first else None
        return Peek(entries_of(parts), first_due, freeze)

    def commit(
        self, term: Term, advances: Sequence[Advance], planned_at: int = IGNORES_FREEZE
    ) -> list[bool | str]:
        """Advance entries: write their next states and due times, and run their commands.

        Parameters:
            advances: at most one for each entry.
            planned_at: when the entries were planned, in epoch ms. By default, no freeze stops the
                commit.

        Returns:
            For each entry ``True`` if it was advanced, ``False`` if it was changed since it was
            read or its once-lock is taken, or why the broker refused its messages.

        Raises:
            Frozen: a freeze ends later than ``planned_at``, so nothing was advanced.
        """
        # Key that a command needs -> its place in ``others``, from 1.
        places: dict[str, int] = {}

        def place_of(key: str) -> int:
            """Return the place of a key, which is a new one if no command before needs the key."""
            return places.setdefault(key, len(places) + 1)

        packed = []
        for name, guard, state, score, commands in advances:
            packed_commands = []
            for kind, target, value in commands:
                # Put the place of a key instead of the key. "publish" sends to a channel, which is
                # no key.
                place: object = target
                if isinstance(target, tuple):
                    place = [place_of(key) for key in target]
                elif kind != "publish":
                    place = place_of(target)
                packed_commands.append((kind, place, value))
            # To the script, an empty state means that the entry is removed.
            packed.append(
                (packed_text(name), guard, state or "", stored_score(score), packed_commands)
            )
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
        """Quarantine entries, except those that were changed since they were read.

        Somebody may have mended these.

        Parameters:
            bad: the entries as read, with their errors and the texts to keep in the quarantine.

        Returns:
            for each entry, whether it was quarantined.
        """
        steps = []
        for stored, error, record in bad:
            values = (stored.name, stored.definition or b"", stored.state or b"", record)
            # The error may show the wrong value, which may be a secret.
            line = line_of(BEAT, "quarantined", without_values(error))
            steps.append(Step(_QUARANTINE, values, line))
        return self._edit(steps, term)

    def end_sync(self, placeholder: str, stamp: str, refused: Refused, term: Term) -> None:
        """Store the stamp of a sync, and the record of the entries that the leader refused.

        A process that edits a config entry during the sync replaces ``placeholder``. Then this does
        nothing. The next renewal misses the stamp, and the leader syncs again.

        The stamp is the last write of the sync, because a fail-over undoes the last writes. So a
        fail-over that undoes a part of the sync undoes the stamp, too.

        Parameters:
            placeholder: text that was stored in place of the stamp when the sync began.
        """
        self._edit([Step(_END_SYNC, (placeholder, stamp, refused.encode()))], term)

    def mark(self, term: Term) -> bytes:
        """Mark the database with a new random value, and return this value.

        The publisher calls this before it asks :meth:`is_marked` for the mark over the broker's
        connection. If the mark is there, the broker is this database. An older copy of this
        database does not have the mark, because its value is new.
        """
        value = random_hex()
        self.remember("mark", value, term)
        return value.encode()

    def is_marked(self, mark: bytes, client: Any = None) -> bool:
        """Return whether a client finds the value of :meth:`mark`.

        If it does, the client uses the marked database. If it does not, the client uses another
        database, or another beat has become the leader and has written a mark of its own.

        Parameters:
            client: client of the broker; by default, the one of this store.
        """
        return bool((client or self._client).hget(self.keys.meta, "mark") == mark)
