"""Backfills as they are stored: what was asked for, how far each has come, and which ranges were sent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..errors import CorruptEntry
from ..public import public
from .json_values import dumps, loads, pack, unpack
from .replies import text
from .stored import Command, Term, check_term

if TYPE_CHECKING:
    from .store import Store

#: Merged ranges of nominal times, epoch ms, both ends included.
Ranges = Sequence[tuple[int, int]]


@public
@dataclass(frozen=True, slots=True)
class Backfill:
    """Occurrences of an entry that are sent late, or once more. Datetimes are aware.

    Parameters:
        id: short and random; empty where nothing was started.
        name: of the entry.
        start, end: the first and the last nominal time.
        max_active: how many may be out at once; ``None``: it goes by ``rate`` alone, messages a second.
        again: which time these are sent, from 0.
        note, actor, at: why, by whom and when it was started.
        generation: of the entry.
        total: how many occurrences there were to be sent when it was started.
        sent: how many were sent.
        paused: whether somebody stopped it for a while.
        ended: empty, ``"done"``, or that it was cancelled, and why.
        active: nominal times, epoch ms, of what is out and not known to have ended; for ``max_active``.
        cursor, feed: epoch ms from which on nothing is sent yet; up to which id the feed of ends was read.
    """

    id: str
    name: str
    start: datetime
    end: datetime
    max_active: int | None
    rate: float
    again: int
    note: str
    actor: str
    at: datetime
    generation: str
    total: int = 0
    sent: int = 0
    paused: bool = False
    ended: str = ""
    active: Sequence[int] = ()
    cursor: int = 0
    feed: str = "0-0"

    @property
    def left(self) -> int:
        """How many are still to be sent."""
        return 0 if self.ended == "done" else self.total - self.sent

    @property
    def runs(self) -> bool:
        """Whether the leader sends it."""
        return not self.paused and not self.ended

    @property
    def covers(self) -> str:
        """The field of the ranges that were sent."""
        return f"covered:{self.again}:{self.name}"


class BackfillStore:
    """Reads and writes the backfills of a schedule.

    Parameters:
        store: the schedule.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def _client(self) -> Any:
        return self._store.backend.client

    def all(self) -> dict[str, Backfill]:
        """Those that can be read, the oldest first; one round trip."""
        found = self._client.hgetall(self._store.keys.backfills)
        read = (_read(raw) for name, raw in found.items() if b":" not in name)
        return {each.id: each for each in sorted(filter(None, read), key=lambda each: each.at)}

    def read(self, known: Backfill) -> tuple[Backfill | None, Ranges]:
        """A backfill as it is by now, and the ranges of its entry that were sent under its ``again``.

        Raises:
            CorruptEntry: the ranges cannot be read.
        """
        raw, covered = self._client.hmget(self._store.keys.backfills, known.id, known.covers)
        generation, ranges = loads(covered) if covered else ("", [])
        return _read(raw), ranges if generation == known.generation else []

    def change(
        self,
        before: Backfill | None,
        after: Backfill,
        covered: Ranges | None = None,
        term: Term | None = None,
        commands: Sequence[Command] = (),
    ) -> bool | str:
        """Store a backfill that is still as it was read: ``False`` if it is not, and why its messages were refused.

        Parameters:
            covered: ranges that are sent with this; ``None``: have the leader look for what is to be sent.
            term: of the leader; ``None`` for anybody else.
            commands: messages, which are sent in the same step.

        Raises:
            Lost: the term is over, nothing was written.
        """
        keys, lists = self._store.keys, dict[str, int]()
        other = ("running", os.urandom(8).hex())
        if covered is not None:
            other = (after.covers, dumps([after.generation, covered]))
        args = [*(term or ("", "")), after.id, "" if before is None else _text(before), _text(after), *other]
        for command, target, value in commands:
            where = target if command == "publish" else lists.setdefault(target, len(lists) + 3)
            args += (command, where, value)
        reply = self._store.backend.scripts.run("schedule/exchange", [keys.backfills, keys.leader, *lists], args)
        check_term(reply)
        return text(reply[1]) if reply[0] == 3 else bool(reply[0] == 1)


def _text(backfill: Backfill) -> str:
    return dumps(pack(asdict(backfill), "backfill"))


def _read(raw: bytes | None) -> Backfill | None:
    """The backfill that is stored; ``None`` where there is none, or what cannot be read."""
    with suppress(CorruptEntry, TypeError):
        found = None if raw is None else Backfill(**unpack(loads(raw)))
        return found if found is None or (isinstance(found.at, datetime) and found.left >= 0) else None
    return None
