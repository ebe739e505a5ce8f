"""Entries that are selected together, and what is done with all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

from ..clock import wall_ms
from ..entries import lifecycle
from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.selection import Selection
from ..entries.state import EntryState, storable_note
from ..entries.stored_entry import removal
from ..public import public
from ..runs.store import RunStore
from ..storage.changes import Line, line_of
from ..storage.replies import text, texts
from ..storage.stored import AT_ONCE, PAGE, Edit, Stored, by_due, chunks
from .reader import Reader
from .run_now import run_by_hand
from .writer import Writer

#: Freezes of which an entry may have the texts; where there are more, all entries are read.
_FREEZES = 10

#: Entries that are sorted here when their names are known; of more the pages are read, which are sorted already.
_FEW = 100_000


@public
@dataclass(frozen=True)
class Selected:
    """The entries of a selection that can be read, in due order; each call reads them anew.

    They are changed 250 in a script, with one line in the record of changes. What needs no change is left alone, so the
    same again does the rest of what was interrupted.

    Parameters:
        selection: which they are.
    """

    selection: Selection
    _reader: Reader
    _writer: Writer
    _names: Collection[str] | None = None

    def among(self, names: Collection[str]) -> Selected:
        """Those of them that have one of these names; no other entry is read, 1,000 in a round trip. It narrows what is
        iterated over and changed, not :meth:`search` and its like."""
        return replace(self, _names=frozenset(names))

    def __iter__(self) -> Iterator[Entry]:
        some = self._few()
        if some is None:
            some = self._reader.store.pages()
        return filter(self.selection.covers, self._reader.readable(self.selection.among(some)))

    def search(
        self, most: int, state: str = "", definition: str = "", *, enough: int = 100
    ) -> tuple[int, Freezes, Iterator[Entry]]:
        """How many entries are stored, the freezes, and those that are meant among so many that are due first; where
        the selection has a beginning of names, among so many of these, by name.

        Parameters:
            state: a pattern of Lua that the stored text of its state has.
            definition: a text that its stored definition has.
            enough: how many are wanted, about: these take two round trips at most.
        """
        names, texts = self.selection.texts
        meant, where = [(names, [definition, *texts])], self.selection.beginning
        parts = self._reader.store.search(most, where, state, meant, enough)
        first = next(parts)
        return first[0], Freezes.of(first[1]), self._meant(chain((first,), parts))

    def frozen(self, most: int, *, enough: int = 100) -> tuple[int, Freezes, Iterator[Entry]]:
        """As :meth:`search`, in one round trip and one before it: those that a freeze may hold."""
        total, text, _ = self._reader.store.count_and_freezes()
        freezes, own = Freezes.of(text), self.selection.texts
        theirs = {each.selection for each in freezes.all if each.holds(wall_ms())}
        meant = [(own[0] + names, own[1] + texts) for names, texts in (each.texts for each in theirs)]
        meant, where = meant if len(meant) <= _FREEZES else [own], self.selection.beginning
        parts = self._reader.store.search(most if theirs else 0, where, "", meant, enough, at_once=True)
        return total, freezes, self._meant(parts)

    def failed(self, most: int, *, enough: int = 60) -> tuple[int, Freezes, Iterator[Entry]]:
        """As :meth:`search`, in one round trip, one before it and one after: those that have failed since they last
        succeeded."""
        store = self._reader.store
        total, freezes, (names,) = store.count_and_freezes(store.asking_first(most, self.selection.beginning))
        wanted, texts = self.selection.texts
        fit = [name for name in map(text, names) if all(each in name for each in wanted)]
        found = RunStore(store.backend.client, store.keys.prefix).failed(fit, texts)
        some = chain.from_iterable(map(self._reader.with_rows, chunks(found, min(enough, PAGE))))
        return total, Freezes.of(freezes), filter(self.selection.covers, some)

    def _meant(self, parts: Iterable[tuple[int, bytes, list[Stored]]]) -> Iterator[Entry]:
        # By parts: where the first has enough, the next is not asked for.
        some = chain.from_iterable(self._reader.readable(found) for _, _, found in parts)
        return filter(self.selection.covers, some)

    def _few(self) -> Iterable[Stored] | None:
        """Those that may be meant, in due order; ``None`` where nobody knows by their names, or of many."""
        store, beginning = self._reader.store, self.selection.beginning
        if self._names is not None:
            return sorted(store.present(self._names), key=by_due)
        names = [*islice(store.beginning(beginning), _FEW + 1)] if beginning else []
        return sorted(store.present(names), key=by_due) if beginning and len(names) <= _FEW else None

    def names(self) -> list[str]:
        """Their names."""
        return [entry.name for entry in self]

    def pause(self, note: str = "") -> list[str]:
        """Pause those that are not paused, as :meth:`Schedules.pause` does; returns their names."""
        told = storable_note(None, note)
        line = line_of(self._writer.who, "paused", told)
        return self._edit(
            lambda e: e.known_state if e.known_state.paused else lifecycle.paused(e.known_state, told), line
        )

    def resume(self, catch_up: bool = False) -> list[str]:
        """Resume those that are paused, as :meth:`Schedules.resume` does; returns their names.

        Raises:
            ConfigOwned: as there; none was resumed.
        """
        return self._edit(partial(self._writer.resumed, catch_up=catch_up), line_of(self._writer.who, "resumed"))

    def remove(self, note: str = "") -> list[str]:
        """Remove them, as :meth:`Schedules.remove` does; returns their names."""
        return self._edit(lambda _: None, line_of(self._writer.who, "removed", storable_note(None, note)))

    def run_now(self, note: str = "") -> dict[str, str]:
        """Publish an extra task of each, as :meth:`Schedules.run_now` does; returns names with ids of tasks.

        Raises:
            ConfigOwned: as there; nothing was sent.
            kombu.exceptions.OperationalError: the broker cannot be reached. Some may be sent; the record of changes has
                them.
        """
        return run_by_hand(self._reader, self._writer.who, [*self], {}, storable_note(None, note))

    def _edit(self, change: Callable[[Entry], EntryState | None], line: Line) -> list[str]:
        """Bring entries into the state that ``change`` says; ``None`` removes, and the very same is no edit."""

        def edits(stored: Stored) -> list[Edit]:
            entry = self._writer.readable(stored)
            if entry is None or not self.selection.covers(entry):
                return []
            before, entry.state = entry.state, change(entry)
            if entry.state is None:
                return [removal(stored, line)]
            return [] if entry.state is before else [self._writer.write(entry, stored.state, None, line)]

        names = [entry.name for entry in self if change(entry) is not entry.state]
        return texts(self._reader.store.rewrite(names, edits, at_once=AT_ONCE))
