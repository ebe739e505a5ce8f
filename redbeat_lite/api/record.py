"""Record of an entry: the entry, its last runs and its last changes, read in three round trips."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._base.public import public
from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.model import is_name
from ..runs.run import Run
from ..runs.run_store import rows_in
from ..store.changes import Change
from ..store.scripts import checked
from ..store.store import Asked
from .change_log import kept_change
from .reader import Reader, not_found
from .run_history import RunHistory, RunQuery


@public
class Record(NamedTuple):
    """Entry with its last runs and changes.

    Parameters:
        entry: the entry with its state and its last change.
        runs: its last runs, the newest first.
        changes: its last changes, the newest first.
        freezes: all stored freezes, as :meth:`Schedules.upcoming` takes them.
    """

    entry: Entry
    runs: list[Run]
    changes: list[Change]
    freezes: Freezes


class StoredRecord(NamedTuple):
    """Stored values under the name of an entry.

    Parameters:
        entry: ``None`` if no entry of this name is stored.
        runs, freezes: as in :class:`Record`.
        kept: the last change, if it is stored with the entry.
        replies: replies to the further calls.
    """

    entry: Entry | None
    runs: list[Run]
    freezes: Freezes
    kept: Change | None
    replies: list[Any]


def read_record(reader: Reader, name: str, runs: int, *further: Asked) -> StoredRecord:
    """Read what is stored under the name of an entry: the entry, its last runs and last change.

    Parameters:
        runs: maximum number of runs.
        further: further calls for the first round trip.

    Raises:
        EntryNotFound: no entry can have this name.
        CorruptEntry: the stored entry cannot be read.
    """
    if not is_name(name):
        raise not_found(name)
    history = RunHistory(reader)
    stored, raw_change, raw_freezes, replies = reader.store.read_with_change(
        name, history.asking(name), *further
    )
    (rows,), now = rows_in(checked(replies)[0])
    freezes = Freezes.of(raw_freezes)
    entry = None
    if stored.definition is not None:
        entry = reader.whole_of(stored, raw_change, freezes)
        entry.read_rows = lambda: rows
    query = RunQuery.of(runs)
    last_runs = history.of_rows(name, entry, rows, now, query)
    return StoredRecord(entry, last_runs, freezes, kept_change(name, raw_change), replies[1:])
