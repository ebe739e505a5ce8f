"""Entries of django-celery-beat, read through its models.

Django must be configured as for the beat of django-celery-beat, the old beat.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedule, solar
from kombu.utils import json

from .._base.errors import ConfigurationError
from ..entries.foreign_fields import translated
from ..rules import Cron, RRule, at, schedule_text
from ..rules.celery_schedules import crontab_rule
from ..rules.clock_changes import WallTimes
from ..rules.rrule_text import WEEKDAYS
from .move_in import ForeignEntry, LeftOut, Unreadable, guarded

#: Columns of a task that refer to a schedule. Exactly one of them has a value.
_KINDS = ("interval", "crontab", "solar", "clocked")

#: Columns that need no conversion.
_COLUMNS = ("task", "one_off", "queue", "exchange", "routing_key", "priority")

#: Columns of a crontab, in the order of Celery's arguments.
_CRONTAB = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")

#: Rows that are fetched at a time.
_CHUNK = 1000


class DjangoBeatSource:
    """The schedule in the database of the Django project that ``DJANGO_SETTINGS_MODULE`` names.

    Raises:
        ConfigurationError: Django is not installed, the project is not configured, or it does not
            have django-celery-beat.
    """

    #: Name of the other scheduler.
    title = "django-celery-beat"
    #: Seconds until the database shows a run that was sent. Unless ``beat_sync_every`` is set,
    #: Celery lets the old beat store its runs every three minutes. In between, its loop sleeps for
    #: up to five seconds.
    lag = 190.0
    #: There is no advice for people if the database has no entry, and the old beat has no lock.
    advice = ""
    lock_seconds = None

    def __init__(self) -> None:
        self._tasks = _models().PeriodicTask.objects
        from django.db import connections  # Django is optional.

        database = connections[self._tasks.db].settings_dict
        self.where = f"database {database.get('NAME')} ({database.get('ENGINE')})"

    def read(self) -> Iterator[ForeignEntry]:
        """Yield every periodic task, including disabled ones.

        Raises:
            Unreadable: the database does not answer, or lacks the tables.
        """
        from django.db import DatabaseError, close_old_connections  # Django is optional.

        close_old_connections()  # After this, Django reconnects if the server closed a connection.
        rows = self._tasks.select_related(*_KINDS).order_by("pk")
        try:
            for row in rows.iterator(chunk_size=_CHUNK):
                yield guarded(row.name, _decode_row, row)
        except DatabaseError as exc:
            raise Unreadable(f"django-celery-beat: cannot read the {self.where}: {exc}") from exc

    def close(self) -> None:
        """Close the connections."""
        from django.db import connections  # Django is optional.

        connections.close_all()


def _models() -> Any:
    """Set Django up and return the models of django-celery-beat.

    Raises:
        ConfigurationError: Django or django-celery-beat is not installed or not configured.
    """
    try:
        import django
        from django.core.exceptions import ImproperlyConfigured
    except ImportError:
        why = "Django is not installed in this environment"
        raise ConfigurationError(f"django-celery-beat: {why}") from None
    try:
        django.setup()
        from django_celery_beat import models
    except ImproperlyConfigured as exc:
        hint = "set DJANGO_SETTINGS_MODULE, as for the old beat"
        why = f"Django is not configured ({hint}): {exc}"
        raise ConfigurationError(f"django-celery-beat: {why}") from None
    except (ImportError, RuntimeError) as exc:
        why = f"it must be installed and in INSTALLED_APPS, as for the old beat: {exc}"
        raise ConfigurationError(f"django-celery-beat: {why}") from None
    return models


def _decode_row(row: Any) -> ForeignEntry:
    """Return the entry of one row.

    Raises:
        LeftOut: it cannot be imported.
        Exception: the row has wrong values.
    """
    kinds = [kind for kind in _KINDS if getattr(row, kind) is not None]
    if len(kinds) != 1:
        names = ", ".join(kinds) or "none"
        raise LeftOut(f"it has {len(kinds)} schedules ({names}) instead of one")
    now = datetime.now(UTC)
    if row.clocked is not None and not row.enabled and _aware(row.clocked.clocked_time) <= now:
        raise LeftOut("a one-off that is disabled and past: it has run, or never will")
    expires = _aware(row.expires)
    if expires is not None and expires <= now:
        since = expires.isoformat()
        raise LeftOut(f"it has expired ({since}); django-celery-beat would disable it")
    # A one-off that has run stays enabled until the old beat looks at its row again.
    is_done = row.one_off and row.total_run_count > 0
    notes: tuple[str, ...] = ()
    if is_done:
        note = "a one-off that has run: disabled, as django-celery-beat would at its next look"
        notes = (note,)
    start = _aware(row.start_time)
    fields = _fields(row, start, expires, enabled=row.enabled and not is_done)
    entry = ForeignEntry(row.name, translated(fields), runs=row.total_run_count, notes=notes)
    if row.last_run_at is not None:
        # When the old beat disables a one-off that has run, it also sets the counter to 0.
        runs = 0 if is_done else row.total_run_count
        return entry._replace(since=_aware(row.last_run_at), runs=runs, has_run=True)
    if start is not None:
        # The old beat sends a task that has never run as soon as its start time has come.
        return entry._replace(at_once=start <= now)
    # A task that has never run counts from its last edit.
    return entry._replace(since=_aware(row.date_changed))


def _fields(
    row: Any, start: datetime | None, expires: datetime | None, *, enabled: bool
) -> dict[str, Any]:
    """Return the definition of an entry from the columns of a row.

    Parameters:
        start, expires: ``start_time`` and ``expires`` of the row, as aware instants.
        enabled: whether the entry runs. The row may be enabled although its one-off has run.
    """
    fields = {name: getattr(row, name) for name in _COLUMNS}
    fields["schedule"] = _schedule(row)
    fields["args"] = _loads(row.args or "[]")
    fields["kwargs"] = _loads(row.kwargs or "{}")
    fields["headers"] = _loads(row.headers or "{}") or None
    fields["expire_seconds"] = row.expire_seconds or None
    fields["start_time"] = start
    fields["description"] = row.description or ""
    fields["enabled"] = enabled
    if expires is not None:
        # The old beat sends nothing at the very instant of ``expires``. But ``end_at`` allows a run
        # at its instant, so end a millisecond before. As in the old beat, all messages expire at
        # ``expires``, too, and ``expire_seconds`` has no effect.
        fields["end_at"] = expires - timedelta(milliseconds=1)
        fields["expire_seconds"] = None
        fields["options"] = {"expires": expires}
    return fields


def _schedule(row: Any) -> BaseSchedule:
    """Return the schedule that a row names: an interval, a crontab, a solar event or an instant."""
    if row.interval is not None:
        return schedule(timedelta(**{row.interval.period: row.interval.every}))
    if row.crontab is not None:
        return _crontab(row.crontab)
    if row.solar is not None:
        place = (float(row.solar.latitude), float(row.solar.longitude))
        return solar(row.solar.event, *place)
    return at(_aware(row.clocked.clocked_time))


def _crontab(model: Any) -> BaseSchedule:
    """Return the schedule of a row of crontabs, in its time zone if the project says so."""
    from django.conf import settings  # Django is optional.

    celerys = crontab(*(getattr(model, field) for field in _CRONTAB))
    if getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True):
        return zoned_crontab(celerys, model.timezone)
    return celerys


def _loads(text: str) -> Any:
    return json.loads(text)  # type: ignore[no-untyped-call]  # untyped in kombu


def _aware(instant: datetime | None) -> Any:
    """Return an aware instant; ``None`` for ``None``.

    A project without ``USE_TZ`` has naive instants, which the old beat reads in UTC.
    """
    if instant is None or instant.tzinfo is not None:
        return instant
    return instant.replace(tzinfo=UTC)


def zoned_crontab(celerys: crontab, zone: tzinfo) -> BaseSchedule:
    """Return a schedule that can be stored and has the occurrences of Celery's crontab in a zone.

    Celery's crontab has no zone, so it becomes a :func:`cron` if that has the same occurrences. If
    both day fields are restricted, a cron runs on days that match one of them, and a crontab on
    days that match both; such a crontab becomes a recurrence.

    Raises:
        InvalidEntry: no schedule that can be stored has these occurrences.
    """
    text = schedule_text(celerys).removeprefix("crontab ")
    # The minutes, hours and days at which the crontab fires, in local time.
    times = crontab_rule(celerys, zone).walls
    days = times.days
    # Each item of ``days.weekdays`` is a weekday and its number in the month ("second Monday"),
    # which a crontab does not have. There, Monday is 0; in a cron, Sunday is 0.
    weekdays = tuple((day + 1) % 7 for day, _ in days.weekdays)
    numbers = (times.minutes, times.hours, days.month_days, days.months, weekdays)
    numeric = " ".join(map(_cron_field, numbers, (60, 24, 31, 12, 7)))
    # Try Celery's own notation first, because people know it. A cron may refuse it, or have other
    # occurrences with it.
    for candidate in (text, numeric):
        try:
            cron = Cron(candidate, tz=zone)
        except ValueError:
            continue
        if cron.times == times:
            return cron
    return RRule(_recurrence(times), tz=zone)


def _cron_field(values: tuple[int, ...], all_values: int) -> str:
    """Return a field of a cron: ``*`` if it has all values, whose count is ``all_values``."""
    return "*" if len(values) == all_values else _listed(values)


def _listed(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def _recurrence(times: WallTimes) -> str:
    """Return the recurrence of a crontab. All parts restrict it, so both day fields must match.

    The recurrence runs every hour, or at the listed hours of the clock. On days of a clock change
    it differs from a crontab with hours such as ``*/2``, which counts real hours.
    """
    days = times.days
    parts = ["FREQ=HOURLY"]
    if len(times.hours) < 24:
        parts = ["FREQ=DAILY", f"BYHOUR={_listed(times.hours)}"]
    if len(days.months) < 12:
        parts.append(f"BYMONTH={_listed(days.months)}")
    if len(days.month_days) < 31:
        parts.append(f"BYMONTHDAY={_listed(days.month_days)}")
    if len(days.weekdays) < 7:
        # The second value of each pair is 0, because a crontab has no "second Monday".
        parts.append(f"BYDAY={','.join(WEEKDAYS[day] for day, _ in days.weekdays)}")
    parts.append(f"BYMINUTE={_listed(times.minutes)}")
    parts.append("BYSECOND=0")
    return ";".join(parts)
