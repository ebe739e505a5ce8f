"""Config entries: the entries of ``beat_schedule``, and the app's defaults for missing fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.schedules import crontab

from .._base.ids import with_digest
from ..policies import Misfire, Once
from ..rules import cron, manual
from ..settings import MAX_NAME, Settings
from .entry import Entry
from .foreign_fields import translate_fields


def configured(app: Celery, added: Mapping[Any, Any] | None = None) -> dict[str, Any]:
    """Return the config entries of an app: ``beat_schedule``, and the entry that Celery adds.

    Parameters:
        added: entries that code gave to the scheduler; each replaces the configured entry of its
            name.
    """
    entries = as_written({**(app.conf.beat_schedule or {}), **(added or {})})
    if app.conf.result_expires and not app.backend.supports_autoexpire:
        # Celery's own schedulers add this entry too, if the result backend does not expire results.
        cleanup = {
            "task": "celery.backend_cleanup",
            "schedule": crontab(minute="0", hour="4"),
            "options": {"expires": 12 * 3600},
        }
        entries.setdefault("celery.backend_cleanup", cleanup)
    return entries


def as_written(schedule: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a ``beat_schedule`` with names that can be stored.

    The entries are not read here, because reading them runs a user's code, which may raise any
    exception.
    """
    return {short_name(name): fields for name, fields in schedule.items()}


def short_name(name: Any) -> Any:
    """Return the name, or a shorter one with a digest if it is too long to be stored.

    ``add_periodic_task`` without a name takes the ``repr`` of the whole call as the name.
    """
    return with_digest(name, MAX_NAME) if isinstance(name, str) else name


def name_taken(existing: Entry) -> str:
    """Return the text of the error that the entry ``existing`` of another owner has the name."""
    holder = f"the configuration of {existing.owner!r}"
    if existing.owner is None:
        holder = "a runtime entry"
    return f"the name is taken by {holder}"


def config_entry(settings: Settings, name: str, written: Any, app: Celery) -> Entry:
    """Return the entry for a value of ``beat_schedule``, which may have fields of other schedulers.

    Raises:
        InvalidEntry: a field is missing, unknown or wrong. A user's own classes may raise any other
            exception.
    """
    fields = translate_fields(written) if isinstance(written, Mapping) else written
    return entry_with_defaults(settings, name, fields, app)


def entry_with_defaults(settings: Settings, name: str, fields: Any, app: Celery) -> Entry:
    """Return the entry for a user's dict; the settings give the missing fields their defaults.

    By default, a missed run of a crontab is made up for only within Celery's
    ``beat_cron_starting_deadline``.

    Raises:
        InvalidEntry: a field is missing, unknown or wrong.
    """
    if not isinstance(fields, dict):
        # An `Entry` gets none of the defaults below. Other values are refused.
        return Entry.from_mapping(name, fields, app=app)
    fields = {"expires": settings.expires, **fields}
    # A user's own Once has its own lease, so the setting applies only to ``True``.
    if fields.get("once") is True:
        fields["once"] = Once(scope="queue", lease=settings.once_lease)
    entry = Entry.from_mapping(name, fields, app=app)
    # A manual entry is never due, so it has no policy for missed runs.
    if "misfire" not in fields and not isinstance(entry.schedule, manual):
        grace = None
        if isinstance(entry.schedule, (crontab, cron)):
            grace = app.conf.beat_cron_starting_deadline
        entry._put(misfire=Misfire(settings.misfire, grace=grace))
    return entry
