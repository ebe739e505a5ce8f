"""Commands for repairs by hand: ``quarantine`` and ``locks``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from .._base.times import from_ms
from ..entries.words import span
from ..once.locks import locks as locks_of
from ..operate.texts import distance
from .command import Group, completed, json_option, load_app, load_schedules, unknown
from .entries import say_entry
from .output import echo_fields, echo_json, echo_table, say

_quarantined_names = completed(lambda store, start: store.quarantined())
_quarantined_argument = click.argument("name", shell_complete=_quarantined_names)


@click.group(cls=Group)
def quarantine() -> None:
    """List, show, release or remove entries that the beat cannot use and has set aside.

    \b
    Examples:
      celery -A proj redbeat quarantine list
      celery -A proj redbeat quarantine release nightly
    """


@quarantine.command("list")
@json_option
def list_quarantined() -> None:
    """List the entries in quarantine, with what is wrong.

    \b
    Example:
      celery -A proj redbeat quarantine list --json
    """
    quarantined = load_schedules().quarantined()
    records = [_as_data(name, quarantined[name]) for name in sorted(quarantined)]
    echo_json(records)
    rows = [(record["name"], record["since"], record["error"]) for record in records]
    echo_table(("NAME", "SINCE", "ERROR"), rows, empty="No entry is in quarantine.")


@quarantine.command()
@_quarantined_argument
@json_option
def show(name: str) -> None:
    """Show one entry in quarantine, with all that Redis holds of it.

    \b
    Example:
      celery -A proj redbeat quarantine show nightly
    """
    record = _as_data(name, _record(name))
    echo_json(record)
    echo_fields(record.items())


@quarantine.command()
@_quarantined_argument
@json_option
def release(name: str) -> None:
    """Put an entry back as a new one, once its fault is mended.

    \b
    Example:
      celery -A proj redbeat quarantine release nightly
    """
    _record(name)  # This raises Failure if the entry is not in quarantine.
    say_entry(load_schedules().release(name), "released")


@quarantine.command()
@_quarantined_argument
def remove(name: str) -> None:
    """Remove an entry from quarantine, for good.

    \b
    Example:
      celery -A proj redbeat quarantine remove nightly
    """
    _record(name)  # This raises Failure if the entry is not in quarantine.
    load_schedules().discard(name)
    say(f"removed {name!r} from quarantine")


def _record(name: str) -> dict[str, Any]:
    """Return the record of an entry in quarantine, or raise Failure."""
    records = load_schedules().quarantined()
    if name not in records:
        raise unknown(f"no entry {name!r} is in quarantine", name, records)
    return records[name]


def _as_data(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of an entry in quarantine as it is shown."""
    at = record.get("at")
    since = from_ms(at) if isinstance(at, int) else None
    others = {field: record.get(field) for field in ("error", "definition", "state")}
    return {"name": name, "since": since, **others}


@click.group(cls=Group)
def locks() -> None:
    """Show once-locks, with their holders and waiting tasks, or free one.

    \b
    Examples:
      celery -A proj redbeat locks list
      celery -A proj redbeat locks clear reindex
    """


@locks.command("list")
@json_option
def list_locks() -> None:
    """List the locks that are held or waited for, the first to expire first.

    LEASE is the time until the lock expires if nobody renews it. A worker renews it while the task
    runs.

    \b
    Example:
      celery -A proj redbeat locks list
    """
    listed = locks_of(load_app()).list()
    echo_json(listed)
    now = datetime.now(UTC)
    rows = []
    for lock in listed:
        since = None if lock.since is None else distance(lock.since, now)
        lease = None if lock.expires_in is None else span(lock.expires_in)
        holder = lock.holder or None
        waiting = len(lock.waiters)
        rows.append((lock.key, lock.state, holder, since, lease, waiting, lock.task_id))
    headers = ("KEY", "STATE", "HOLDER", "SINCE", "LEASE", "WAIT", "TASK")
    echo_table(headers, rows, empty="No lock is held or waited for.")


@locks.command()
@click.argument("key")
def clear(key: str) -> None:
    """Free a lock and wake a task that waits for it.

    A task that held the lock goes on running, and learns of the loss within a third of its lease.

    \b
    Example:
      celery -A proj redbeat locks clear reindex
    """
    listing = locks_of(load_app())
    if not listing.clear(key):
        raise unknown(f"no lock {key!r} is held", key, [lock.key for lock in listing.list()])
    say(f"cleared {key!r}")
