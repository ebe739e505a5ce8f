"""One entry with what is recorded of it, read together: in three round trips, however much that is."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..entries.entry import Entry
from ..entries.fields import is_name
from ..entries.freezes import Freezes
from ..public import public
from ..runs.run import Run
from ..runs.store import rows_in
from ..storage.changes import Change
from ..storage.reading import Asked
from ..storage.scripts import checked
from .change_log import Scan, kept_change
from .reader import Reader, there
from .run_history import RunHistory, Wanted


@public
class Record(NamedTuple):
    """An entry, and what is recorded of it.

    Parameters:
        entry: with its state and its last change.
        runs: what became of its occurrences, the newest first.
        changes: who changed it, the newest first.
        freezes: all that is stored of them, as :meth:`Schedules.upcoming` takes it.
    """

    entry: Entry
    runs: list[Run]
    changes: list[Change]
    freezes: Freezes


class Found(NamedTuple):
    """What was read of a name: a :class:`Record`, but for the entry where none is stored; its last change, as far as it
    is kept with it; what was found in the record of changes; and the replies to what else was asked."""

    entry: Entry | None
    runs: list[Run]
    changes: list[Change]
    freezes: Freezes
    kept: Change | None
    lines: list[Change]
    replies: list[Any]


def read_one(reader: Reader, name: str, runs: int, scan: Scan, *asked: Asked) -> Found:
    """Read an entry, its last runs, and the record of changes.

    Raises EntryNotFound, as no entry can have this name, or CorruptEntry.

    Parameters:
        runs: how many at most.
        asked: what else to read, in the first round trip.
    """
    there(name, is_name(name) or None)
    history, own = RunHistory(reader), scan.asking
    stored, raw, frozen, replies = reader.store.read_with_change(name, history.asking(name), *own, *asked)
    (rows,), now, freezes = *rows_in(checked(replies)[0]), Freezes.of(frozen)
    entry = None if stored.definition is None else reader.whole_of(stored, raw, freezes, rows)
    told = history.of_rows(name, entry, rows, now, Wanted.of(None, None, None, runs))
    lines, kept = scan.read(replies[1 : 1 + len(own)]), kept_change(name, raw)
    return Found(entry, told, scan.of_entry(lines, kept), freezes, kept, lines, replies[1 + len(own) :])
