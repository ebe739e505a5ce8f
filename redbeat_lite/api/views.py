"""``items()`` and ``values()`` that read a page per round trip instead of an entry per round trip."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView

from ..entries.entry import Entry


class PagedItems(ItemsView[str, Entry]):
    """Names and entries, in due order."""

    def __init__(self, mapping: Mapping[str, Entry], entries: Callable[[], Iterator[Entry]]) -> None:
        super().__init__(mapping)
        self._entries = entries

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        return ((entry.name, entry) for entry in self._entries())


class PagedValues(ValuesView[Entry]):
    """Entries, in due order."""

    def __init__(self, mapping: Mapping[str, Entry], entries: Callable[[], Iterator[Entry]]) -> None:
        super().__init__(mapping)
        self._entries = entries

    def __iter__(self) -> Iterator[Entry]:
        return self._entries()
