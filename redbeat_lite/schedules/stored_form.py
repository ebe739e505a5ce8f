"""Schedules as compact JSON, and back.

=====================================  =======================================================
``{"every": 10000}``                   `every`, in milliseconds; ``"align"`` or ``"spread": true`` where it is
``{"cron": "0 3 * * *"}``              `cron`; with ``"tz"`` and ``"seconds"`` where they are given
``{"at": 1767225600000}``              `at`, in milliseconds since 1970
``{"rrule": "FREQ=DAILY"}``            `rrule`; with ``"tz"`` and ``"start"`` where they are given
``{"manual": true}``                   `manual`
``{"crontab": [0, "*/4", "*", …]}``    Celery's, fields as written, in the order of its arguments
``{"schedule": 30.0}``                 Celery's, in seconds; ``"relative": true`` where it is
``{"solar": ["sunset", 52.5, 13.4]}``  Celery's
``{"custom": "name", "data": …}``      a class given to `register_schedule`
=====================================  =======================================================

Decoding builds only these: nothing in the text can name code to run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, ParseException, crontab, schedule, solar

from ..durations import LENGTH, seconds_of
from ..errors import InvalidEntry, NotKnownHere, meant
from ..instants import from_ms
from ..public import public
from .cron import Cron
from .intervals import At, Every, Manual, at, interval_ms
from .rrules import RRule

S = TypeVar("S", bound=BaseSchedule)
_CELERYS = (schedule, crontab, solar)
#: Celery's crontab takes lists; none needs more than the minutes of an hour.
_MAX_LIST = 60
#: Characters of one text.
_MAX_TEXT = 500


class _Custom(NamedTuple):
    cls: type
    encode: Callable[[Any], object]
    decode: Callable[[Any], BaseSchedule]


_custom: dict[str, _Custom] = {}


@public
def register_schedule(
    cls: type[S], encode: Callable[[S], object], decode: Callable[[Any], S], *, name: str | None = None
) -> None:
    """Teach the store a schedule class of your own; do it in every process that imports the class.

    When it runs is asked through Celery's ``is_due``, or through ``next_after(instant)`` where the class has that: the
    first occurrence strictly later than an aware datetime, or None. One whose ``is_due`` does not name the next
    occurrence within ten questions is asked again, in real time, when it says.

    Parameters:
        encode: makes JSON-able data of an instance.
        decode: makes an equal instance of that data, and raises ValueError for what it cannot read.
        name: what stands for the class in the store; by default module and class name. Registering a name again
            replaces it, which is how a class that moved keeps its old name.

    Raises:
        InvalidEntry: not a schedule class, or one that has a stored form already.
    """
    if not (isinstance(cls, type) and issubclass(cls, BaseSchedule)):
        raise InvalidEntry("cls", "a subclass of celery.schedules.BaseSchedule", cls)
    if cls in (*_CELERYS, Every, Cron, At, RRule, Manual):
        raise InvalidEntry("cls", "a class without a stored form of its own", cls)
    _custom[name or f"{cls.__module__}.{cls.__qualname__}"] = _Custom(cls, encode, decode)


def coerce_schedule(value: object) -> BaseSchedule:
    """A schedule from what Celery's users write: a length of time, or a schedule.

    Raises InvalidEntry for anything else; a text that is a cron expression gets the hint to call ``cron``.
    """
    if isinstance(value, BaseSchedule):
        return value
    if (seconds := seconds_of(value)) is not None:
        interval_ms(value, exact=False)
        # Celery's own class, so that tools which know it find what they expect.
        return schedule(value if isinstance(value, timedelta) else seconds)
    raise InvalidEntry("schedule", f"{LENGTH}, or a schedule", value, hint=_hint(value))


def _hint(value: object) -> str | None:
    if isinstance(value, str):
        with suppress(InvalidEntry):
            return f'write cron("{Cron(value).expression}")'
        return 'for example "5m" or cron("0 3 * * *")'
    if isinstance(value, datetime):
        return "to run once, write at(...)"
    return None


def encode_schedule(found: BaseSchedule) -> dict[str, Any]:
    """The stored form of a schedule.

    Raises InvalidEntry: it has none. A subclass is never stored as its base: that would change when it runs.
    """
    for name, custom in _custom.items():
        if type(found) is custom.cls:
            data = custom.encode(found)
            try:
                json.dumps(data, allow_nan=False)
            except (TypeError, ValueError):
                expected = f"JSON-able data from the encoder of {type(found).__name__}"
                raise InvalidEntry("schedule", expected, data) from None
            return {"custom": name, "data": data}
    encode = _ENCODERS.get(type(found))
    if encode is None:
        hint = "register its class with register_schedule" if isinstance(found, BaseSchedule) else None
        raise InvalidEntry("schedule", "a schedule that can be stored", found, hint=hint)
    if type(found) in _CELERYS and found.nowfun is not None:
        hint = 'a function cannot be stored: for a zone, write cron("...", tz="...")'
        raise InvalidEntry("schedule", "a schedule without nowfun", found, hint=hint)
    return encode(found)


def decode_schedule(obj: object) -> BaseSchedule:
    """The schedule of a stored form; raises InvalidEntry if it is none, or holds what the schedule refuses."""
    if not isinstance(obj, Mapping):
        raise InvalidEntry("schedule", "a stored schedule", obj)
    for kind, (decode, extras) in _DECODERS.items():
        if kind in obj:
            if unknown := set(obj) - {kind, *extras}:
                raise InvalidEntry("schedule", f"only {', '.join((kind, *extras))}", sorted(map(str, unknown)))
            try:
                return decode(obj)
            except InvalidEntry:
                raise
            except (ValueError, TypeError, KeyError, ArithmeticError, ParseException, ImproperlyConfigured) as error:
                raise InvalidEntry("schedule", "a stored schedule", dict(obj), hint=str(error)[:200]) from error
    raise InvalidEntry("schedule", "a known kind of schedule", sorted(map(str, obj)))


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidEntry("schedule", "a whole number", value)
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidEntry("schedule", "a number", value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise InvalidEntry("schedule", f"a text of at most {_MAX_TEXT} characters", value)
    return value


def _given(**stored: Any) -> dict[str, Any]:
    return {name: value for name, value in stored.items() if value is not None}


def _decode_every(obj: Mapping[str, Any]) -> Every:
    interval = timedelta(milliseconds=_whole(obj["every"]))
    found = Every(interval, align=obj.get("align", False), spread=obj.get("spread", False))
    return found.as_kept(_whole(obj["resolved"])) if "resolved" in obj else found


def _encode_cron(found: Cron) -> dict[str, Any]:
    seconds = None if found.seconds == "last" else found.seconds
    return _given(cron=found.expression, **found.kept(), tz=found.tz_name, seconds=seconds)


def _decode_cron(obj: Mapping[str, Any]) -> Cron:
    found = Cron(_text(obj["cron"]), tz=obj.get("tz"), seconds=obj.get("seconds", "last")).as_kept(obj.get("resolved"))
    _ = found.resolved is None or found.times  # raises where it is no expression
    return found


def _decode_rrule(obj: Mapping[str, Any]) -> RRule:
    start = obj.get("start")
    return RRule(obj["rrule"], tz=obj.get("tz"), start=None if start is None else datetime.fromisoformat(start))


#: The fields of a crontab as written, in the order of its arguments.
_written = attrgetter(*(f"_orig_{each}" for each in ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")))


def _encode_crontab(found: crontab) -> dict[str, Any]:
    return {"crontab": [field if isinstance(field, (int, str)) else sorted(field) for field in _written(found)]}


def _decode_crontab(obj: Mapping[str, Any]) -> crontab:
    fields = obj["crontab"]
    if not isinstance(fields, list) or len(fields) != 5:
        raise InvalidEntry("schedule", "the five fields of a crontab", fields)
    return crontab(*map(_crontab_field, fields))


def _crontab_field(field: object) -> Any:
    if isinstance(field, str):
        return _text(field)
    if isinstance(field, list) and 0 < len(field) <= _MAX_LIST:
        return [_whole(each) for each in field]
    return _whole(field)


def _decode_celery_interval(obj: Mapping[str, Any]) -> schedule:
    relative = obj.get("relative", False)
    if not isinstance(relative, bool):
        raise InvalidEntry("schedule", "relative as true or false", relative)
    return schedule(_number(obj["schedule"]), relative)  # the bounds of an interval are the rule's business


def _decode_solar(obj: Mapping[str, Any]) -> solar:
    event, lat, lon = obj["solar"]
    return solar(_text(event), _number(lat), _number(lon))


def _decode_custom(obj: Mapping[str, Any]) -> BaseSchedule:
    custom = _custom.get(_text(obj["custom"]))
    if custom is None:
        hint = meant(obj["custom"], _custom) or "import the module that calls register_schedule"
        raise NotKnownHere("schedule", "a registered schedule", obj["custom"], hint=hint)
    found = custom.decode(obj.get("data"))
    if not isinstance(found, custom.cls):
        raise InvalidEntry("schedule", f"a {custom.cls.__name__} from its decoder", found)
    return found


_ENCODERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Every: lambda found: _given(every=found.ms, align=found.align or None, spread=found.spread or None, **found.kept()),
    Cron: _encode_cron,
    At: lambda found: {"at": found.ms},
    RRule: lambda found: _given(rrule=found.text, tz=found.tz_name, start=found.start and found.start.isoformat()),
    Manual: lambda found: {"manual": True},
    crontab: _encode_crontab,
    schedule: lambda found: _given(schedule=found.run_every.total_seconds(), relative=found.relative or None),
    solar: lambda found: {"solar": [found.event, found.lat, found.lon]},
}
_DECODERS: dict[str, tuple[Callable[[Mapping[str, Any]], BaseSchedule], tuple[str, ...]]] = {
    "every": (_decode_every, ("align", "spread", "resolved")),
    "cron": (_decode_cron, ("tz", "seconds", "resolved")),
    "at": (lambda obj: at(from_ms(_whole(obj["at"]))), ()),
    "rrule": (_decode_rrule, ("tz", "start")),
    "manual": (lambda obj: Manual(stored=obj["manual"]), ()),
    "crontab": (_decode_crontab, ()),
    "schedule": (_decode_celery_interval, ("relative",)),
    "solar": (_decode_solar, ()),
    "custom": (_decode_custom, ("data",)),
}
