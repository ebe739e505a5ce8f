"""``doctor``: what will be trouble, and what to do about it; ``_findings`` lists every check."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from celery import Celery

from ...api.reader import Reader
from ...beat.config_check import not_stored
from ...beat.status import Status, asking, reports_in, status_in
from ...public import public_in
from ...settings import Settings
from ...storage.server_check import check_driver
from ...storage.store import Store
from . import calendars, entries, messages, run_times, server
from .finding import SEVERITIES, Finding

#: Entries that are looked at, those that are due next first: some seconds' work.
LIMIT = 50_000


@public_in("redbeat_lite.operate")
def examine(app: Celery) -> list[Finding]:
    """Look for what is or will be trouble; the gravest first. Changes nothing.

    Parameters:
        app: with all of its tasks.

    Raises:
        ConfigurationError: the app's settings are wrong, or kombu refuses the redis-py that is installed.
        redis.exceptions.RedisError: the server does not answer.
    """
    settings = Settings.from_app(app)
    check_driver(app)
    store = Store.of(settings)
    try:
        found = [*_findings(app, settings, store)]
    finally:
        store.backend.close()
    return sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity))


def _findings(app: Celery, settings: Settings, store: Store) -> Iterator[Finding]:
    yield from server.clock_and_line(store, settings)
    yield from server.server(store.backend)
    yield from server.lease_and_loop(settings, app)
    reply = store.backend.scripts.run(*asking(store.keys))
    status, heard = status_in(reply), reports_in(reply).values()
    readable, unreadable = entries.sorted_out(Reader(app, store), islice(store.pages(), LIMIT))
    yield from _not_looked_at(status)
    yield from entries.overdue(app, status, readable)
    yield from entries.frozen(app, status)
    yield from entries.failing(readable)
    yield from entries.unreadable(unreadable)
    yield from entries.quarantined(store)
    yield from entries.unregistered(app, readable)
    yield from entries.overlapping(readable)
    missing = dict(not_stored(app, store, settings))
    yield from entries.refused(app, settings, store, status, missing)
    yield from entries.clashes(settings, store, status, missing)
    yield from entries.unattended(settings, store, status)
    yield from run_times.clock_changes(app.timezone, readable)
    yield from run_times.hot_spots(app.timezone, readable)
    yield from calendars.calendars(store, readable)
    yield from messages.confirms(app)
    yield from messages.recording(readable, heard)
    yield from messages.outcomes(store, readable)
    yield from messages.worker_clocks(status, settings.clock_slack)
    yield from messages.lifetimes(app, readable, settings.clock_slack, heard)
    yield from messages.queues(app, readable, status.queues)


def _not_looked_at(status: Status) -> Iterator[Finding]:
    if status.entries > LIMIT:
        yield Finding(
            "entries",
            "note",
            f"only the {LIMIT} entries that are due next were looked at, of {status.entries}",
            "What is wrong with the others is not in this list.",
            "Nothing; come back when they are due.",
        )
