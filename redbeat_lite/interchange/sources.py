"""Entries of celery-redbeat and of django-celery-beat, read from their stores.

celery-redbeat itself is not needed to read its keys in Redis: ``<prefix>:schedule`` is a sorted set
of the keys of all entries, ``<prefix><name>`` a hash with ``definition`` and ``meta``,
``<prefix>:statics`` the set of the names that came from ``beat_schedule``.

django-celery-beat is read through its models. Django must be configured as for its beat, the old
beat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from dateutil.rrule import rrule as dateutil_rrule
from dateutil.rrule import weekday
from kombu.utils import json as kombu_json

from .._base.errors import ConfigurationError, InvalidEntry
from .._base.text import describe
from ..entries.foreign_fields import translate_fields
from ..rules import at, cron, rrule, schedule_text
from ..rules.celery_schedules import crontab_rule
from ..rules.clock_changes import WallTimes
from ..rules.rrule_text import WEEKDAYS
from ..settings import Settings
from ..store.connections import FAULTS, Backend
from ..store.records import PAGE, chunks
from ..store.redis_values import text
from .move_in import ForeignEntry, LeftOut, Unreadable, guarded

#: Options that celery-redbeat reads itself and does not pass to its client.
_OWN_OPTIONS = (
    "retry_period",
    "cluster",
    "sentinels",
    "service_name",
    "sentinel_kwargs",
    "startup_nodes",
)

#: Fields of an entry's definition.
_REDBEAT_FIELDS = ("task", "schedule", "args", "kwargs", "options")

#: Columns of a task that refer to a schedule. Exactly one of them has a value.
_SCHEDULES = ("interval", "crontab", "solar", "clocked")

#: Columns that need no conversion.
_COLUMNS = ("task", "one_off", "queue", "exchange", "routing_key", "priority")

#: Columns of a crontab, in the order of Celery's arguments.
_CRONTAB = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")

#: Rows that are fetched at a time.
_ROWS = 1000


class RedBeatSource:
    """The schedule that celery-redbeat has stored for an app.

    Parameters:
        app: the app. Its ``redbeat_*`` settings name the server; without them it is the broker's,
            as in celery-redbeat.

    Raises:
        ConfigurationError: this package cannot read such a server.
    """

    #: Name of the other scheduler.
    title = "celery-redbeat"
    #: Seconds until the store shows a run that was sent.
    lag = 0.0
    #: Advice for people if the store has no entry.
    advice = (
        "keep redbeat_redis_url and redbeat_key_prefix in the app's settings until the import is "
        "done"
    )
    #: Seconds until the lock of the old beat expires, as of the last :meth:`read`; ``None`` if the
    #: lock is not held, negative if it does not expire.
    lock_seconds: float | None = None

    def __init__(self, app: Celery) -> None:
        conf = app.conf
        self._prefix = conf.first("redbeat_key_prefix", "REDBEAT_KEY_PREFIX") or "redbeat:"
        # The setting may have the prefix or lack it. The key has the prefix in both cases.
        lock = str(conf.first("redbeat_lock_key", "REDBEAT_LOCK_KEY") or ":lock")
        self._lock = self._prefix + lock.removeprefix(self._prefix)
        self._backend = Backend(_settings(app))
        self.where = f"{self._backend.display_url}, keys {self._prefix}*"

    def read(self) -> Iterator[ForeignEntry]:
        """Yield every entry; raises Unreadable if the server does not answer."""
        try:
            yield from self._read()
        except FAULTS as exc:
            raise Unreadable(f"celery-redbeat: cannot read {self.where}: {exc}") from exc

    def _read(self) -> Iterator[ForeignEntry]:
        """Set ``lock_seconds``, and yield every entry, 1,000 keys per round trip."""
        client: Any = self._backend.client
        # Redis answers -2 if there is no such key, and -1 if the key does not expire. Divided by
        # 1,000, -1 stays negative, and ``lock_seconds`` is negative in that case.
        milliseconds = client.pttl(self._lock)
        self.lock_seconds = None if milliseconds == -2 else milliseconds / 1000
        statics = {text(name) for name in client.smembers(f"{self._prefix}:statics")}
        for keys in chunks(client.zrange(f"{self._prefix}:schedule", 0, -1), PAGE):
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.hmget(key, "definition", "meta")
            for key, reply in zip(keys, pipe.execute(raise_on_error=False), strict=True):
                name = text(key).removeprefix(self._prefix)
                yield guarded(name, _decode_entry, name, reply, statics)


def _settings(app: Celery) -> Settings:
    """Return settings of this package that reach the server of celery-redbeat.

    Raises:
        ConfigurationError: this package cannot read such a server.
    """
    conf = app.conf
    # Without its own setting, celery-redbeat uses the broker's server, too.
    server = str(conf.first("redbeat_redis_url", "REDBEAT_REDIS_URL") or conf.broker_url)
    options = dict(conf.first("redbeat_redis_options", "REDBEAT_REDIS_OPTIONS") or {})
    client_options = {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
    # The value may be ``True``, which has no options, or a dict of options.
    ssl = conf.first("redbeat_redis_use_ssl", "REDBEAT_REDIS_USE_SSL")
    if isinstance(ssl, dict) and server.startswith("rediss"):
        client_options |= ssl
    # celery-redbeat lists sentinels in an option. This package lists them in the URL.
    if server.startswith("redis-sentinel") and options.get("sentinels"):
        server = ";".join(f"sentinel://{host}:{port}" for host, port in options["sentinels"])
        client_options["master_name"] = options.get("service_name", "master")
        client_options["sentinel_kwargs"] = options.get("sentinel_kwargs") or {}
    try:
        return Settings(url=server, redis_options=client_options)
    except ConfigurationError as exc:
        # Name the user's setting instead of that of this package.
        why = str(exc).removeprefix("redbeat_lite_url: ")
        raise ConfigurationError(f"redbeat_redis_url: {why}") from None


def _decode_entry(key_name: str, reply: Any, statics: set[str]) -> ForeignEntry:
    """Return the entry of a stored definition.

    Parameters:
        key_name: name of the entry in its key; used if the definition has no name.
        reply: two values, each ``None`` if it is not stored: the definition, and JSON with the last
            run and the count of runs. Or an error of the server.
        statics: names of the entries that come from a ``beat_schedule``.

    Raises:
        LeftOut: there is no definition.
        Exception: the definition cannot be decoded.
    """
    if isinstance(reply, Exception):
        raise reply
    definition, meta = reply
    if definition is None:
        raise LeftOut("its definition is gone from Redis; celery-redbeat would remove it")
    stored = _load_object(definition)
    history = _load_object(meta) if meta else {}
    since = history.get("last_run_at")
    if since is not None and not isinstance(since, datetime):
        raise TypeError(f"last_run_at is {since!r}")
    fields = {field: stored.get(field) for field in _REDBEAT_FIELDS}
    if not stored.get("enabled", True):
        fields["enabled"] = False
    name = str(stored.get("name", key_name))
    return ForeignEntry(
        name,
        fields,
        since=since,
        runs=int(history.get("total_run_count") or 0),
        at_once=since is None,  # celery-redbeat sends an entry that has never run at once.
        of_config=name in statics,
    )


def _load_object(raw: bytes) -> dict[str, Any]:
    """Return the object of a JSON text that celery-redbeat wrote."""
    stored = json.loads(raw, object_hook=_object)
    if not isinstance(stored, dict):
        kind = type(stored).__name__
        raise ValueError(f"{kind} instead of an object")  # noqa: TRY004 - as for any other bad JSON
    return stored


def _object(fields: dict[str, Any]) -> Any:
    """Return the value that an object of the JSON stands for.

    An object with a known ``__type__`` stands for a value such as a datetime, in the definition or
    among the arguments of a task. Any other object stands for itself.
    """
    kind = fields.get("__type__")
    make = _TYPES.get(kind) if isinstance(kind, str) else None
    if make is None:
        return fields
    return make({key: value for key, value in fields.items() if key != "__type__"})


def _datetime(fields: dict[str, Any]) -> datetime:
    """Return the aware datetime of an object; its zone is a name or an offset in seconds."""
    zone = fields.pop("timezone", "UTC")
    if isinstance(zone, str):
        return datetime(**fields, tzinfo=ZoneInfo(zone))
    return datetime(**fields, tzinfo=timezone(timedelta(seconds=zone)))


def _rrule(fields: dict[str, Any]) -> rrule:
    """Return a recurrence that counts from its start (``dtstart``, in epoch seconds).

    Its zone is the UTC offset of the start (``dtstart_tz``, in minutes).

    Raises:
        InvalidEntry: RFC 5545 has no such recurrence.
    """
    if fields.get("byeaster") not in (None, []):
        expected = "a recurrence of RFC 5545, which knows no byeaster"
        raise InvalidEntry("schedule", expected, fields["byeaster"])
    zone = timezone(timedelta(minutes=float(fields.pop("dtstart_tz", None) or 0)))
    fields.pop("until_tz", None)  # ``until`` is in epoch seconds, which need no zone.
    for field in ("dtstart", "until"):
        if fields.get(field) is not None:
            fields[field] = datetime.fromtimestamp(fields[field], UTC)
    # celery-redbeat stores null or 0 for an interval that was not set.
    fields["interval"] = int(fields.get("interval") or 1)
    # The text of dateutil has the start before the rule, so take the part after "RRULE:". The text
    # lacks the Z that stands for UTC after the instant of UNTIL, so add it.
    _, _, rule_text = str(dateutil_rrule(**fields)).partition("RRULE:")
    rule_text = re.sub(r"UNTIL=\w+", r"\g<0>Z", rule_text)
    return rrule(rule_text, tz=zone, start=fields["dtstart"])


_TYPES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "datetime": _datetime,
    "interval": lambda fields: schedule(fields["every"], bool(fields["relative"])),
    "crontab": lambda fields: crontab(**fields),
    "weekday": lambda fields: weekday(**fields),
    "rrule": _rrule,
}


# -- The tables of django-celery-beat -------------------------------------------------------------


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
        rows = self._tasks.select_related(*_SCHEDULES).order_by("pk")
        try:
            for row in rows.iterator(chunk_size=_ROWS):
                yield guarded(row.name, _decode_row, row)
        except DatabaseError as exc:
            raise Unreadable(f"django-celery-beat: cannot read the {self.where}: {exc}") from exc


def _models() -> Any:
    """Set Django up and return the models of django-celery-beat.

    Raises:
        ConfigurationError: Django or django-celery-beat is not installed or not configured.
    """
    try:
        import django

        django.setup()
        from django_celery_beat import models
    except Exception as exc:  # noqa: BLE001 - the settings of a project may raise any exception
        raise ConfigurationError(
            "django-celery-beat: expected Django, DJANGO_SETTINGS_MODULE, and django-celery-beat "
            f"in INSTALLED_APPS, as for the old beat, got {describe(exc)}"
        ) from None
    return models


def _decode_row(row: Any) -> ForeignEntry:
    """Return the entry of one row.

    Raises:
        LeftOut: it cannot be imported.
        Exception: the row has wrong values.
    """
    kinds = [kind for kind in _SCHEDULES if getattr(row, kind) is not None]
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
        notes = ("a one-off that has run: disabled, as django-celery-beat would at its next look",)
    start = _aware(row.start_time)
    fields = _fields(row, start, expires, enabled=row.enabled and not is_done)
    entry = ForeignEntry(row.name, translate_fields(fields), runs=row.total_run_count, notes=notes)
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
    fields["args"] = _load_json(row.args or "[]")
    fields["kwargs"] = _load_json(row.kwargs or "{}")
    fields["headers"] = _load_json(row.headers or "{}") or None
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


def _load_json(text: str) -> Any:
    return kombu_json.loads(text)  # type: ignore[no-untyped-call]  # untyped in kombu


def _aware(instant: datetime | None) -> Any:
    """Return an aware instant; ``None`` for ``None``.

    A project without ``USE_TZ`` has naive instants, which the old beat reads in UTC.
    """
    if instant is None or instant.tzinfo is not None:
        return instant
    return instant.replace(tzinfo=UTC)


def zoned_crontab(celerys: crontab, zone: tzinfo) -> BaseSchedule:
    """Return a schedule that can be stored and has the occurrences of Celery's crontab in a zone.

    Celery's crontab has no zone, so it becomes a :class:`cron` of the same text if that has the
    same occurrences. If both day fields are restricted, a cron runs on days that match one of them,
    and a crontab on days that match both; such a crontab becomes a recurrence.

    Raises:
        InvalidEntry: no schedule that can be stored has these occurrences.
    """
    # The minutes, hours and days at which the crontab fires, in local time.
    times = crontab_rule(celerys, zone).walls
    # A cron may refuse Celery's notation, or have other occurrences with it.
    with suppress(InvalidEntry):
        expression = cron(schedule_text(celerys).removeprefix("crontab "), tz=zone)
        if expression.times == times:
            return expression
    return rrule(_recurrence(times), tz=zone)


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
