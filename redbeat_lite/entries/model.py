"""Definition of an entry: its fields, each with type, default, kind and a sentence for people.

The command line, the page, files and the stored form follow from this one list. A new field is a
line of :class:`Definition`, and a line of :class:`Policies` for type checkers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeGuard,
)

from celery import schedules
from celery.utils.abstract import CallableSignature

from .._base.errors import InvalidEntry
from .._base.fields import POSITIVE, Flag, Instant, Kind, Length, Model, Name, Whole, fields_of
from .._base.public import public
from .._base.text import is_short_text, nearest_hint
from .._base.times import DURATION_FORMS, YEAR, Duration
from ..once.canvas import CANVAS, CANVASES, plain
from ..policies import (
    Expect,
    ExpectFields,
    Misfire,
    MisfireFields,
    MisfirePolicy,
    Once,
    OnceFields,
    Pause,
)
from ..rules import Manual, coerce_schedule, decode_schedule, encode_schedule
from ..rules.calendars import Calendar
from ..settings import MAX_HISTORY, MAX_NAME
from ..store.json_values import pack, unpack
from .apply_options import KNOWN, check_options
from .foreign_fields import INSTEAD

if TYPE_CHECKING:
    # Celery ships no types, so mypy would accept any value for its class, such as None or a
    # datetime.

    class BaseSchedule(Protocol):
        def is_due(self, last_run_at: Any) -> Any: ...
else:
    BaseSchedule = schedules.BaseSchedule

#: Most tags of an entry.
MAX_TAGS = 20

#: Most characters of a tag.
MAX_TAG = 100


#: Kind of the name of an entry.
NAME = Name(MAX_NAME)


def is_name(value: object) -> TypeGuard[str]:
    """Whether ``value`` can be the name of an entry or a task."""
    return is_short_text(value, MAX_NAME)


class Text(Kind):
    """Text of any length."""

    expected = "text"

    def read(self, field: str, value: Any) -> Any:
        if not isinstance(value, str):
            raise self.wrong(field, value)
        return value

    def store(self, field: str, value: Any) -> Any:
        return pack(value, field)


class TaskName(Name):
    """Name of a task."""

    metavar = "TEXT"

    def __init__(self) -> None:
        super().__init__(MAX_NAME)
        self.expected = f"a task, a signature, a Pipeline, or {self.expected}"


class ScheduleKind(Kind):
    """Schedule; a length of time becomes Celery's interval."""

    expected = f"{DURATION_FORMS}, or a schedule"

    def read(self, field: str, value: Any) -> Any:
        return coerce_schedule(value)

    def store(self, field: str, value: Any) -> Any:
        return encode_schedule(value)

    def load(self, stored: Any) -> Any:
        return decode_schedule(stored)


class Values(Kind):
    """Values by name, of every type that JSON or kombu's JSON types can hold."""

    metavar = "JSON"
    expected = "a dict"

    def read(self, field: str, value: Any) -> Any:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.wrong(field, value)
        for key in value:
            if not isinstance(key, str):
                raise InvalidEntry(field, "a dict with text keys", key)
        return dict(value)

    def store(self, field: str, value: Any) -> Any:
        return pack(value, field)

    def load(self, stored: Any) -> Any:
        return unpack(stored)


class Arguments(Values):
    """Positional arguments."""

    expected = "a list or tuple"

    def read(self, field: str, value: Any) -> Any:
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)):
            raise self.wrong(field, value, "one argument is written (value,)")
        return tuple(value)

    def store(self, field: str, value: Any) -> Any:
        return pack([*value], field)


class Options(Values):
    """Options of ``apply_async``."""

    def read(self, field: str, value: Any) -> Any:
        options: dict[str, Any] = super().read(field, value)
        if not options:
            return options
        # The headers must be a dict, because the beat adds its own headers for each run.
        super().read("options.headers", options.get("headers"))
        check_options(options)
        return options


class Expires(Length):
    """Length of time until a message expires, or ``"interval"``.

    It is at most 100 years, so that a datetime can hold the instant.
    """

    def __init__(self) -> None:
        super().__init__(POSITIVE, 100 * YEAR)
        self.expected = f'"interval", or {self.expected}'

    def read(self, field: str, value: Any) -> Any:
        if value == "interval":
            return value
        if isinstance(value, datetime):
            raise self.wrong(field, value, "the last instant of an entry is its end_at")
        return super().read(field, value)


