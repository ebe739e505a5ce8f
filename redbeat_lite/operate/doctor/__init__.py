"""``doctor``: checks that find trouble ahead and say what to do; ``_checks`` lists all of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from celery import Celery

from ...api.reader import Reader
from ...app_tasks import load_tasks
from ...beat.config_check import not_stored
from ...beat.status import Status, asking, reports_in, status_in
from ...entries.configured import configured
from ...errors import ConfigurationError, describe
from ...public import public_in
from ...settings import Settings
from ...storage.connections import FAULTS
from ...storage.server_check import check_driver
from ...storage.store import Store
from ...storage.stored import PAGE
from . import calendars, configuration, entries, messages, run_times, server
from .finding import SEVERITIES, Finding

#: Entries that are looked at, those that are due next first: some seconds' work.
LIMIT = 50_000


@public_in("redbeat_lite.operate")
def examine(app: Celery, *, limit: int = LIMIT) -> list[Finding]:
    """Look for what is or will be trouble; the gravest first. Changes nothing.

    Imports the modules of the app that hold its tasks.

    Parameters:
        limit: how many entries are looked at, those that are due next first. 50,000 take some seconds.

    Raises:
        ConfigurationError: the app's settings are wrong, or kombu refuses the redis-py that is installed.
        redis.exceptions.RedisError: the server does not answer.
    """
    settings = Settings.from_app(app)
    check_driver(app)
    store = Store.of(settings)
    try:
        found = [finding for check in _checks(app, settings, store, limit) for finding in _guarded(check)]
    finally:
        store.backend.close()
    return sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity))


def _guarded(check: Iterator[Finding]) -> Iterator[Finding]:
    """Yield the findings of a check. Its failure is a finding, too, so that the others run."""
    try:
        yield from check
    except ConfigurationError:
        raise
    except FAULTS:
        raise
    except Exception as exc:  # noqa: BLE001 - schedules, zones, tasks and routers of the user may raise anything
        yield Finding(
            "doctor",
            "warning",
            f"a check has failed: {describe(exc)}",
            "This list lacks what the check looks for.",
            "Find the schedule, the time zone or the task class of yours that raises this error.",
        )


def _load_tasks(app: Celery) -> Iterator[Finding]:
    """Load the app's tasks, which a process that only shows the page lacks."""
    load_tasks(app)
    yield from ()


def _checks(app: Celery, settings: Settings, store: Store, limit: int) -> Iterator[Iterator[Finding]]:
    yield _load_tasks(app)
    yield server.clock_and_line(store, settings)
    yield server.server(store.backend)
    yield server.lease_and_loop(settings, app)
    yield server.shared_queue(app, store)
    yield configuration.left_over(app)
    yield configuration.misspelt(app)
    reply = store.backend.scripts.run(*asking(store.keys))
    status, heard = status_in(reply), reports_in(reply).values()
    stored = chain.from_iterable(store.paged(min(limit, PAGE)))
    readable, unreadable = entries.sorted_out(Reader(app, store), islice(stored, limit))
    yield _not_looked_at(status, limit)
    yield entries.overdue(app, status, readable)
    yield entries.frozen(app, status)
    yield entries.failing(readable)
    yield entries.unreadable(unreadable)
    yield entries.quarantined(store)
    yield entries.unregistered(app, readable)
    yield entries.overlapping(readable)
    yield configuration.fixed_ids(readable)
    if len(configured(app)) > limit:
        yield _not_compared(limit)
    else:
        missing = dict(not_stored(app, store, settings))
        yield entries.refused(app, settings, store, status, missing)
        yield entries.clashes(settings, store, status, missing)
        yield entries.differing(app, settings, store, status)
    yield entries.unattended(settings, store, status)
    yield run_times.clock_changes(app.timezone, readable)
    yield run_times.either_day(readable)
    yield run_times.hot_spots(app.timezone, readable)
    yield calendars.calendars(store, readable)
    yield messages.confirms(app)
    yield messages.recording(readable, heard)
    yield messages.retries(app, readable, status.queues)
    yield messages.outcomes(store, readable)
    yield messages.worker_clocks(status, settings.clock_slack)
    yield messages.lifetimes(app, readable, settings.clock_slack, heard)
    yield messages.queues(app, readable, status.queues)


def _not_compared(limit: int) -> Iterator[Finding]:
    yield Finding(
        "configuration",
        "note",
        f"beat_schedule has more than {limit} entries, and was not compared with what is stored",
        "An entry of it that is refused or differs is not in this list.",
        f"celery -A ... redbeat doctor compares up to {LIMIT}.",
    )


def _not_looked_at(status: Status, limit: int) -> Iterator[Finding]:
    todo = "Nothing; come back when they are due."
    if limit < LIMIT:
        todo = f"celery -A ... redbeat doctor looks at {LIMIT}."
    if status.entries > limit:
        yield Finding(
            "entries",
            "note",
            f"only the {limit} entries that are due next were looked at, of {status.entries}",
            "What is wrong with the others is not in this list.",
            todo,
        )
