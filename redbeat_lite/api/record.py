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
from .change_log import Scan, kept_change
from .reader import Reader, if_found
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
        runs, changes, freezes: as in :class:`Record`.
        kept: the last change, if it is stored with the entry.
        lines: the lines that the scan has read from the record of changes.
        replies: replies to the further calls.
    """

    entry: Entry | None
    runs: list[Run]
    changes: list[Change]
    freezes: Freezes
    kept: Change | None
    lines: list[Change]
    replies: list[Any]


def read_record(reader: Reader, name: str, runs: int, scan: Scan, *further: Asked) -> StoredRecord:
    """Read what is stored under the name of an entry: the entry, its last runs and last changes.

    Parameters:
        runs: most runs.
        scan: scan of the record of changes for lines of this entry.
        further: further calls for the first round trip.

    Raises:
        EntryNotFound: no entry can have this name.
        CorruptEntry: the stored entry cannot be read.
    """
    if_found(name, is_name(name) or None)
    history = RunHistory(reader)
    scans = scan.asking
    stored, raw_change, raw_freezes, replies = reader.store.read_with_change(
        name, history.asking(name), *scans, *further
    )
    (rows,), now = rows_in(checked(replies)[0])
    freezes = Freezes.of(raw_freezes)
    entry = None
    if stored.definition is not None:
        entry = reader.whole_of(stored, raw_change, freezes, rows)
    query = RunQuery.of(None, None, None, runs)
    last_runs = history.of_rows(name, entry, rows, now, query)
    after_scans = 1 + len(scans)
    lines = scan.read(replies[1:after_scans])
    kept = kept_change(name, raw_change)
    changes = scan.of_entry(lines, kept)
    return StoredRecord(entry, last_runs, changes, freezes, kept, lines, replies[after_scans:])