class Policy(Kind):
    """Policy of a class, in each of its forms."""

    metavar = "POLICY"

    def __init__(self, model: type[Model]) -> None:
        self.model = model

    def read(self, field: str, value: Any) -> Any:
        return self.model.of(value)

    def store(self, field: str, value: Any) -> Any:
        return value and value.encode()

    def load(self, stored: Any) -> Any:
        return self.model.decode(stored)


class CalendarKind(Name):
    """Calendar, or the name of a stored one."""

    def __init__(self) -> None:
        super().__init__(MAX_NAME)
        self.expected = "the name of a stored calendar"

    def read(self, field: str, value: Any) -> Any:
        is_calendar = isinstance(value, Calendar)
        name = value.name if is_calendar else value
        if not is_name(name) or "@" in name:
            hint = "store it: schedules.calendars[name] = ..." if is_calendar else None
            raise self.wrong(field, value, hint)
        return value

    def store(self, field: str, value: Any) -> Any:
        if not isinstance(value, Calendar):
            raise InvalidEntry(field, "a calendar that is stored", value)
        return value.encode()

    def load(self, stored: Any) -> Any:
        return Calendar.decode(stored)


class Tags(Kind):
    """Several words."""

    metavar = "TAG,..."
    expected = (
        f"up to {MAX_TAGS} different texts of 1 to {MAX_TAG} characters without commas and "
        "control characters"
    )

    def read(self, field: str, value: Any) -> Any:
        tags = tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (value,)
        if len(set(map(str, tags))) != len(tags) or len(tags) > MAX_TAGS:
            raise self.wrong(field, value)
        for tag in tags:
            if not is_short_text(tag, MAX_TAG) or "," in tag:
                raise self.wrong(field, tag)
        return tuple(sorted(tags))

    def store(self, field: str, value: Any) -> Any:
        return list(value)


