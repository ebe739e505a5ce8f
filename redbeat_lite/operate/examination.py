"""Subject of the doctor's checks, and their findings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from celery import Celery

from .._base.public import public_in
from ..beat.status import Status
from ..entries.entry import Entry
from ..once.worker_reports import WorkerReport
from ..settings import Settings
from ..store.store import Store

#: From the least grave to the gravest: a note informs, a warning predicts trouble, an error
#: is trouble now.
SEVERITIES = ("note", "warning", "error")


@public_in("redbeat_lite.operate")
@dataclass(frozen=True, slots=True)
class Finding:
    """A fault or a risk that somebody should look at.

    Parameters:
        check: name of the check that made the finding, one stable word.
        severity: one of :data:`SEVERITIES`.
        what: the observation.
        why: its consequence.
        todo: the remedy.
        entries: the names of the entries concerned.
    """

    check: str
    severity: str
    what: str
    why: str
    todo: str
    entries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """An app and its schedule, as all checks of one examination see them.

    Parameters:
        limit: most entries to examine.
        reports: of the workers with ``install()`` that were heard of within the last minute.
        entries: the stored entries that are due next.
        unreadable: errors of the entries that cannot be read, by name.
        is_compared: whether ``beat_schedule`` is compared with the store; it may be too large.
        missing: config entries that are not stored, each with the entry that holds its name.
    """

    app: Celery
    settings: Settings
    store: Store
    limit: int
    status: Status
    reports: Collection[WorkerReport]
    entries: Sequence[Entry]
    unreadable: Mapping[str, str]
    is_compared: bool
    missing: Mapping[str, Entry | None]
