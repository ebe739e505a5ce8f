"""Definition of an entry: its fields, each with type, default, kind and a sentence for people.

The command line, the page, files and the stored form follow from this one list. A new field is a
line of :class:`Definition`, and a line of :class:`Policies` for type checkers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeGuard,
)

from celery import schedules
from celery.utils.abstract import CallableSignature

from .._base.errors import InvalidEntry
from .._base.fields import (
    INSTANT,
    Kind,
    Model,
    checked_kind,
    fields_of,
    flag,
    length,
    name,
    require,
    whole,
)
from .._base.json_values import MAX_BYTES, dumps, pack, unpack
from .._base.public import public
from .._base.text import is_short_text, nearest_hint, shorten, storable
from .._base.times import DURATION_FORMS, Duration
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
from ..rules import coerce_schedule, decode_schedule, encode_schedule, manual
from ..rules.calendars import Calendar
from ..settings import EXPIRES, MAX_HISTORY, MAX_NAME
from .apply_options import KNOWN_OPTIONS, check_options
from .canvas import CANVAS, CANVASES, plain
from .changes import FORMAT
from .foreign_fields import FOREIGN_HINTS

if TYPE_CHECKING:
    from .entry import Entry

    # Celery ships no types, so mypy would accept any value for its class, such as None or a
    # datetime.

    class BaseSchedule(Protocol):
        def is_due(self, last_run_at: Any) -> Any: ...
else:
    BaseSchedule = schedules.BaseSchedule

#: Maximum number of tags of an entry.
MAX_TAGS = 20

#: Maximum number of characters of a tag.
_MAX_TAG = 100

#: Fields that concern occurrences. An entry with `manual()` has none, so it may not set them.
_OF_OCCURRENCES = (
    *("misfire", "jitter", "start_at", "end_at", "max_runs"),
    *("remove_when_done", "on_failure"),
)

#: Name of an entry.
NAME = name(MAX_NAME)

#: One tag of an entry.
TAG = checked_kind(
    "TAG",
    f"text of 1 to {_MAX_TAG} characters without commas and control characters",
    lambda tag: is_short_text(tag, _MAX_TAG) and "," not in tag,
)


def is_name(value: object) -> TypeGuard[str]:
    """Whether ``value`` can be the name of an entry or a task."""
    return is_short_text(value, MAX_NAME)


def _convert_mapping(value: Any) -> dict[str, Any]:
    """Return a mapping with text keys as a dict, empty for ``None``; refuse anything else."""
    if value is None:
        return {}
    require(isinstance(value, Mapping) and all(isinstance(key, str) for key in value), value)
    return dict(value)


def _convert_options(value: Any) -> dict[str, Any]:
    """Return the options of a message as a dict; refuse wrong ones."""
    options = _convert_mapping(value)
    if options:
        # This only checks: the headers must be a dict, because the beat adds its own headers for
        # each run.
        _VALUES.read("options.headers", options.get("headers"))
        check_options(options)
    return options


def _convert_args(value: Any) -> tuple[Any, ...]:
    """Return a list or tuple as a tuple, empty for ``None``; refuse anything else."""
    if value is None:
        return ()
    require(isinstance(value, (list, tuple)), value, "one argument is written (value,)")
    return tuple(value)


def _convert_calendar(value: Any) -> Calendar | str:
    """Return a stored calendar, or the name of one, unchanged; refuse anything else."""
    # In the stored form, "@" separates the name and the revision, so a name must not contain it.
    title = value
    hint = ""
    if isinstance(value, Calendar):
        title = value.name  # It is empty until the calendar is stored.
        hint = "store it: schedules.calendars[name] = ..."
    return require(is_name(title) and "@" not in title, value, hint)  # type: ignore[no-any-return]


def _store_calendar(calendar: Any, field: str) -> str:
    """Return the stored form of a calendar; refuse the mere name of one."""
    if not isinstance(calendar, Calendar):
        raise InvalidEntry(field, "a calendar that is stored", calendar)
    return calendar.encode()


def _convert_tags(value: Any) -> tuple[str, ...]:
    """Return the tags in ascending order. One tag may be written without a list around it."""
    tags = tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (value,)
    texts = sorted(map(TAG.convert, tags))
    are_different = len(set(texts)) == len(texts)
    require(are_different and len(texts) <= MAX_TAGS, value)
    return tuple(texts)


def _policy(model: type[Model]) -> Kind:
    """Return the kind of a policy, which a user may write in each form that its class accepts."""
    return Kind(
        "POLICY",
        model.forms,
        model.of,
        # ``None`` and ``False`` are stored as they are.
        lambda policy, field: policy and policy.encode(),
        model.decode,
    )


_TEXT = Kind("TEXT", "text", lambda value: require(isinstance(value, str), value), pack)
_TASK = NAME._replace(expected=f"a task, a signature, a Pipeline, or {NAME.expected}")
_SCHEDULE = Kind(
    "",
    f"{DURATION_FORMS}, or a schedule",
    coerce_schedule,
    lambda schedule, field: encode_schedule(schedule),
    decode_schedule,
)
_VALUES = Kind("JSON", "a dict with text keys", _convert_mapping, pack, unpack)
_OPTIONS = _VALUES._replace(convert=_convert_options)
_ARGS = Kind(
    "JSON", "a list or tuple", _convert_args, lambda args, field: pack([*args], field), unpack
)
_CALENDAR = Kind(
    "NAME", "the name of a stored calendar", _convert_calendar, _store_calendar, Calendar.decode
)
_TAGS = Kind(
    "TAG,...",
    f"up to {MAX_TAGS} different texts of 1 to {_MAX_TAG} characters without commas and control "
    "characters",
    _convert_tags,
    lambda tags, field: list(tags),
)


class Definition(Model, frozen=True, kw_only=True):
    """Fields of an entry that a user writes. :class:`redbeat_lite.Entry` has them as attributes.

    The sentence beside a field is its help on the command line and on the page, and the text after
    it is its label there. The page about the fields of an entry explains them.
    """

    task: Annotated[str, _TASK, "The name of the task."]
    schedule: Annotated[schedules.BaseSchedule, _SCHEDULE]
    args: Annotated[tuple[Any, ...], _ARGS, "Arguments: '[1, \"two\"]'.", "Arguments"] = ()
    kwargs: Annotated[
        Mapping[str, Any], _VALUES, "Arguments by name: '{\"x\": 1}'.", "Arguments by name"
    ] = {}
    options: Annotated[
        Mapping[str, Any],
        _OPTIONS,
        'Of apply_async: \'{"queue": "slow"}\'.',
        "Options of the message",
    ] = {}
    expires: Annotated[
        float | str | None,
        EXPIRES,
        'A length of time, "interval" or "none".',
        "Messages expire after",
    ] = "interval"
    once: Annotated[
        Once | None,
        _policy(Once),
        'One run at a time: true, false, or as "scope=run,lease=30s".',
        "One run at a time",
    ] = None
    misfire: Annotated[
        Misfire,
        _policy(Misfire),
        'coalesce, skip, all, or as "policy=skip,grace=30s".',
        "Missed runs",
    ] = Misfire()
    jitter: Annotated[float, length(), "Put off each run by up to this.", "Random delay up to"] = (
        0.0
    )
    start_at: Annotated[
        datetime | None, INSTANT, 'No run before this; or "none".', "No run before"
    ] = None
    end_at: Annotated[datetime | None, INSTANT, 'No run after this; or "none".', "No run after"] = (
        None
    )
    max_runs: Annotated[
        int | None, whole(1), 'Finish after so many runs; or "none".', "Number of runs"
    ] = None
    enabled: Annotated[bool, flag(off="disabled"), "Whether it fires at all."] = True
    description: Annotated[str, _TEXT, "Free text for people."] = ""
    remove_when_done: Annotated[
        bool,
        flag(off="keep-when-done"),
        "Remove the entry when it has finished.",
        "Remove when finished",
    ] = False
    history: Annotated[
        int | None,
        whole(0, MAX_HISTORY),
        'Remember so many of its last runs; or "none": as the app\'s do.',
        "Runs to remember",
    ] = None
    expect: Annotated[
        Expect | Literal[False] | None,
        _policy(Expect),
        'As "start_within=30s,failures=3", "false" or "none".',
        "Expectations",
    ] = None
    on_failure: Annotated[
        Pause | None,
        _policy(Pause),
        '"pause:3": pause it after so many in a row; or "none".',
        "After failures",
    ] = None
    calendar: Annotated[
        Calendar | str | None, _CALENDAR, 'Not on the days of this calendar; or "none".'
    ] = None
    tags: Annotated[
        tuple[str, ...], _TAGS, 'Words by which it is selected with others; or "none".'
    ] = ()

    def __post_init__(self) -> None:
        """Refuse fields that do not go together."""
        # definition_of() has checked each field that a user wrote. A check of the defaults would
        # take time for each entry that is read.
        if self.start_at and self.end_at and self.end_at < self.start_at:
            expected = f"an instant not before start_at ({self.start_at.isoformat()})"
            raise InvalidEntry("end_at", expected, self.end_at)
        for field in ("expect", "on_failure"):
            value = getattr(self, field)
            # Both are decided by recorded runs, and a removed entry has none.
            if value and self.remove_when_done:
                raise InvalidEntry(
                    field, "none beside remove_when_done: it is looked at later", value
                )
            if value and self.history == 0:
                expected = f"at least 1 beside {field}, which goes by what is recorded"
                raise InvalidEntry("history", expected, 0)
        if isinstance(self.schedule, manual):
            self._check_manual()

    def _check_manual(self) -> None:
        """Refuse fields about occurrences, because a schedule with `manual()` has none."""
        for field in _OF_OCCURRENCES:
            value = getattr(self, field)
            if value != FIELDS[field].default:
                raise InvalidEntry(field, f"no {field} beside manual(), which is never due", value)
        # Without due times, only the number of failures can be checked.
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
    # A task that is no text may bring further fields, such as the arguments of a signature.
    if not isinstance(fields["task"], str):
        fields = {**fields, **_fields_of_task(fields)}
    return Definition(**{field: FIELDS[field].read(value) for field, value in fields.items()})


def _fields_of_task(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry that its task, signature or pipeline brings with it."""
    task = fields["task"]
    if isinstance(task, CallableSignature):
        for field in ("args", "kwargs"):
            if fields.get(field):
                expected = "none beside a signature, which has its own"
                raise InvalidEntry(field, expected, fields[field])
        if task.task in CANVASES:
            # pack() refuses what cannot be stored. The copy shares nothing with the user's canvas.
            return {"task": CANVAS, "args": (plain(unpack(pack(task, "task"))),)}
        # The options of the entry prevail over those of the signature.
        options = {**task.options, **FIELDS["options"].read(fields.get("options"))}
        return {"task": task.task, "args": task.args, "kwargs": task.kwargs, "options": options}
    if hasattr(task, "as_entry"):  # It is a pipeline.
        if fields.get("kwargs"):
            expected = "none beside a pipeline, which has its own params"
            raise InvalidEntry("kwargs", expected, fields["kwargs"])
        brought: dict[str, Any] = task.as_entry()
        return brought
    # It is a task. Anything else is refused when the field is read.
    return {"task": getattr(task, "name", task)}


