"""Entries of django-celery-beat, read through its own models. Needs Django to be configured, as for the old beat."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedule, solar
from kombu.utils import json

from ...entries.foreign_fields import translated
from ...errors import ConfigurationError, InvalidEntry
from ...schedules import at
from .source import Found, Left, Source, Unreadable
from .zoned_crontab import zoned_crontab

_KINDS = ("interval", "crontab", "solar", "clocked")

#: Rows fetched at a time.
_CHUNK = 1000


class DjangoBeatSource(Source):
    """The schedule in the database of the Django project that ``DJANGO_SETTINGS_MODULE`` names.

    Raises ConfigurationError: there is no Django, no project, or no django-celery-beat in it.
    """

    title = "django-celery-beat"
    #: Celery lets a scheduler write what it did once in three minutes, unless ``beat_sync_every`` says otherwise, and
    #: this one's loop sleeps for five seconds at most.
    lag = 190.0

    def __init__(self) -> None:
        self._tasks = _models().PeriodicTask.objects
        from django.db import connections  # only where there is Django

        found = connections[self._tasks.db].settings_dict
        self.where = f"database {found.get('NAME')} ({found.get('ENGINE')})"

    def read(self) -> Iterator[Found | Left]:
        """Every periodic task; disabled ones too. Raises Unreadable also where the database lacks the tables."""
        from django.db import DatabaseError, close_old_connections  # only where there is Django

        close_old_connections()  # one that the server has dropped meanwhile is opened anew
        rows = self._tasks.select_related(*_KINDS).order_by("pk")
        try:
            for row in rows.iterator(chunk_size=_CHUNK):
                yield _entry(row)
        except DatabaseError as exc:
            raise Unreadable(f"django-celery-beat: cannot read the {self.where}: {exc}") from exc

    def close(self) -> None:
        """Close the connections."""
        from django.db import connections  # only where there is Django

        connections.close_all()


def _models() -> Any:
    try:
        import django
        from django.core.exceptions import ImproperlyConfigured
    except ImportError:
        raise ConfigurationError("django-celery-beat: Django is not installed in this environment") from None
    try:
        django.setup()
        from django_celery_beat import models
    except ImproperlyConfigured as exc:
        hint = "set DJANGO_SETTINGS_MODULE, as for the old beat"
        raise ConfigurationError(f"django-celery-beat: Django is not configured ({hint}): {exc}") from None
    except (ImportError, RuntimeError) as exc:
        raise ConfigurationError(
            f"django-celery-beat: it must be installed and in INSTALLED_APPS, as for the old beat: {exc}"
        ) from None
    return models


def _entry(row: Any) -> Found | Left:
    try:
        return _readable(row)
    except InvalidEntry as exc:
        return Left(row.name, str(exc))
    except Exception as exc:  # noqa: BLE001 - whatever is wrong with one row must not reach the others
        return Left(row.name, f"its row cannot be read: {type(exc).__name__}: {exc}")


def _readable(row: Any) -> Found | Left:
    kinds = [kind for kind in _KINDS if getattr(row, kind) is not None]
    if len(kinds) != 1:
        return Left(row.name, f"it has {len(kinds)} schedules ({', '.join(kinds) or 'none'}) instead of one")
    now, expires, start = datetime.now(UTC), _aware(row.expires), _aware(row.start_time)
    if row.clocked is not None and not row.enabled and _aware(row.clocked.clocked_time) <= now:
        return Left(row.name, "a one-off that is disabled and past: it has run, or never will")
    if expires is not None and expires <= now:
        return Left(row.name, f"it has expired ({expires.isoformat()}); django-celery-beat would disable it")
    has_run = row.one_off and row.total_run_count > 0
    notes = ("a one-off that has run: disabled, as django-celery-beat would at its next look",) if has_run else ()
    fields = translated(_fields(row, start, expires, enabled=row.enabled and not has_run))
    return Found(row.name, fields, notes=notes, **_history(row, start, now, has_run))


def _fields(row: Any, start: datetime | None, expires: datetime | None, *, enabled: bool) -> dict[str, Any]:
    fields = {
        **{name: getattr(row, name) for name in ("task", "one_off", "queue", "exchange", "routing_key", "priority")},
        "schedule": _schedule(row),
        "args": _loads(row.args or "[]"),
        "kwargs": _loads(row.kwargs or "{}"),
        "headers": _loads(row.headers or "{}") or None,
        "expire_seconds": row.expire_seconds or None,
        "start_time": start,
        "description": row.description or "",
        "enabled": enabled,
    }
    if expires is not None:
        # It runs nothing at its very end, where an end_at would; and its messages expire then, whatever else it says.
        fields |= {
            "end_at": expires - timedelta(milliseconds=1),
            "expire_seconds": None,
            "options": {"expires": expires},
        }
    return fields


def _history(row: Any, start: datetime | None, now: datetime, has_run: bool) -> dict[str, Any]:
    if row.last_run_at is not None:
        # It starts to count anew when it disables a one-off that has run.
        return {"since": _aware(row.last_run_at), "runs": 0 if has_run else row.total_run_count, "ran": True}
    if start is not None:
        # It takes such a task for one that is long overdue, so that it runs when its start has come.
        return {"at_once": start <= now, "runs": row.total_run_count}
    return {"since": _aware(row.date_changed), "runs": row.total_run_count}


def _schedule(row: Any) -> BaseSchedule:
    if row.interval is not None:
        return schedule(timedelta(**{row.interval.period: row.interval.every}))
    if row.crontab is not None:
        return _crontab(row.crontab)
    if row.solar is not None:
        return solar(row.solar.event, float(row.solar.latitude), float(row.solar.longitude))
    return at(_aware(row.clocked.clocked_time))


def _crontab(model: Any) -> BaseSchedule:
    from django.conf import settings  # only where there is Django

    fields = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
    found = crontab(*(getattr(model, field) for field in fields))
    if getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True):
        return zoned_crontab(found, model.timezone)
    return found


def _loads(text: str) -> Any:
    return json.loads(text)  # type: ignore[no-untyped-call]  # untyped in kombu


def _aware(instant: datetime | None) -> Any:
    """A project without ``USE_TZ`` keeps naive times, which the old beat took for UTC."""
    if instant is None or instant.tzinfo is not None:
        return instant
    return instant.replace(tzinfo=UTC)
