"""``locks``: once-locks, who holds them, and how to free one by hand."""

from __future__ import annotations

import click

from ..entries.words import span
from ..once.lock_listing import locks as locks_of
from .command import Command, Group, app_of, json_option
from .exit_codes import unknown
from .output import echo_json, echo_table, say


@click.group(cls=Group)
def locks() -> None:
    """Once-locks: who holds which, who waits, and a way to free one.

    \b
    Examples:
      celery -A proj redbeat locks list
      celery -A proj redbeat locks clear reindex
    """


@locks.command("list", cls=Command)
@json_option
def list_(ctx: click.Context) -> None:
    """List the locks that are held or waited for, those that run out first in front.

    \b
    Example:
      celery -A proj redbeat locks list
    """
    found = locks_of(app_of(ctx)).list()
    echo_json(found)
    rows = [
        (
            lock.key,
            lock.state,
            lock.holder or None,
            None if lock.expires_in is None else span(lock.expires_in),
            len(lock.waiters),
        )
        for lock in found
    ]
    headers, empty = ("KEY", "STATE", "HOLDER", "RUNS OUT", "WAIT"), "No lock is held or waited for."
    echo_table(headers, rows, empty=empty, rigid=("STATE", "RUNS OUT", "WAIT"))


@locks.command(cls=Command)
@click.argument("key")
def clear(ctx: click.Context, key: str) -> None:
    """Free a lock, whoever holds it, and wake who waits for it.

    A task that held it goes on running, and learns of it within a third of its lease.

    \b
    Example:
      celery -A proj redbeat locks clear reindex
    """
    found = locks_of(app_of(ctx))
    if not found.clear(key):
        raise unknown(f"no lock {key!r} is held", key, [lock.key for lock in found.list()])
    say(f"cleared {key!r}")
