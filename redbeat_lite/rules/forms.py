"""Forms of schedules, the same in Python, in files, in Redis, on the page and in ``--json``.

===================================  ==========================================================
``{"every": "1h30m"}``               `every`; also ``"align": true`` or ``"spread": true``
``{"cron": "0 3 * * *"}``            `cron`; also ``"tz"`` and ``"seconds"``
``{"at": "2026-12-01T09:00Z"}``      `at`
``{"rrule": "FREQ=DAILY"}``          `rrule`; also ``"tz"`` and ``"start"``
``{"manual": true}``                 `manual`
``{"crontab": [0, "*/4", "*", …]}``  Celery's crontab: its fields in the order of its arguments
``{"schedule": 30.0}``               Celery's interval in seconds; also ``"relative": true``
``{"solar": ["sunset", 52.5, 13]}``  Celery's event of the sun
``{"custom": "name", "data": …}``    instance of a class that `register_schedule` has registered
===================================  ==========================================================

Users may also write a number, a timedelta or a text such as ``"30s"`` for Celery's interval.
A form builds these schedules and nothing else, so a stored text cannot name code to run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Any, NamedTuple, TypeVar

from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, ParseException, crontab, schedule, solar
from msgspec import Meta, ValidationError, convert

from .._base.errors import CorruptEntry, InvalidEntry, NotKnownHere, check_field_names
from .._base.json_values import pack, unpack
from .._base.public import public
from .._base.text import nearest_hint
from .._base.times import DURATION_FORMS, duration_text, in_zone, seconds_of
from .cron import cron
from .intervals import at, every, interval_ms, manual
from .rrules import rrule
from .rule import RuleSchedule

S = TypeVar("S", bound=BaseSchedule)
#: Errors that the constructors of schedules raise for unexpected values.
_REFUSALS = (
    *(ValueError, TypeError, KeyError, ArithmeticError),
    *(ParseException, ImproperlyConfigured, ValidationError, CorruptEntry),
)
#: Text among the stored values of a schedule class of Celery.
_Text = Annotated[str, Meta(max_length=500)]
#: Field of Celery's crontab. A list has at most 60 numbers, all minutes of an hour.
_CrontabField = int | _Text | Annotated[list[int], Meta(min_length=1, max_length=60)]
_CrontabFields = Annotated[list[_CrontabField], Meta(min_length=5, max_length=5)]
#: Event of the sun, latitude and longitude.
_SolarRule = tuple[
    _Text, Annotated[float, Meta(ge=-90, le=90)], Annotated[float, Meta(ge=-180, le=180)]
]


class ScheduleKind(NamedTuple):
    """Kind of schedules, such as ``cron``.

    The form of a schedule is a JSON object such as ``{"cron": "0 3 * * *", "tz": "UTC"}``. Its
    field with the name of the kind holds the rule; the other fields are options.

    Parameters:
        cls: class of the schedules; ``None`` for the kind ``custom``, which stands for all classes
            that users have registered.
        encode: returns the form of a schedule.
        make: returns the schedule of a rule and of options, and refuses wrong values.
        options: names of the further fields of the form.
    """

    cls: Any
    encode: Callable[[Any], Any]
    make: Callable[..., BaseSchedule]
    options: tuple[str, ...] = ()


#: Schedule classes that users have registered, by name. Their ``encode`` and ``make`` handle the
#: value under ``data``, and not the whole form.
_custom: dict[str, ScheduleKind] = {}


@public
def register_schedule(
    cls: type[S],
    encode: Callable[[S], object],
    decode: Callable[[Any], S],
    *,
    name: str | None = None,
) -> None:
    """Make a schedule class of your own storable. Call it in every process that imports the class.

    The beat plans runs in advance. If the class has ``next_after(instant)``, which returns the
    first occurrence later than an aware datetime, or None, the beat calls that. Any other class is
    asked by Celery's ``is_due``, up to ten times, with the clock of the schedule set to later and
    later times. If the answer is never that a run is due, the class is asked again in real time,
    after the seconds that the first answer named.

    Parameters:
        encode: makes data of an instance: anything that may be an argument of a task.
        decode: makes an equal instance of that data, and raises ValueError for data that it cannot
            read.
        name: name of the class in the store; by default module and class name. Registering a
            name again replaces its class, so a class that moved can keep its old name.

    Raises:
        InvalidEntry: ``cls`` is not a schedule class, or it is a class that has a form already.
    """
    if not (isinstance(cls, type) and issubclass(cls, BaseSchedule)):
        raise InvalidEntry("cls", "a subclass of celery.schedules.BaseSchedule", cls)
    if any(cls is kind.cls for kind in SCHEDULE_KINDS.values()):
        raise InvalidEntry("cls", "a class without a form of its own", cls)
    _custom[name or f"{cls.__module__}.{cls.__qualname__}"] = ScheduleKind(cls, encode, decode)


def coerce_schedule(value: object) -> BaseSchedule:
    """Return the schedule that a user wrote: a schedule, a form, or a length of time.

    Raises InvalidEntry for anything else; if it is a cron expression, the hint is to call ``cron``.
    """
    if isinstance(value, BaseSchedule):
        return value
    if isinstance(value, Mapping):
        return decode_schedule(value)
    seconds = seconds_of(value)
    if seconds is None:
        raise InvalidEntry("schedule", f"{DURATION_FORMS}, or a schedule", value, hint=_hint(value))
    # This only refuses a length of time that is out of bounds.
    interval_ms(value, exact=False)
    # Return Celery's own class, because other tools know it.
    return schedule(value if isinstance(value, timedelta) else seconds)


def _hint(value: object) -> str | None:
    """Return what to write instead of a value that is no schedule."""
    if isinstance(value, datetime):
        return "to run once, write at(...)"
    if not isinstance(value, str):
        return None
    # The text may be a cron expression.
    with suppress(InvalidEntry):
        return f'write cron("{cron(value).expression}")'
    return 'for example "5m" or cron("0 3 * * *")'


def encode_schedule(schedule_: BaseSchedule) -> dict[str, Any]:
    """Return the form of a schedule.

    Raises InvalidEntry: its class has no form. A subclass of a class with a form has none either,
    because it may run at other times.
    """
    for name, custom in _custom.items():
        if type(schedule_) is custom.cls:
            return {"custom": name, "data": pack(custom.encode(schedule_), "schedule.data")}
    for kind in SCHEDULE_KINDS.values():
        if type(schedule_) is kind.cls:
            if schedule_.nowfun is not None:
                hint = 'a function cannot be stored: for a zone, write cron("...", tz="...")'
                raise InvalidEntry("schedule", "a schedule without nowfun", schedule_, hint=hint)
            form: dict[str, Any] = kind.encode(schedule_)
            return form
    hint = "register its class with register_schedule"
    raise InvalidEntry("schedule", "a schedule that can be stored", schedule_, hint=hint)


def decode_schedule(form: object) -> BaseSchedule:
    """Return the schedule of a form.

    Raises InvalidEntry: ``form`` is no form, or it has a value that the schedule refuses.
    """
    if not isinstance(form, Mapping):
        raise InvalidEntry("schedule", 'a form such as {"every": "5m"}', form)
    name = next((name for name in SCHEDULE_KINDS if name in form), None)
    if name is None:
        expected = f"one of the fields {', '.join(SCHEDULE_KINDS)}"
        fields = sorted(map(str, form))
        hint = nearest_hint(fields[0], SCHEDULE_KINDS) if fields else None
        raise InvalidEntry("schedule", expected, fields, hint=hint)
    kind = SCHEDULE_KINDS[name]
    check_field_names("schedule", form, (name, *kind.options))
    options = dict(form)
    rule = options.pop(name)
    try:
        return kind.make(rule, **options)
    except NotKnownHere:
        # The form is not wrong, because another process may know the class. Callers tell this error
        # from the others by its type.
        raise
    except InvalidEntry as error:
        # An error that names no field of the form is about the rule, in the field ``name``.
        field = name if error.field == "schedule" else error.field
        raise error.at(f"schedule.{field}") from None
    except _REFUSALS as error:
        hint = str(error)[:200]
        raise InvalidEntry(
            f"schedule.{name}", "a rule that can be read", rule, hint=hint
        ) from error


def schedule_text(schedule_: BaseSchedule, zone: tzinfo = UTC) -> str:
    """Describe a schedule in a few words, and show the instant of ``at`` in a zone."""
    try:
        form = encode_schedule(schedule_)
    except InvalidEntry:
        return repr(schedule_)
    match form:
        case {"at": instant}:
            return f"at {in_zone(datetime.fromisoformat(instant), zone)}"
        case {"manual": _}:
            return "manual"
        case {"crontab": [minute, hour, weekday, *others]}:
            # Celery's crontab has the weekday third; people write it last.
            texts = map(_crontab_text, (minute, hour, *others, weekday))
            return f"crontab {' '.join(texts)}"
        case {"schedule": seconds}:
            return f"every {duration_text(round(seconds * 1000))}"
        case {"solar": [event, latitude, longitude]}:
            return f"{event} at {latitude:g}, {longitude:g}"
    # In every other form, the first field has the rule. Show an option by its name if it is on. The
    # split and the join leave out a zone that is missing, and all breaks of lines.
    kind, rule = next(iter(form.items()))
    options = [field for field, value in form.items() if value is True]
    return " ".join([*f"{kind} {rule} {form.get('tz', '')}".split(), *options])


def _crontab_text(field: object) -> str:
    """Return a field of Celery's crontab, which may be a list, as a text."""
    return ",".join(map(str, field)) if isinstance(field, list) else str(field)


