"""Reader of the record of changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice

from .._base.times import MAX_MS, to_ms
from ..entries.changes import OF_OTHERS, Change, decode_change, decode_last
from ..entries.model import is_name
from ..store.records import PAGE
from ..store.redis_values import newest_first, readable
from ..store.store import Store

#: Lines that one call of the script searches. The record has about twice as many lines.
_LOOKED_AT = 5_100


def search(
    store: Store,
    name: str,
    limit: int,
    oldest: str | int = "-",
    newest: str | int = "+",
    actions: Sequence[str] = (),
) -> list[Change]:
    """Return the changes of one entry in the record of changes, the newest first.

    Parameters:
        limit: maximum number of changes, approximately.
        oldest, newest: ids of the oldest and the newest line to search.
        actions: changes with these actions are returned, too, whatever entries they are about.
    """
    changes: list[Change] = []
    has_more = True
    while has_more and len(changes) < limit:
        last_id, has_more, lines = store.backend.scripts.run(
            "schedule/changes",
            store.keys,
            newest=newest,
            oldest=oldest,
            most=_LOOKED_AT,
            enough=limit,
            name=name,
            # The stored change is a JSON list that begins with its action.
            kinds=[f'["{action}"' for action in actions],
        )
        # The script returns a line as a flat list: field, value, field, value, and so on.
        pairs = ((id_, dict(zip(flat[::2], flat[1::2], strict=True))) for id_, flat in lines)
        # The script searches the name in the text of a line, so some lines are not about the entry.
        for change in readable(pairs, decode_change):
            if change.action in actions or _is_about(change, name):
                changes.append(change)
        if last_id:
            # The script reads from the newest line to the oldest, here down to ``last_id``. The
            # next call begins with the next older line, because "(" excludes ``last_id`` itself.
            newest = f"({last_id.decode()}"
    return changes


def recorded(
    store: Store, name: str | None, since: datetime | None, until: datetime | None, limit: int
) -> list[Change]:
    """Return recorded changes, the newest first; see :meth:`redbeat_lite.Schedules.changes`."""
    if limit == 0 or (name is not None and not is_name(name)):
        return []
    # The id of a line begins with the ms at which it was written.
    oldest = 0 if since is None else max(0, to_ms(since, "since"))
    newest = MAX_MS if until is None else max(0, to_ms(until, "until"))
    if name is None:
        size = min(limit, PAGE)
        client = store.backend.client
        lines = newest_first(client, store.keys.changes, decode_change, size, oldest, newest)
        return [*islice(lines, limit)]
    # The last change of an entry is stored with the entry, too. The record may lack its line.
    [stored] = store.read([name])
    kept = decode_last(name, stored.last_change)
    if kept is not None and not oldest <= to_ms(kept.at) <= newest:
        kept = None
    return of_entry(name, search(store, name, limit, oldest, newest), kept, limit)


def of_entry(
    name: str, recorded_changes: Iterable[Change], kept: Change | None, limit: int
) -> list[Change]:
    """Return the changes of an entry among these, the newest first.

    Parameters:
        kept: last change of the entry, which is stored with the entry; ``None``: unknown. It is
            added if it is not among the recorded ones, because its line was cut from the record or
            does not name the entry.
        limit: maximum number of changes.
    """
    changes = [change for change in recorded_changes if _is_about(change, name)]
    if kept is not None:
        # The instant and the action are enough to recognise a change of one entry.
        last = (kept.at, kept.action)
        if last not in [(change.at, change.action) for change in changes]:
            changes = sorted((kept, *changes), key=lambda change: change.at, reverse=True)
    return changes[:limit]


def _is_about(change: Change, name: str) -> bool:
    """Return whether a change is about the entry of this name, and not about another thing."""
    return name in change.names and change.action not in OF_OTHERS
