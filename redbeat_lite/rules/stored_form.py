"""Schedules as compact JSON, and back.

=====================================  =======================================================
``{"every": 10000}``                   `every`, in milliseconds; ``"align"`` or ``"spread": true``
``{"cron": "0 3 * * *"}``              `cron`; with ``"tz"`` and ``"seconds"`` if they are set
``{"at": 1767225600000}``              `at`, in milliseconds since 1970
``{"rrule": "FREQ=DAILY"}``            `rrule`; with ``"tz"`` and ``"start"`` if they are set
``{"manual": true}``                   `manual`
``{"crontab": [0, "*/4", "*", …]}``    Celery's: fields as written, in the order of its arguments
``{"schedule": 30.0}``                 Celery's, in seconds; ``"relative": true``
``{"solar": ["sunset", 52.5, 13.4]}``  Celery's
``{"custom": "name", "data": …}``      a class that `register_schedule` has registered
=====================================  =======================================================

Decoding builds these and nothing else, so a stored text cannot name code to run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, ParseException, crontab, schedule, solar

from .._base.errors import InvalidEntry, NotKnownHere
from .._base.public import public
from .._base.text import nearest_hint
from .._base.times import DURATION_FORMS, from_ms, seconds_of
from .cron import Cron
from .intervals import At, Every, Manual, at, interval_ms
from .rrules import RRule

S = TypeVar("S", bound=BaseSchedule)
#: Errors of a constructor that is called with unexpected stored values.
_UNREADABLE = (
    *(ValueError, TypeError, KeyError, ArithmeticError),
    *(ParseException, ImproperlyConfigured),
)
#: Most items of a list in a field of Celery's crontab: the minutes of an hour.
_MAX_LIST = 60
#: Most characters of a text.
_MAX_TEXT = 500


class _Custom(NamedTuple):
    """Registered schedule class."""

    cls: type
    encode: Callable[[Any], object]
    decode: Callable[[Any], BaseSchedule]


_custom: dict[str, _Custom] = {}


@public
def register_schedule(
    cls: type[S],
    encode: Callable[[S], object],
    decode: Callable[[Any], S],
    *,
    name: str | None = None,
) -> None:
    """Teach the store a schedule class of your own; do it in every process that imports the class.

    The beat asks Celery's ``is_due`` when to run, or ``next_after(instant)`` if the class has it.
    ``next_after`` returns the first occurrence later than an aware datetime, or None. If ``is_due``
    does not name the next occurrence within ten questions, it is asked again in real time, after
    the seconds that it returned.

    Parameters:
        encode: makes JSON-able data of an instance.
        decode: makes an equal instance of that data, and raises ValueError for data that it cannot
            read.
        name: name of the class in the store; by default module and class name. Registering a
            name again replaces it, so a class that moved can keep its old name.

    Raises:
        InvalidEntry: not a schedule class, or one that has a stored form already.
    """
    if not (isinstance(cls, type) and issubclass(cls, BaseSchedule)):
        raise InvalidEntry("cls", "a subclass of celery.schedules.BaseSchedule", cls)
    if any(cls is form.cls for form in _FORMS.values()):
        raise InvalidEntry("cls", "a class without a stored form of its own", cls)
    _custom[name or f"{cls.__module__}.{cls.__qualname__}"] = _Custom(cls, encode, decode)


def coerce_schedule(value: object) -> BaseSchedule:
    """Return a schedule as it is, or Celery's interval from a length of time.

    Raises InvalidEntry for anything else; if it is a cron expression, the hint is to call ``cron``.
    """
    if isinstance(value, BaseSchedule):
        return value
    seconds = seconds_of(value)
    if seconds is None:
        raise InvalidEntry("schedule", f"{DURATION_FORMS}, or a schedule", value, hint=_hint(value))
    interval_ms(value, exact=False)
    # Celery's own class, so that tools which know it find what they expect.
    return schedule(value if isinstance(value, timedelta) else seconds)


def _hint(value: object) -> str | None:
    if isinstance(value, datetime):
        return "to run once, write at(...)"
    if not isinstance(value, str):
        return None
    with suppress(InvalidEntry):
        return f'write cron("{Cron(value).expression}")'
    return 'for example "5m" or cron("0 3 * * *")'


def encode_schedule(schedule_: BaseSchedule) -> dict[str, Any]:
    """Return the stored form of a schedule.

    Raises InvalidEntry: it has none. A subclass of a schedule that has one may run at other times.
    """
    for name, custom in _custom.items():
        if type(schedule_) is custom.cls:
            return _encode_custom(name, custom, schedule_)
    form = next((form for form in _FORMS.values() if type(schedule_) is form.cls), None)
    if form is None:
        is_schedule = isinstance(schedule_, BaseSchedule)
        hint = "register its class with register_schedule" if is_schedule else None
        raise InvalidEntry("schedule", "a schedule that can be stored", schedule_, hint=hint)
    if form.is_celerys and schedule_.nowfun is not None:
        hint = 'a function cannot be stored: for a zone, write cron("...", tz="...")'
        raise InvalidEntry("schedule", "a schedule without nowfun", schedule_, hint=hint)
    return {name: value for name, value in form.encode(schedule_).items() if value is not None}


def _encode_custom(name: str, custom: _Custom, schedule_: BaseSchedule) -> dict[str, Any]:
    data = custom.encode(schedule_)
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError):
        expected = f"JSON-able data from the encoder of {type(schedule_).__name__}"
        raise InvalidEntry("schedule", expected, data) from None
    return {"custom": name, "data": data}


def decode_schedule(obj: object) -> BaseSchedule:
    """Return the schedule of a stored form.

    Raises InvalidEntry: it is no stored form, or the schedule refuses its values.
    """
    if not isinstance(obj, Mapping):
        raise InvalidEntry("schedule", "a stored schedule", obj)
    kind = next((kind for kind in (*_FORMS, "custom") if kind in obj), None)
    if kind is None:
        raise InvalidEntry("schedule", "a known kind of schedule", sorted(map(str, obj)))
    decode = _decode_custom if kind == "custom" else _FORMS[kind].decode
    names = (kind, *(("data",) if kind == "custom" else _FORMS[kind].options))
    unknown = sorted(str(name) for name in obj if name not in names)
    if unknown:
        raise InvalidEntry("schedule", f"only {', '.join(names)}", unknown)
    try:
        return decode(obj)
    except InvalidEntry:
        raise
    except _UNREADABLE as error:
        hint = str(error)[:200]
        raise InvalidEntry("schedule", "a stored schedule", dict(obj), hint=hint) from error


def _decode_custom(obj: Mapping[str, Any]) -> BaseSchedule:
    """Return a schedule of a registered class."""
    name = _text(obj["custom"])
    custom = _custom.get(name)
    if custom is None:
        hint = nearest_hint(name, _custom) or "import the module that calls register_schedule"
        raise NotKnownHere("schedule", "a registered schedule", name, hint=hint)
    schedule_ = custom.decode(obj.get("data"))
    if not isinstance(schedule_, custom.cls):
        raise InvalidEntry("schedule", f"a {custom.cls.__name__} from its decoder", schedule_)
    return schedule_


def _whole(value: object) -> int:
    if type(value) is not int:
        raise InvalidEntry("schedule", "a whole number", value)
    return value


def _number(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise InvalidEntry("schedule", "a number", value)
    return value  # type: ignore[return-value]


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise InvalidEntry("schedule", f"a text of at most {_MAX_TEXT} characters", value)
    return value


def _encode_every(schedule_: Every) -> dict[str, Any]:
    return {
        "every": schedule_.ms,
        "align": schedule_.align or None,
        "spread": schedule_.spread or None,
        **schedule_.kept(),
    }


def _decode_every(obj: Mapping[str, Any]) -> Every:
    interval = timedelta(milliseconds=_whole(obj["every"]))
    schedule_ = Every(interval, align=obj.get("align", False), spread=obj.get("spread", False))
    return schedule_.as_kept(_whole(obj["resolved"])) if "resolved" in obj else schedule_


def _encode_cron(schedule_: Cron) -> dict[str, Any]:
    return {
        "cron": schedule_.expression,
        **schedule_.kept(),
        "tz": schedule_.tz_name,
        "seconds": None if schedule_.seconds == "last" else schedule_.seconds,
    }


def _decode_cron(obj: Mapping[str, Any]) -> Cron:
    schedule_ = Cron(_text(obj["cron"]), tz=obj.get("tz"), seconds=obj.get("seconds", "last"))
    schedule_ = schedule_.as_kept(obj.get("resolved"))
    if schedule_.resolved is not None:
        _ = schedule_.times  # raises InvalidEntry if the stored text is no expression
    return schedule_


def _encode_rrule(schedule_: RRule) -> dict[str, Any]:
    start = None if schedule_.start is None else schedule_.start.isoformat()
    return {"rrule": schedule_.text, "tz": schedule_.tz_name, "start": start}


def _decode_rrule(obj: Mapping[str, Any]) -> RRule:
    start = obj.get("start")
    start = None if start is None else datetime.fromisoformat(start)
    return RRule(obj["rrule"], tz=obj.get("tz"), start=start)


def _decode_manual(obj: Mapping[str, Any]) -> Manual:
    if obj["manual"] is not True:
        raise InvalidEntry("schedule.manual", "true", obj["manual"])
    return Manual()


def _encode_crontab(schedule_: crontab) -> dict[str, Any]:
    # As written, and in the order of the arguments.
    names = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
    fields = [getattr(schedule_, f"_orig_{name}") for name in names]
    stored = [field if isinstance(field, (int, str)) else sorted(field) for field in fields]
    return {"crontab": stored}


def _decode_crontab(obj: Mapping[str, Any]) -> crontab:
    fields = obj["crontab"]
    if not isinstance(fields, list) or len(fields) != 5:
        raise InvalidEntry("schedule", "the five fields of a crontab", fields)
    return crontab(*(_crontab_field(field) for field in fields))


def _crontab_field(field: object) -> Any:
    if isinstance(field, str):
        return _text(field)
    if isinstance(field, list) and 0 < len(field) <= _MAX_LIST:
        return [_whole(value) for value in field]
    return _whole(field)


def _encode_celery_interval(schedule_: schedule) -> dict[str, Any]:
    return {"schedule": schedule_.run_every.total_seconds(), "relative": schedule_.relative or None}


def _decode_celery_interval(obj: Mapping[str, Any]) -> schedule:
    relative = obj.get("relative", False)
    if not isinstance(relative, bool):
        raise InvalidEntry("schedule", "relative as true or false", relative)
    return schedule(_number(obj["schedule"]), relative)  # its rule checks the bounds


def _decode_solar(obj: Mapping[str, Any]) -> solar:
    event, lat, lon = obj["solar"]
    return solar(_text(event), _number(lat), _number(lon))


class _Form(NamedTuple):
    """Stored form of a schedule class. ``options`` are its optional fields."""

    cls: type
    encode: Callable[[Any], dict[str, Any]]
    decode: Callable[[Mapping[str, Any]], BaseSchedule]
    options: tuple[str, ...] = ()
    is_celerys: bool = False


#: Forms by the field that names the kind.
_FORMS = {
    "every": _Form(Every, _encode_every, _decode_every, ("align", "spread", "resolved")),
    "cron": _Form(Cron, _encode_cron, _decode_cron, ("tz", "seconds", "resolved")),
    "at": _Form(
        At,
        lambda schedule_: {"at": schedule_.ms},
        lambda obj: at(from_ms(_whole(obj["at"]))),
    ),
    "rrule": _Form(RRule, _encode_rrule, _decode_rrule, ("tz", "start")),
    "manual": _Form(Manual, lambda schedule_: {"manual": True}, _decode_manual),
    "crontab": _Form(crontab, _encode_crontab, _decode_crontab, is_celerys=True),
    "schedule": _Form(
        schedule,
        _encode_celery_interval,
        _decode_celery_interval,
        ("relative",),
        is_celerys=True,
    ),
    "solar": _Form(
        solar,
        lambda schedule_: {"solar": [schedule_.event, schedule_.lat, schedule_.lon]},
        _decode_solar,
        is_celerys=True,
    ),
}
