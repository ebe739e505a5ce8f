"""Entries of celery-redbeat, read from its keys in Redis, without celery-redbeat itself.

``<prefix>:schedule`` is a sorted set of the keys of all entries, ``<prefix><name>`` a hash with
``definition`` and ``meta``, ``<prefix>:statics`` the set of the names that came from
``beat_schedule``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import crontab, schedule
from dateutil.rrule import rrule as dateutil_rrule
from dateutil.rrule import weekday

from .._base.errors import ConfigurationError, InvalidEntry
from ..rules import RRule, rrule
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
_FIELDS = ("task", "schedule", "args", "kwargs", "options")


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
        configured = conf.first("redbeat_key_prefix", "REDBEAT_KEY_PREFIX")
        self._prefix = configured or "redbeat:"
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

    def close(self) -> None:
        """Close the connections."""
        self._backend.close()


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
    stored = _loads(definition)
    history = _loads(meta) if meta else {}
    since = history.get("last_run_at")
    if since is not None and not isinstance(since, datetime):
        raise TypeError(f"last_run_at is {since!r}")
    fields = {field: stored.get(field) for field in _FIELDS}
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


def _loads(raw: bytes) -> dict[str, Any]:
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
    make = _KINDS.get(kind) if isinstance(kind, str) else None
    if make is None:
        return fields
    return make({key: value for key, value in fields.items() if key != "__type__"})


def _datetime(fields: dict[str, Any]) -> datetime:
    """Return the aware datetime of an object; its zone is a name or an offset in seconds."""
    zone = fields.pop("timezone", "UTC")
    if isinstance(zone, str):
        return datetime(**fields, tzinfo=ZoneInfo(zone))
    return datetime(**fields, tzinfo=timezone(timedelta(seconds=zone)))


def _rrule(fields: dict[str, Any]) -> RRule:
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


_KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "datetime": _datetime,
    "interval": lambda fields: schedule(fields["every"], bool(fields["relative"])),
    "crontab": lambda fields: crontab(**fields),
    "weekday": lambda fields: weekday(**fields),
    "rrule": _rrule,
}
