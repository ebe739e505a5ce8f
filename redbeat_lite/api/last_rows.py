"""The rows of entries that were read together, read together too, and only if somebody asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..runs.row import Row
from ..runs.store import RunStore
from ..storage.lazy import lazy
from ..storage.store import Store

#: Entries whose rows are read in one command, and how many of each at most: it shall block nobody.
TOGETHER, _ROWS = 100, 100


class LastRows:
    """The newest rows of some entries, read in one command when those of one are first asked for.

    Parameters:
        store: where the entries are.
        names: of the entries; at most :data:`TOGETHER`.
    """

    def __init__(self, store: Store, names: Sequence[str]) -> None:
        self._store = store
        self._names = names

    def of(self, name: str) -> Sequence[Row]:
        """The rows of this entry, the newest first."""
        return self._found[name]

    @lazy
    def _found(self) -> Mapping[str, Sequence[Row]]:
        rows = RunStore(self._store.backend.client, self._store.keys.prefix).rows(self._names, _ROWS)
        return dict(zip(self._names, rows, strict=True))
