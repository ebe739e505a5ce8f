"""From when on a success is owed by an entry that was changed or frozen: what lies before does not count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ..entries.entry import Entry
from ..entries.freezes import Freeze, recorded
from ..instants import to_ms
from ..storage.changes import Change, of_entry, of_stream
from ..storage.store import Store
from ..storage.stored import PAGE
from ..storage.streams import UNREADABLE, newest_first

#: Changes after which an entry begins anew, and fields for which an edit is one.
_ACTIONS = ("resumed", "released")
_FIELDS = {"expect", "schedule", "enabled"}

#: Lines of freezes that are remembered.
_LINES = 1000


class FreshStarts:
    """Finds them in the record of changes, of which it reads a line once."""

    def __init__(self) -> None:
        self._read = 0  #: up to when, epoch milliseconds of the server
        self._lines: list[Change] = []  #: those of freezes, the newest first

    def of(self, store: Store, entries: Mapping[str, Entry], now: int, ahead: int) -> dict[str, int]:
        """When these entries began anew, if it was with their last change or the end of a freeze; epoch milliseconds.

        Those that are frozen do so at ``now``: they may be thawed at any time. The server dates changes, and ``now`` is
        by a clock that is ``ahead`` of it.
        """
        found: dict[str, int] = {}
        found |= {name: at + ahead for name, at in _changed(store, [*entries]).items()}
        for freeze in self._freezes(store) if entries else ():
            end = min(to_ms(freeze.end) + (ahead if freeze.thawed else 0), now)
            found |= {name: max(found.get(name, end), end) for name, e in entries.items() if freeze.selection.covers(e)}
        return found

    def _freezes(self, store: Store) -> Iterable[Freeze]:
        lines = [*newest_first(store.backend.client, store.keys.changes, of_stream, PAGE, self._read)]
        if lines:
            self._read = to_ms(lines[0].at)
        # Those of the last millisecond are read again, which does no harm.
        self._lines = [*(each for each in lines if each.action in ("frozen", "thawed")), *self._lines][:_LINES]
        return recorded(self._lines)


def _changed(store: Store, names: list[str]) -> dict[str, int]:
    client: Any = store.backend.client
    found = {}
    for name, kept in zip(names, client.hmget(store.keys.changed, names) if names else (), strict=True):
        with suppress(AttributeError, *UNREADABLE):  # There is none, or nobody can read it.
            change = of_entry(name, kept)
            if change.action == "edited":
                line = kept.partition(b"|")[0]
                [told] = client.xrange(store.keys.changes, line, line)
                change = of_stream(*told)
            if change.action in _ACTIONS or any(field in _FIELDS for field, *_ in change.fields):
                found[name] = to_ms(change.at)
    return found