def schedule_identity(schedule_: BaseSchedule) -> str | int:
    """Return a value that differs between schedules with different forms.

    A schedule without a form is equal to itself only. Celery's own comparison is not enough,
    because it looks at ``nowfun`` alone.
    """
    try:
        return json.dumps(encode_schedule(schedule_), sort_keys=True)
    except (InvalidEntry, TypeError, ValueError):
        return id(schedule_)


# -- Celery's and users' schedules -----------------------------------------------------------------


def _crontab_form(schedule_: crontab) -> dict[str, Any]:
    """Return the form of Celery's crontab: its fields as written, in the order of its arguments."""
    names = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
    fields = [getattr(schedule_, f"_orig_{name}") for name in names]
    return {"crontab": [text if isinstance(text, (int, str)) else sorted(text) for text in fields]}


def _interval_form(schedule_: schedule) -> dict[str, Any]:
    """Return the form of Celery's interval, with ``relative`` only if it is true."""
    form = {"schedule": schedule_.run_every.total_seconds()}
    return {**form, "relative": True} if schedule_.relative else form


def _make_interval(seconds: object, relative: object = False) -> schedule:
    # The bounds of the interval are checked when the rule of the schedule is made.
    return schedule(convert(seconds, float), convert(relative, bool))


def _make_custom(name: object, data: object = None) -> BaseSchedule:
    """Return the schedule of a user's class from its stored data.

    Raises NotKnownHere if this process has not registered the class. Another process may have
    registered it.
    """
    custom = _custom.get(convert(name, _Text))
    if custom is None:
        hint = nearest_hint(str(name), _custom) or "import the module that calls register_schedule"
        raise NotKnownHere("schedule", "a registered schedule", name, hint=hint)
    schedule_ = custom.make(unpack(data))
    if type(schedule_) is not custom.cls:
        raise InvalidEntry("schedule", f"a {custom.cls.__name__} from its decoder", schedule_)
    return schedule_


def _own_kind(cls: type[RuleSchedule]) -> ScheduleKind:
    """Return the ``ScheduleKind`` of a class whose arguments are the fields of its stored form."""
    # The first field holds the rule, and the other fields are options.
    _, *options = dict(cls.fields)
    return ScheduleKind(cls, encode=cls.form, make=cls, options=tuple(options))


#: Kinds of schedules by their names.
SCHEDULE_KINDS = {
    "every": _own_kind(every),
    "cron": _own_kind(cron),
    "at": _own_kind(at),
    "rrule": _own_kind(rrule),
    "manual": _own_kind(manual),
    "crontab": ScheduleKind(
        crontab, _crontab_form, lambda fields: crontab(*convert(fields, _CrontabFields))
    ),
    "schedule": ScheduleKind(schedule, _interval_form, _make_interval, ("relative",)),
    "solar": ScheduleKind(
        solar,
        lambda sun: {"solar": [sun.event, float(sun.lat), float(sun.lon)]},
        lambda rule: solar(*convert(rule, _SolarRule)),
    ),
    "custom": ScheduleKind(None, lambda schedule_: None, _make_custom, ("data",)),
}
