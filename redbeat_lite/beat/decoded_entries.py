"""Cache of decoded entries."""

from __future__ import annotations

from collections.abc import Callable

from ..entries.entry import Entry
from ..entries.stored_entry import entry_of
from ..store.records import Stored

#: Maximum number of bytes of decoded entries: some 45,000 entries with few arguments. If more
#: entries take turns, all are dropped, because the oldest would be the next to be needed.
_MOST_BYTES = 64_000_000

#: Estimated bytes of one cached entry: a fixed part, plus a part per byte of its definition.
_FIXED = 1000
_PER_BYTE = 4


class DecodedEntries:
    """Entries that the planner has decoded. Each is decoded again when its definition changes.

    Parameters:
        check: called with an entry that was decoded; raises if it cannot be used.
    """

    def __init__(self, check: Callable[[Entry], None]) -> None:
        self._check = check
        #: Name of an entry -> the definition that was decoded, and the entry.
        self._entries: dict[bytes, tuple[bytes | None, Entry]] = {}
        #: Bytes by which the cache may still grow, as estimated.
        self._room = _MOST_BYTES

    def decode(self, stored: Stored) -> Entry:
        """Return a stored entry; raise if it cannot be used."""
        cached = self._entries.get(stored.name)
        if cached is not None and cached[0] == stored.definition:
            return cached[1]
        entry = entry_of(stored)
        self._check(entry)
        # An earlier definition is counted, too, until all are dropped.
        self._room -= _FIXED + _PER_BYTE * len(stored.definition or b"")
        if self._room < 0:
            self._entries.clear()
            self._room = _MOST_BYTES
        self._entries[stored.name] = (stored.definition, entry)
        return entry