def brings_arguments(task: Any) -> bool:
    """Whether ``task`` is a signature or a pipeline, which has arguments of its own."""
    return isinstance(task, CallableSignature) or hasattr(task, "as_entry")


def unknown_field(field: object, value: object) -> InvalidEntry:
    """Return the error for a field that an entry does not have, with a hint about the right one."""
    name = str(field)
    if name in FOREIGN_HINTS:
        hint: str | None = FOREIGN_HINTS[name]
    elif name in KNOWN_OPTIONS:
        hint = f"it belongs into options: {{{name!r}: ...}}"
    elif name in fields_of(Once):
        hint = f"it belongs into once: {{{name!r}: ...}}"
    else:
        # "relative" is no field, but an argument of Celery's entries that is accepted, too.
        hint = nearest_hint(name, (*FIELDS, "relative"))
    return InvalidEntry(name, "a known field", value, hint=hint)


# -- Definition as JSON: the text that Redis holds, and the values that files and scripts have -----

# A config entry may have parts that cannot be stored, such as a ``BeatLazyFunc`` among its
# arguments. Redis holds a text in place of such a part, and only for people to read. The leader
# takes the part itself from its own configuration.

#: Fields of a config entry that may hold a value that cannot be stored.
MAY_BE_UNSTORED = ("schedule", "args", "kwargs", "options")

