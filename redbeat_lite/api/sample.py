"""Sample of a selection, read at a bounded cost for a page."""

from __future__ import annotations

from collections.abc import Iterator

from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.selection import Selection, is_pattern
from ..storage.replies import text
from ..storage.stored import PAGE, chunks
from .reader import Reader

#: Most names that a sample looks at. They take the server some 5 ms.
NAMES = 20_000

#: Most entries that a sample reads. They take the server some 10 ms, and the reader some 60 ms.
READ = 2_000


class Sample:
    """Entries of a selection among those that are due first, in due order.

    A sample looks at 20,000 names and reads 2,000 entries at most. If the pattern without the stars
    at its end is the name of an entry, the sample has this entry, whenever it is due. Iteration
    reads the entries, 1,000 in a round trip.

    Parameters:
        parked: look at entries that will not fire by themselves, instead of those that are due first.
        failed: only entries of which a run has failed since the last one that succeeded.

    Attributes:
        total: number of stored entries.
        freezes: all stored freezes.
        looked_at: number of entries that the sample looks at.
        complete: whether no further entry can belong to the selection.
    """

    def __init__(self, selection: Selection, reader: Reader, *, parked: bool = False, failed: bool = False) -> None:
        store = reader.store
        first = store.parked() if parked else 0
        most = READ if selection.name == "*" else NAMES
        self.total, freezes, (ranked,) = store.count_and_freezes(store.asking_names(first, most))
        self.freezes = Freezes.of(freezes)
        allowed = [name for name in ranked if selection.allows(name)]
        self.looked_at = len(ranked)
        if len(allowed) > READ:
            self.looked_at = ranked.index(allowed[READ])
        self.complete = first + self.looked_at >= self.total
        self._names = [text(name) for name in allowed[:READ]]
        whole_name = selection.name.rstrip("*")
        if whole_name and not is_pattern(whole_name) and whole_name not in self._names:
            self._names.insert(0, whole_name)
        self._selection = selection
        self._reader = reader
        self._failed = failed

    def __iter__(self) -> Iterator[Entry]:
        names = self._reader.runs.failed(self._names) if self._failed else self._names
        for chunk in chunks(names, PAGE):
            candidates = self._selection.among(self._reader.store.present(chunk))
            yield from filter(self._selection.covers, self._reader.readable(candidates))
