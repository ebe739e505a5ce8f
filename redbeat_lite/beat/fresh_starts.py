"""From when on a success is owed by an entry that was changed: what lies before, such as a pause, does not count."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ResponseError

from ..instants import to_ms
from ..storage.changes import of_entry, of_stream
from ..storage.store import Store
from ..storage.streams import UNREADABLE

#: Changes after which an entry begins anew, and fields for which an edit is one.
_ACTIONS = ("resumed", "released")
_FIELDS = {"expect", "schedule", "enabled"}


def fresh_starts(store: Store, names: Sequence[str]) -> dict[str, int]:
    """When these entries began anew, if it was with their last change; epoch milliseconds of the server."""
    client: Any = store.backend.client
    found = {}
    with suppress(ResponseError):  # The record is of a foreign type: nobody knows.
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
