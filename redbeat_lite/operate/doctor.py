"""Doctor: runs checks that find present and future trouble, and say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from celery import Celery

from .._base.celery_app import load_tasks
from .._base.errors import ConfigurationError
from .._base.public import public_in
from .._base.text import describe
from ..api.reader import Reader
from ..beat.config_check import Configuration, Differences
from ..beat.status import read_status
from ..entries.configured import configured
from ..entries.stored_entry import UNREADABLE, shown_name
from ..settings import Settings
from ..store.connections import FAULTS
from ..store.store import Store
from . import entry_checks, setup_checks
from .examination import SEVERITIES, Finding, Subject

#: Maximum number of entries that are examined by default. To examine so many takes some seconds.
LIMIT = 50_000


@public_in("redbeat_lite.operate")
def examine(app: Celery, *, limit: int = LIMIT) -> list[Finding]:
    """Find present and future trouble of an app and its schedule, without changing anything.

    The call imports the modules of the app that define its tasks.

    Parameters:
        limit: maximum number of entries to examine, the next due first. 50,000 take some seconds.

    Returns:
        the findings, the gravest first.

    Raises:
        ConfigurationError: the app's settings are wrong.
        redis.exceptions.RedisError: the server does not answer.
    """
    settings = Settings.from_app(app)
    findings = [*_guarded(_load_tasks(app))]
    store = Store.of(settings)
    try:
        subject = _read_subject(app, settings, store, limit)
        for check in _CHECKS:
            findings += _guarded(check(subject))
    finally:
        store.backend.close()
    return sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))


def _guarded(check: Iterator[Finding]) -> Iterator[Finding]:
    """Yield the findings of a check, or its error as a finding, so that the other checks still run.

    A wrong setting, or a server that cannot be used, ends the whole examination.
    """
    try:
        yield from check
    except ConfigurationError:
        raise
    except FAULTS:
        raise  # The server cannot be used, so the other checks would fail, too.
    except Exception as exc:  # noqa: BLE001 - schedules and tasks of users raise anything
        yield Finding(
            "doctor",
            "warning",
            f"a check has failed: {describe(exc)}",
            "This list lacks what the check looks for.",
            "Find the schedule, the time zone or the task class of yours that raises this error.",
        )


def _load_tasks(app: Celery) -> Iterator[Finding]:
    """Load the app's tasks, because a web process that calls the doctor may not have loaded them.

    This is a check without findings, so that :func:`_guarded` turns its failure into a finding.
    """
    load_tasks(app)
    yield from ()  # This makes the function an iterator.


def _read_subject(app: Celery, settings: Settings, store: Store, limit: int) -> Subject:
    """Read the status, the entries that are due next, and all else that the checks need.

    Parameters:
        limit: maximum number of entries to read. If the configuration has more entries, it is not
            compared with the stored ones.
    """
    status = read_status(store)
    reader = Reader(app, store)
    entries = []
    unreadable = {}
    # ranked() yields the stored entries in the order of their due times.
    for stored in islice(store.ranked(), limit):
        try:
            entries.append(reader.entry(stored))
        except UNREADABLE as exc:
            unreadable[shown_name(stored)] = str(exc)
    differences = Differences()
    if len(configured(app)) <= limit:
        differences = Configuration(app, store, settings).differences()
    return Subject(
        app,
        settings,
        store,
        limit,
        status=status,
        entries=entries,
        unreadable=unreadable,
        differences=differences,
    )


def _not_examined(subject: Subject) -> Iterator[Finding]:
    """Report that some entries were not examined, because there are too many."""
    limit = subject.limit
    count = max(subject.status.entries, len(configured(subject.app)))
    if count <= limit:
        return
    todo = "Nothing; come back when they are due."
    if limit < LIMIT:
        todo = f"celery -A ... redbeat doctor looks at {LIMIT}."
    yield Finding(
        "entries",
        "note",
        f"of {count} entries, at most {limit} were looked at, those that are due next",
        "This list has no faults of the others. A beat_schedule with more entries than that "
        "is not compared with the stored ones.",
        todo,
    )


#: All checks, in the order in which findings of equal severity are listed.
_CHECKS = (*setup_checks.CHECKS, _not_examined, *entry_checks.CHECKS)