class Definition(Model, frozen=True, kw_only=True):
    """Fields that a user writes of an entry. :class:`redbeat_lite.Entry` has them as attributes.

    The sentence beside a field is its help on the command line and on the page. The page about the
    fields of an entry explains them.
    """

    task: Annotated[str, TaskName(), "The name of the task."]
    schedule: Annotated[schedules.BaseSchedule, ScheduleKind()]
    args: Annotated[tuple[Any, ...], Arguments(), "Arguments: '[1, \"two\"]'."] = ()
    kwargs: Annotated[Mapping[str, Any], Values(), "Arguments by name: '{\"x\": 1}'."] = {}
    options: Annotated[Mapping[str, Any], Options(), 'Of apply_async: \'{"queue": "slow"}\'.'] = {}
    expires: Annotated[float | str | None, Expires(), 'A length of time, "interval" or "none".'] = (
        "interval"
    )
    once: Annotated[
        Once | None, Policy(Once), 'One run at a time: true, false, or as "scope=run,lease=30s".'
    ] = None
    misfire: Annotated[
        Misfire, Policy(Misfire), 'coalesce, skip, all, or as "policy=skip,grace=30s".'
    ] = Misfire()
    jitter: Annotated[float, Length(), "Put off each run by up to this."] = 0.0
    start_at: Annotated[datetime | None, Instant(), 'No run before this; or "none".'] = None
    end_at: Annotated[datetime | None, Instant(), 'No run after this; or "none".'] = None
    max_runs: Annotated[int | None, Whole(1), 'Finish after so many runs; or "none".'] = None
    enabled: Annotated[bool, Flag(off="disabled"), "Whether it fires at all."] = True
    description: Annotated[str, Text(), "Free text for people."] = ""
    remove_when_done: Annotated[
        bool, Flag(off="keep-when-done"), "What becomes of it once finished."
    ] = False
    history: Annotated[
        int | None,
        Whole(0, MAX_HISTORY),
        'Remember so many of its last runs; or "none": as the app\'s do.',
    ] = None
    expect: Annotated[
        Expect | Literal[False] | None,
        Policy(Expect),
        'As "start_within=30s,failures=3", "false" or "none".',
    ] = None
    on_failure: Annotated[
        Pause | None, Policy(Pause), '"pause:3": pause it after so many in a row; or "none".'
    ] = None
    calendar: Annotated[
        Calendar | str | None, CalendarKind(), 'Not on the days of this calendar; or "none".'
    ] = None
    tags: Annotated[
        tuple[str, ...], Tags(), 'Words by which it is selected with others; or "none".'
    ] = ()

    #: Fields about occurrences, which an entry with `manual()` does not have.
    OF_OCCURRENCES: ClassVar = (
        *("misfire", "jitter", "start_at", "end_at", "max_runs"),
        *("remove_when_done", "on_failure"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_at and self.end_at and self.end_at < self.start_at:
            expected = f"an instant not before start_at ({self.start_at.isoformat()})"
            raise InvalidEntry("end_at", expected, self.end_at)
        for field in ("expect", "on_failure"):
            value = getattr(self, field)
            if value and self.remove_when_done:
                raise InvalidEntry(
                    field, "none beside remove_when_done: it is looked at later", value
                )
            if value and self.history == 0:
                expected = f"at least 1 beside {field}, which goes by what is recorded"
                raise InvalidEntry("history", expected, 0)
        if isinstance(self.schedule, Manual):
            self._check_manual()

    def _check_manual(self) -> None:
        for field in self.OF_OCCURRENCES:
            value = getattr(self, field)
            if value != FIELDS[field].default:
                raise InvalidEntry(field, f"no {field} beside manual(), which is never due", value)
        if self.expect and self.expect != Expect(failures=self.expect.failures):
            expected = "failures alone beside manual(), which is never due"
            raise InvalidEntry("expect", expected, self.expect)


#: Fields that a user may write, by name.
FIELDS = fields_of(Definition)


def definition_of(fields: Mapping[str, Any]) -> Definition:
    """Return the definition of the fields that a user has written.

    A signature or a pipeline as ``task`` brings its own arguments.

    Raises:
        InvalidEntry: a field is missing, unknown or wrong.
    """
    for field, value in fields.items():
        if field not in FIELDS:
            raise unknown_field(field, value)
    for field in ("task", "schedule"):
        if field not in fields:
            expected = FIELDS[field].kind.expected
            raise InvalidEntry(field, expected, None, hint="the field is missing")
    task = fields["task"]
    if isinstance(task, str):
        return Definition(**fields)
    if isinstance(task, CallableSignature):
        return Definition(**{**fields, **_of_signature(task, fields)})
    if hasattr(task, "as_entry"):
        if fields.get("kwargs"):
            expected = "none beside a pipeline, which has its own params"
            raise InvalidEntry("kwargs", expected, fields["kwargs"])
        return Definition(**{**fields, **task.as_entry()})
    return Definition(**{**fields, "task": getattr(task, "name", task)})


def _of_signature(task: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a signature brings."""
    for field in ("args", "kwargs"):
        if fields.get(field):
            expected = "none beside a signature, which has its own"
            raise InvalidEntry(field, expected, fields[field])
    if task.task in CANVASES:
        return {"task": CANVAS, "args": (plain(unpack(pack(task, "task"))),)}
    options = FIELDS["options"].read(fields.get("options"))
    return {
        "task": task.task,
        "args": task.args,
        "kwargs": task.kwargs,
        "options": {**task.options, **options},
    }


def brings_arguments(task: Any) -> bool:
    """Whether ``task`` is a signature or a pipeline, which has arguments of its own."""
    return isinstance(task, CallableSignature) or hasattr(task, "as_entry")


def unknown_field(field: object, value: object) -> InvalidEntry:
    """Return the error for a field that an entry does not have, with a hint about the right one."""
    name = str(field)
    if name in INSTEAD:
        hint: str | None = INSTEAD[name]
    elif name in KNOWN:
        hint = f"it belongs into options: {{{name!r}: ...}}"
    elif name in fields_of(Once):
        hint = f"it belongs into once: {{{name!r}: ...}}"
    else:
        hint = nearest_hint(name, (*FIELDS, "relative"))
    return InvalidEntry(name, "a known field", value, hint=hint)


# -- Types of the values that a user may write, for type checkers ----------------------------------

Schedule: TypeAlias = Duration | BaseSchedule
# Not Sequence, because a text is a sequence too.
Args = list[Any] | tuple[Any, ...] | None
Kwargs = Mapping[str, Any] | None


@public
class Policies(TypedDict, total=False):
    """The optional fields that :meth:`redbeat_lite.Schedules.add` takes by name."""

    expires: Duration | None  # a text may be "interval"
    once: bool | Once | OnceFields | None
    misfire: MisfirePolicy | Misfire | MisfireFields
    jitter: Duration
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    enabled: bool
    description: str
    remove_when_done: bool
    history: int | None
    expect: Expect | ExpectFields | Literal[False] | None
    on_failure: Pause | str | None
    calendar: Calendar | str | None
    tags: Collection[str]


@public
class Changes(Policies, total=False):
    """All fields that may be changed."""

    task: Any
    schedule: Schedule
    args: Args
    kwargs: Kwargs
    options: Kwargs
    relative: bool
