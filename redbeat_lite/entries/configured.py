"""What an app's configuration says: ``beat_schedule``, and the defaults of what an entry leaves
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.schedules import crontab

from ..once.policy import Once, digest
from ..rules import Cron, Manual
from ..rules.misfire import Misfire
from ..settings import MAX_NAME, Settings
from .entry import Entry
from .foreign_fields import translated


def configured(app: Celery, added: Mapping[Any, Any] | None = None) -> dict[str, Any]:
    """Return the config entries of an app: ``beat_schedule``, and the entry that Celery adds.

    Parameters:
        added: entries that code gave to the scheduler; they replace those of the same name.
    """
    found = as_written({**(app.conf.beat_schedule or {}), **(added or {})})
    if app.conf.result_expires and not app.backend.supports_autoexpire:
        # Celery's own schedulers add this entry too, for result backends that do not expire by
        # themselves.
        cleanup = {
            "task": "celery.backend_cleanup",
            "schedule": crontab("0", "4", "*"),
            "options": {"expires": 12 * 3600},
        }
        found.setdefault("celery.backend_cleanup", cleanup)
    return found


def as_written(schedule: Mapping[Any, Any]) -> dict[Any, Any]:
    """A ``beat_schedule`` with names that can be stored. Its entries are not looked into: that may
    raise anything.
    """
    return {short_name(name): fields for name, fields in schedule.items()}


def short_name(name: Any) -> Any:
    """A name that can be stored: ``add_periodic_task`` names an entry that is given none for its
    whole call.
    """
    if not isinstance(name, str) or len(name) <= MAX_NAME:
        return name
    mark = digest(name)
    return f"{name[: MAX_NAME - len(mark) - 1]}#{mark}"


def config_entry(settings: Settings, name: str, written: Any, *, app: Any = None) -> Entry:
    """An entry from what a ``beat_schedule`` has under this name, which may have fields of other
    schedulers.

    Raises InvalidEntry. What a user wrote may raise anything else, too.
    """
    fields = translated(written) if isinstance(written, Mapping) else written
    return entry_with_defaults(settings, name, fields, app=app)


def entry_with_defaults(settings: Settings, name: str, fields: Any, *, app: Any = None) -> Entry:
    """An entry from a user's dict, with the settings' defaults for what it leaves out; raises
    InvalidEntry.
    """
    if isinstance(fields, dict):
        fields = {"expires": settings.expires, "misfire": _misfire(settings, fields, app), **fields}
        if fields.get("once") is True:
            fields["once"] = Once.of(True, lease=settings.once_lease)
    return Entry.from_mapping(name, fields, app=app)


def _misfire(settings: Settings, fields: dict[str, Any], app: Any) -> str | Misfire:
    """What becomes of missed runs; of a crontab's, those later than Celery's
    ``beat_cron_starting_deadline`` do not.
    """
    deadline = None if app is None else app.conf.beat_cron_starting_deadline
    if isinstance(fields.get("schedule"), Manual):  # has no run to miss
        return "coalesce"
    if deadline is None or not isinstance(fields.get("schedule"), (crontab, Cron)):
        return settings.misfire
    return Misfire(settings.misfire, grace=deadline)
