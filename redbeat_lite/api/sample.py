"""Some entries of a selection for a bounded price, as a page shows them."""

from __future__ import annotations

from collections.abc import Iterator

from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.selection import Selection, is_pattern
from ..storage.replies import text
from ..storage.stored import PAGE, chunks
from .reader import Reader

#: Names that a sample looks at: they take the server some 5 ms.
NAMES = 20_000

#: Entries of these that it reads: they take the server some 10 ms, and the reader some 60 ms.
READ = 2_000


class Sample:
    """Entries of a selection among those that are due first, in due order.

    It looks at 20,000 names and reads 2,000 entries at most. An entry whose name is the pattern, but for stars at its
    end, is among them wherever it stands. The entries are read while they are iterated over, 1,000 in
    a round trip.

    Parameters:
        parked: look at entries that will not fire by themselves, instead of those that are due first.
        failed: only entries of which a run has failed since the last one that succeeded.

    Attributes:
        total: how many entries are stored.
        freezes: all that are stored.
        looked_at: how many entries it looks at.
        complete: whether no other entry can be one of the selection.
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
        own = selection.name.rstrip("*")
        if own and not is_pattern(own) and own not in self._names:
            self._names.insert(0, own)
        self._selection, self._reader, self._failed = selection, reader, failed

    def __iter__(self) -> Iterator[Entry]:
        names = self._reader.runs.failed(self._names) if self._failed else self._names
        for chunk in chunks(names, PAGE):
            candidates = self._selection.among(self._reader.store.present(chunk))
            yield from filter(self._selection.covers, self._reader.readable(candidates))
