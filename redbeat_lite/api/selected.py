"""Selections of entries, which are read, changed or run together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from .._base.public import public
from .._base.times import Duration
from ..entries.changes import Edit, Line, Stored, line_of
from ..entries.entry import Entry
from ..entries.selection import Selection, is_pattern
from ..entries.state import EntryState, storable_note
from ..entries.stored_entry import edit_of, removal
from ..store.records import PAGE, by_due, chunks
from ..store.redis_values import texts
from .reader import Reader
from .run_now import run_by_hand
from .writer import Writer

#: States of entries without a next run.
PARKED = ("finished", "disabled", "manual")

#: Maximum number of names that a sample searches. They take the server about 5 ms.
NAMES = 20_000

#: Maximum number of entries that a sample reads. They take the server about 10 ms, and the reader
#: about 60 ms.
READ = 2_000


@dataclass(frozen=True)
class Sample:
    """Sample of a selection: the first matching entries in the order of their due times.

    A sample searches up to 20,000 names and reads up to 2,000 entries. If the pattern without the
    stars at its end is the name of an entry, the sample has this entry, whenever it is due.
    Iteration reads the entries, 1,000 per round trip. It is possible once.

    Parameters:
        total: count of the stored entries.
        looked_at: count of the entries that the sample searches.
        complete: whether no other entry can match.
    """

    total: int
    looked_at: int
    complete: bool
    _entries: Iterator[Entry]

    def __iter__(self) -> Iterator[Entry]:
        return self._entries


@public
@dataclass(frozen=True)
class Selected:
    """Entries of a selection that can be read, in due order. Every call reads them again.

    A change takes 250 entries in a script, with one line in the record of changes. Entries that
    need no change stay as they are, so after an interruption the same call changes the others.

    Parameters:
        selection: selection of the entries.
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
        # among() compares the name and the text of the definition, and covers() the decoded entry.
        # So most entries that do not match are not decoded.
        candidates = self.selection.among(self._stored())
        return filter(self.selection.covers, self._reader.readable(candidates))

    def _stored(self) -> Iterable[Stored]:
        """Return the stored entries whose names the selection allows, in due order."""
        store = self._reader.store
        if self._names is not None:
            return sorted(store.present(self._names), key=by_due)
        if not is_pattern(self.selection.name):
            return store.present([self.selection.name])
        if self.selection.name == "*":
            # pages() reads the first page of entries before all names, and a caller may need only
            # this page.
            return store.pages()
        return store.present(name for name in store.names() if self.selection.allows(name))

    def sample(self, state: str = "") -> Sample:
        """Return a sample, read at a bounded cost; see :class:`Sample`.

        Parameters:
            state: search the entries that are most likely in this state. For one of ``PARKED``,
                these are the entries without a next run. For ``"paused"``, these are the entries
                without a next run, and the first and the last entries in due order. The sample may
                have entries in other states, too. But for ``"failed"`` it has only entries that
                have failed since their last success.
        """
        store = self._reader.store
        pattern = self.selection.name
        # Maximum numbers of entries to read: of the first ones in due order, of the last ones that
        # have a due time, and of those without a next run.
        shares = (READ, 0, 0)
        if state in PARKED:
            shares = (0, 0, READ)
        elif state == "paused":
            # An entry whose pause has an end is due at this end, or at its first occurrence after.
            shares = (READ // 4, READ // 4, READ // 2)
        # If all names match, no more names are needed than entries are read.
        names_per_entry = 1 if pattern == "*" else NAMES // READ
        ranked = store.ranked_names(*(share * names_per_entry for share in shares))
        searched: set[bytes] = set()
        names: list[str] = []
        for part, share in zip(ranked.parts, shares, strict=True):
            # allows() compares names alone.
            allowed = [name for name in part if self.selection.allows(name)]
            # Only ``share`` of them are read, so the search ends before the next one.
            end = part.index(allowed[share]) if len(allowed) > share else len(part)
            # A name may be in two parts.
            names += texts(name for name in allowed[:share] if name not in searched)
            searched.update(part[:end])
        # A user who types the beginning of a name may have typed the whole name.
        whole_name = pattern.rstrip("*")
        if whole_name and not is_pattern(whole_name) and whole_name not in names:
            names.insert(0, whole_name)
        if state == "failed":
            # This returns those of the names whose entries have failed since their last success.
            names = self._reader.runs.failed(names)
        entries = chain.from_iterable(self.among(page) for page in chunks(names, PAGE))
        is_complete = len(searched) >= (ranked.parked if state in PARKED else ranked.total)
        return Sample(ranked.total, len(searched), is_complete, entries)

    def names(self) -> list[str]:
        """Return the names of the entries."""
        return [entry.name for entry in self]

    def pause(self, note: str = "", *, seconds: Duration | None = None) -> list[str]:
        """Pause the entries, as :meth:`Schedules.pause` does, except those paused for as long.

        Returns:
            The names of the entries that were paused.
        """
        pause, line = self._writer.pausing(storable_note(None, note), seconds)

        def paused(entry: Entry) -> EntryState:
            """Return the new state; the same object if the entry is paused for as long already."""
            before = entry.state
            state = pause(entry)
            is_as_long = before.paused and state.paused_until == before.paused_until
            return before if is_as_long else state

        return self._edit(paused, line)

    def resume(self, catch_up: bool = False) -> list[str]:
        """Resume the entries that are paused, as :meth:`Schedules.resume` does.

        Returns:
            The names of the entries that were resumed.
        """
        return self._edit(
            partial(self._writer.resumed, catch_up=catch_up),
            line_of(self._writer.who, "resumed"),
        )

    def remove(self, note: str = "") -> list[str]:
        """Remove the entries, as :meth:`Schedules.remove` does; returns their names."""
        line = line_of(self._writer.who, "removed", storable_note(None, note))
        # ``None`` instead of a new state removes the entry.
        return self._edit(lambda entry: None, line)

    def run_now(self, note: str = "") -> dict[str, str]:
        """Publish an extra task of each entry, as :meth:`Schedules.run_now` does.

        Returns:
            The task ids by the names of the entries.

        Raises:
            ConfigOwned: the arguments of an entry cannot be stored, and this app's configuration
                does not have them; nothing was sent.
            kombu.exceptions.OperationalError: the broker cannot be reached. Some messages may have
                been sent; the record of changes has them.
        """
        stored_note = storable_note(None, note)
        # Without arguments of this call, each run has those of its entry.
        return run_by_hand(self._reader, self._writer.who, [*self], arguments={}, note=stored_note)

    def _edit(self, change: Callable[[Entry], EntryState | None], line: Line) -> list[str]:
        """Change the states of entries, or remove them. Return the names of the changed entries.

        Parameters:
            change: function without side effects that returns the new state of an entry; the same
                object leaves the entry unchanged, and ``None`` removes it.
            line: line about these edits in the record of changes.
        """

        def edit(stored: Stored) -> Edit | None:
            """Return the edit of an entry as it is stored now; ``None``: no change."""
            entry = self._writer.readable(stored)
            # The entry may have changed since it was selected, so compare it again.
            if entry is None or not self.selection.covers(entry):
                return None
            state = change(entry)
            if state is None:
                return removal(stored, line)
            if state is entry.state:
                return None
            return edit_of(entry, state, expected=stored.state, line=line)

        names = (stored.name for stored in self.selection.among(self._stored()))
        return texts(self._reader.store.rewrite(names, edit))
