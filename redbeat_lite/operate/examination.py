"""Subject of the doctor's checks, and their findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from celery import Celery

from .._base.public import public_in
from ..beat.config_check import Differences
from ..beat.status import Status
from ..entries.entry import Entry
from ..settings import Settings
from ..store.store import Store

#: Severities, the gravest last. A note informs, a warning predicts trouble, an error is present
#: trouble.
SEVERITIES = ("note", "warning", "error")


@public_in("redbeat_lite.operate")
@dataclass(frozen=True, slots=True)
class Finding:
    """A fault or a risk that somebody should look at.

    Parameters:
        check: kind of the finding, one word that does not change between versions.
        severity: one of :data:`SEVERITIES`.
        what: the observation.
        why: consequence of the observation.
        todo: remedy.
        entries: names of the entries that it is about.
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
        limit: maximum number of entries to examine.
        entries: the stored entries that are due next, at most ``limit``.
        unreadable: name of an entry that cannot be read -> the error.
        differences: differences between the app's configuration and the stored schedule; empty if
            the configuration has more than ``limit`` entries.
    """

    app: Celery
    settings: Settings
    store: Store
    limit: int
    status: Status
    entries: Sequence[Entry]
    unreadable: Mapping[str, str]
    differences: Differences
