"""What a message of an entry carries besides its arguments: id, headers, expiry. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from celery.beat import BeatLazyFunc

from .. import instants
from ..schedules.cron import Cron, familiar
from .entry import Entry


class Occurrence(NamedTuple):
    """One firing of an entry.

    Parameters:
        entry: the entry that fires.
        id: the task id.
        nominal: nominal time, epoch milliseconds.
        following: the next nominal time that is still to come, where an entry expires with its interval.
        extra: further headers.
    """

    entry: Entry
    id: str
    nominal: int
    following: int | None
    extra: Mapping[str, Any] | None = None


def emission(occurrence: Occurrence) -> Entry:
    """The entry as Celery is to publish it for one occurrence."""
    entry = occurrence.entry
    options = dict(entry.options)
    options["task_id"] = occurrence.id
    options["headers"] = {
        **(options.get("headers") or {}),
        **headers(entry.name, occurrence.nominal),
        **(occurrence.extra or {}),
    }
    # A retry inside the publish could go on for longer than publish_timeout; the dispatcher has its own.
    options["retry"] = False
    if "expires" not in options and entry.expires is not None:
        expires = _expires(entry, occurrence.following)
        if expires is not None:
            options["expires"] = expires
    emitted = copy.copy(entry)
    emitted.options = options
    if isinstance(entry.schedule, Cron):
        # Nobody plans with it: Sentry, for one, reads the rule of a monitor from the entry that is sent.
        emitted.schedule = familiar(entry.schedule) or entry.schedule
    return emitted


def evaluated(entry: Entry) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, those of Celery's ``BeatLazyFunc`` called."""
    args = tuple(_evaluated(value) for value in entry.args)
    return args, {key: _evaluated(value) for key, value in entry.kwargs.items()}


def _evaluated(value: Any) -> Any:
    return value() if isinstance(value, BeatLazyFunc) else value


def headers(name: str, nominal: int) -> dict[str, Any]:
    """The headers that tell which entry a message comes from, and for which nominal time (epoch ms).

    ``periodic_task_name`` is the name django-celery-beat uses, which result backends record.
    """
    return {"periodic_task_name": name, "scheduled_at": instants.from_ms(nominal).isoformat()}


def _expires(entry: Entry, following: int | None) -> Any:
    if entry.expires != "interval":
        return entry.expires
    return None if following is None else instants.from_ms(following)
