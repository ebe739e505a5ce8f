"""Entries of celery-redbeat, read from its own keys in Redis. Needs no celery-redbeat.

``<prefix>:schedule`` is a sorted set of the keys of all entries, ``<prefix><name>`` a hash with ``definition`` and
``meta``, ``<prefix>:statics`` the set of the names that came from ``beat_schedule``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import crontab, schedule
from redis.exceptions import ResponseError

from ...errors import ConfigurationError, InvalidEntry
from ...schedules import RRule, rrule
from ...schedules.recurrence import FREQUENCIES
from ...schedules.rrule_text import WEEKDAYS
from ...settings import Settings
from ...storage.connections import FAULTS, Backend
from ...storage.replies import text
from ...storage.stored import PAGE, chunks
from .source import Found, Left, Source, Unreadable

#: Its own options, which it does not hand on to the client.
_NOT_THE_CLIENTS = ("retry_period", "cluster", "sentinels", "service_name", "sentinel_kwargs", "startup_nodes")

#: The parts of a recurrence that are numbers in both worlds.
_NUMBERS = ("bysetpos", "bymonth", "bymonthday", "byyearday", "byweekno", "byhour", "byminute", "bysecond")


class RedBeatSource(Source):
    """The schedule that celery-redbeat keeps for an app.

    Parameters:
        app: its ``redbeat_*`` settings say where; as in celery-redbeat, the broker's where they do not.
        url: another server.
        prefix: another ``redbeat_key_prefix``.

    Raises:
        ConfigurationError: the server is one that cannot be read from here.
    """

    title = "celery-redbeat"

    def __init__(self, app: Celery, *, url: str | None = None, prefix: str | None = None) -> None:
        self._prefix = prefix or app.conf.first("redbeat_key_prefix", "REDBEAT_KEY_PREFIX") or "redbeat:"
        lock = str(app.conf.first("redbeat_lock_key", "REDBEAT_LOCK_KEY") or ":lock")
        self._lock = self._prefix + lock.removeprefix(self._prefix)
        self._backend = Backend(_settings(app, url))
        self.where = f"{self._backend.display_url}, keys {self._prefix}*"

    def read(self) -> Iterator[Found | Left]:
        """Every entry, a thousand in a round trip; raises Unreadable if the server does not answer."""
        try:
            yield from self._read()
        except FAULTS as exc:
            raise Unreadable(f"celery-redbeat: cannot read {self.where}: {exc}") from exc

    def _read(self) -> Iterator[Found | Left]:
        client: Any = self._backend.client
        self.led = bool(client.exists(self._lock))
        statics = {text(name) for name in client.smembers(f"{self._prefix}:statics")}
        for keys in chunks(client.zrange(f"{self._prefix}:schedule", 0, -1), PAGE):
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.hmget(key, "definition", "meta")
            for key, found in zip(keys, pipe.execute(raise_on_error=False), strict=True):
                name = text(key).removeprefix(self._prefix)
                if isinstance(found, ResponseError):
                    yield Left(name, f"its definition cannot be read: {found}")
                elif isinstance(found, Exception):
                    raise found
                else:
                    definition, meta = found
                    yield _entry(name, definition, meta, statics)

    def close(self) -> None:
        """Close the connections."""
        self._backend.close()


def _settings(app: Celery, url: str | None) -> Settings:
    conf = app.conf
    theirs = str(conf.first("redbeat_redis_url", "REDBEAT_REDIS_URL") or conf.broker_url)
    options = dict(conf.first("redbeat_redis_options", "REDBEAT_REDIS_OPTIONS") or {})
    ssl = conf.first("redbeat_redis_use_ssl", "REDBEAT_REDIS_USE_SSL")
    client_options = {name: value for name, value in options.items() if name not in _NOT_THE_CLIENTS}
    if isinstance(ssl, dict) and theirs.startswith("rediss"):
        client_options |= ssl
    if theirs.startswith("redis-sentinel") and options.get("sentinels"):
        theirs = ";".join(f"sentinel://{host}:{port}" for host, port in options["sentinels"])
        client_options |= {"master_name": options.get("service_name", "master")}
        client_options |= {"sentinel_kwargs": options.get("sentinel_kwargs") or {}}
    try:
        return Settings(url=url or theirs, redis_options=client_options)
    except ConfigurationError as exc:
        if url:
            raise ConfigurationError(f"--url: {str(exc).removeprefix('redbeat_lite_url: ')}") from None
        hint = "name the server that holds the schedule with --url"
        raise ConfigurationError(f"redbeat_redis_url: {hint}: {exc}") from None


def _entry(name: str, definition: bytes | None, meta: bytes | None, statics: set[str]) -> Found | Left:
    if definition is None:
        return Left(name, "its definition is gone from Redis; celery-redbeat would remove it")
    try:
        stored = _decoded(definition)
        known = _decoded(meta) if meta else {}
        since = _instant(known.get("last_run_at"))
        enabled = stored.get("enabled", True)
        fields = {field: stored.get(field) for field in ("task", "schedule", "args", "kwargs", "options")}
        return Found(
            str(stored.get("name", name)),
            fields if enabled else {**fields, "enabled": False},
            since=since,
            runs=int(known.get("total_run_count") or 0),
            at_once=since is None,
            of_config=str(stored.get("name", name)) in statics,
        )
    except InvalidEntry as exc:
        return Left(name, str(exc))
    except Exception as exc:  # noqa: BLE001 - whatever is wrong with one entry must not reach the others
        return Left(name, f"its definition cannot be read: {type(exc).__name__}: {exc}")


def _instant(value: Any) -> datetime | None:
    if value is not None and not isinstance(value, datetime):
        raise TypeError(f"last_run_at is {value!r}")
    return value


def _decoded(raw: bytes) -> dict[str, Any]:
    stored = json.loads(raw, object_hook=_object)
    if not isinstance(stored, dict):
        raise ValueError(f"{type(stored).__name__} instead of an object")  # noqa: TRY004 - as for any other bad JSON
    return stored


def _object(obj: dict[str, Any]) -> Any:
    """Its ``__type__`` objects, which may stand among the arguments too."""
    kind = obj.get("__type__")
    make = _KINDS.get(kind) if isinstance(kind, str) else None
    return obj if make is None else make({key: value for key, value in obj.items() if key != "__type__"})


def _datetime(obj: dict[str, Any]) -> datetime:
    zone = obj.pop("timezone", "UTC")
    tzinfo = ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))
    return datetime(**obj, tzinfo=tzinfo)


@dataclass(frozen=True)
class _Weekday:
    """Its mark for a weekday of dateutil; among arguments nothing that could be stored here."""

    number: int


def _rrule(obj: dict[str, Any]) -> RRule:
    """A recurrence counts from its start, in the offset from UTC that was in force when it was stored."""
    zone = timezone(timedelta(minutes=float(obj.get("dtstart_tz") or 0)))
    return rrule(_rrule_text(obj), tz=zone, start=datetime.fromtimestamp(obj["dtstart"], UTC))


def _rrule_text(obj: Mapping[str, Any]) -> str:
    if obj.get("byeaster") not in (None, []):
        raise InvalidEntry("schedule", "a recurrence of RFC 5545, which knows no byeaster", obj["byeaster"])
    parts = {"FREQ": FREQUENCIES[int(obj["freq"])]}
    if (interval := int(obj.get("interval") or 1)) != 1:
        parts["INTERVAL"] = str(interval)
    if obj.get("wkst") is not None:
        parts["WKST"] = _day_name(obj["wkst"])
    if obj.get("count") is not None:
        parts["COUNT"] = str(obj["count"])
    if obj.get("until") is not None:
        parts["UNTIL"] = f"{datetime.fromtimestamp(obj['until'], UTC):%Y%m%dT%H%M%SZ}"
    parts |= {name.upper(): ",".join(map(str, found)) for name in _NUMBERS if (found := _listed(obj.get(name)))}
    if days := _listed(obj.get("byweekday")):
        parts["BYDAY"] = ",".join(map(_day_name, days))
    return ";".join(f"{name}={value}" for name, value in parts.items())


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _day_name(day: Any) -> str:
    return WEEKDAYS[day.number if isinstance(day, _Weekday) else int(day)]


_KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "datetime": _datetime,
    "interval": lambda obj: schedule(obj["every"], bool(obj["relative"])),
    "crontab": lambda obj: crontab(**obj),
    "weekday": lambda obj: _Weekday(int(obj["wkday"])),
    "rrule": _rrule,
}