#: Longest text in place of a part that cannot be stored, in characters.
_MAX_TEXT = 500

#: Memory address in a default ``repr``.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

#: Fields whose default depends on the settings of the app, so they are always shown.
_ALWAYS = ("expires", "misfire")


def encode(entry: Entry) -> str:
    """Return the JSON text of an entry's definition, without the fields that have their default.

    Raises:
        InvalidEntry: a field cannot be stored, or the whole text is over 64 KiB. Only a config
            entry may have a schedule or arguments that cannot be stored.
    """
    is_configured = entry.owner is not None
    stored = {"v": FORMAT, **_stored_fields(entry, placeholders=is_configured)}
    if is_configured:
        stored["owner"] = entry.owner
    text = dumps(stored)
    size = len(text.encode())
    if size > MAX_BYTES:
        raise InvalidEntry(
            "entry", f"a definition of at most {MAX_BYTES} bytes", size, entry=entry.name
        )
    return text


def _stored_fields(entry: Entry, *, placeholders: bool) -> dict[str, Any]:
    """Return the fields that differ from their defaults, in their stored form.

    A field that cannot be stored now, or that could not be stored before, is a readable text under
    ``unstored``.

    Parameters:
        placeholders: whether a text may replace a field that cannot be stored; otherwise such a
            field is an error.
    """
    stored: dict[str, Any] = {}
    # Texts of the fields that could not be stored before.
    unstored = dict(entry.unstored)
    for field_name, field in FIELDS.items():
        value = getattr(entry, field_name)
        if value == field.default or field_name in unstored:
            continue
        try:
            stored[field_name] = field.store(value)
        except InvalidEntry as exc:
            if not (placeholders and field_name in MAY_BE_UNSTORED):
                raise exc.of(entry.name) from None
            unstored[field_name] = readable_text(exc.value)
    if unstored:
        stored["unstored"] = unstored
    return stored


