"""Entries that are selected together, and what is done with all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from .._base.public import public
from ..entries import lifecycle
from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.selection import Selection, is_pattern
from ..entries.state import EntryState, storable_note
from ..entries.stored_entry import removal
from ..store.changes import Line, line_of
from ..store.records import AT_ONCE, PAGE, Edit, Stored, by_due, chunks
from ..store.redis_values import text, texts
from .reader import Reader
from .run_now import run_by_hand
from .writer import Writer

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
        parked: look at entries that will not fire by themselves, instead of those that are due
            first.
        failed: only entries of which a run has failed since the last one that succeeded.

    Attributes:
        total: number of stored entries.
        freezes: all stored freezes.
        looked_at: number of entries that the sample looks at.
        complete: whether no further entry can belong to the selection.
    """

    def __init__(
        self, selection: Selection, reader: Reader, *, parked: bool = False, failed: bool = False
    ) -> None:
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


@public
@dataclass(frozen=True)
class Selected:
    """The entries of a selection that can be read, in due order; each call reads them anew.

    They are changed 250 in a script, with one line in the record of changes. What needs no change
    is left alone, so the same again does the rest of what was interrupted.

    Parameters:
        selection: which they are.
    """

    selection: Selection
    _reader: Reader
    _writer: Writer
    _names: Collection[str] | None = None

    def among(self, names: Collection[str]) -> Selected:
        """Narrow the selection to entries with these names, which are read 1,000 in a round trip.

        This has no effect on :meth:`sample`.
        """
        return replace(self, _names=frozenset(names))

    def __iter__(self) -> Iterator[Entry]:
        candidates = self.selection.among(self._stored())
        return filter(self.selection.covers, self._reader.readable(candidates))

    def _stored(self) -> Iterable[Stored]:
        """The stored entries whose names the selection allows, in due order."""
        store = self._reader.store
        pattern = self.selection.name
        if self._names is not None:
            return sorted(store.present(self._names), key=by_due)
        if pattern == "*":
            return store.pages()
        if not is_pattern(pattern):
            return store.present([pattern])
        return store.present(name for name in store.names() if self.selection.allows(name))

    def sample(self, *, parked: bool = False, failed: bool = False) -> Sample:
        """Return a sample, read at a bounded cost; see :class:`Sample`."""
        return Sample(self.selection, self._reader, parked=parked, failed=failed)

    def names(self) -> list[str]:
        """Their names."""
        return [entry.name for entry in self]

    def pause(self, note: str = "") -> list[str]:
        """Pause those that are not paused, as :meth:`Schedules.pause` does; returns their names."""
        told = storable_note(None, note)
        line = line_of(self._writer.who, "paused", told)
        return self._edit(
            lambda e: (
                e.known_state if e.known_state.paused else lifecycle.paused(e.known_state, told)
            ),
            line,
        )

    def resume(self, catch_up: bool = False) -> list[str]:
        """Resume those that are paused, as :meth:`Schedules.resume` does; returns their names."""
        return self._edit(
            partial(self._writer.resumed, catch_up=catch_up), line_of(self._writer.who, "resumed")
        )

    def remove(self, note: str = "") -> list[str]:
        """Remove them, as :meth:`Schedules.remove` does; returns their names."""
        return self._edit(
            lambda _: None, line_of(self._writer.who, "removed", storable_note(None, note))
        )

    def run_now(self, note: str = "") -> dict[str, str]:
        """Publish an extra task of each, as :meth:`Schedules.run_now` does; returns names with ids
        of tasks.

        Raises:
            ConfigOwned: as there; nothing was sent.
            kombu.exceptions.OperationalError: the broker cannot be reached. Some may be sent; the
                record of changes has them.
        """
        return run_by_hand(self._reader, self._writer.who, [*self], {}, storable_note(None, note))

    def _edit(self, change: Callable[[Entry], EntryState | None], line: Line) -> list[str]:
        """Bring entries into the state that ``change`` says; ``None`` removes, and the very same is
        no edit.
        """

        def edits(stored: Stored) -> list[Edit]:
            entry = self._writer.readable(stored)
            if entry is None or not self.selection.covers(entry):
                return []
            before, entry.state = entry.state, change(entry)
            if entry.state is None:
                return [removal(stored, line)]
            return (
                []
                if entry.state is before
                else [self._writer.write(entry, stored.state, None, line)]
            )

        names = [entry.name for entry in self if change(entry) is not entry.state]
        return texts(self._reader.store.rewrite(names, edits, at_once=AT_ONCE))
