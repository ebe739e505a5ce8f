"""What an app's configuration says: ``beat_schedule``, and the defaults of what an entry leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.schedules import crontab

from ..once.policy import Once
from ..settings import Settings
from .entry import Entry

if TYPE_CHECKING:
    from celery import Celery


def configured(app: Celery) -> dict[str, Any]:
    """What the app's configuration holds: ``beat_schedule``, and the entry that Celery adds to it by itself."""
    found = dict(app.conf.beat_schedule or {})
    if app.conf.result_expires and not app.backend.supports_autoexpire:
        # Celery's own schedulers add this entry too, for result backends that do not expire by themselves.
        cleanup = {
            "task": "celery.backend_cleanup",
            "schedule": crontab("0", "4", "*"),
            "options": {"expires": 12 * 3600},
        }
        found.setdefault("celery.backend_cleanup", cleanup)
    return found


def entry_with_defaults(settings: Settings, name: str, fields: Any, *, app: Any = None) -> Entry:
    """An entry from a user's dict, with the defaults of the settings for what it leaves out.

    Raises:
        InvalidEntry: a field is missing, unknown or wrong.
    """
    if isinstance(fields, dict):
        fields = {"expires": settings.expires, "misfire": settings.misfire, **fields}
        if fields.get("once") is True:
            fields["once"] = Once.of(True, lease=settings.once_lease)
    return Entry.from_mapping(name, fields, app=app)