def entry_fields(entry: Entry, *, defaults: bool = False) -> dict[str, Any]:
    """Return the definition of an entry as JSON values.

    The fields of a config entry that could not be stored are texts under ``unstored``.

    Parameters:
        defaults: whether to include the fields that have their default.
    """
    stored = _stored_fields(entry, placeholders=True)
    unstored = stored.get("unstored", {})
    shown = {}
    for field_name, field in FIELDS.items():
        if field_name in stored:
            shown[field_name] = stored[field_name]
        # The defaults of the fields in _ALWAYS depend on the app, so a reader cannot know them.
        elif field_name not in unstored and (defaults or field_name in _ALWAYS):
            shown[field_name] = field.store(field.default)
    if "calendar" in stored:
        # The stored form of a calendar holds all its days.
        shown["calendar"] = entry.calendar_name
    return {**shown, "unstored": unstored} if unstored else shown


class UnstoredSchedule(schedules.BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """Stand-in for a schedule that only the configuration of its app holds.

    Its ``is_due`` only asks to be called again in a second. So a process without the configuration
    stores a ``Question`` (a time at which to ask) in place of the next occurrence, and the leader
    asks the schedule itself.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def is_due(self, last_run_at: datetime) -> schedules.schedstate:
        """Return that nothing is due, and that the schedule wants to be asked again in a second."""
        return schedules.schedstate(is_due=False, next=1)

    def __repr__(self) -> str:
        return self.text


def readable_text(value: object) -> str:
    """Return the ``repr`` of a value without memory addresses, which differ between processes."""
    return storable(_ADDRESS.sub("", shorten(value, _MAX_TEXT)))


# -- Types of the values that a user may write, for type checkers ----------------------------------

#: A schedule, a length of time, or the form of a schedule.
Schedule: TypeAlias = Duration | BaseSchedule | Mapping[str, Any]
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
    start_at: datetime | str | None
    end_at: datetime | str | None
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
