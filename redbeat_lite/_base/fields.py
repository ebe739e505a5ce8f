"""Fields that users write: the kinds of their values, and objects that check their fields.

A class lists its fields once. Each has a type, a kind, a default and a sentence for people::

    class Pause(Model, frozen=True):
        path: ClassVar[str] = "on_failure"

        after: Annotated[int, whole(1, 1000), "Number of failures in a row."]

Constructor, stored form, options of the command line and form of the page follow from that line.
A field without a kind gets the kind of its type: True or False, text, an instant, or the words of a
``Literal``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, tzinfo
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self, get_args, get_type_hints

from msgspec import NODEFAULT, Struct, structs

from .errors import InvalidEntry, check_field_names
from .text import is_short_text, nearest_hint, storable
from .times import DURATION_FORMS, MAX_MS, MIN_MS, YEAR, from_ms, seconds_of

#: Least length of time that is more than 0.
POSITIVE = math.ulp(0)


class Wrong(ValueError):
    """The input is not of its kind; the text is a hint for the user."""


class Kind(NamedTuple):
    """Kind of the values of a field.

    Parameters:
        metavar: the values in one word, as the help of the command line has it.
        expected: the right inputs, as errors have them.
        convert: converts a user's input into the value; raises :class:`Wrong` or InvalidEntry.
        store: converts the value of a field into JSON; raises InvalidEntry if it cannot be stored.
        load: converts stored JSON into an input for ``convert``.
        choices: all right inputs, if they are few words.
        off: option of the command line that sets a flag to ``False``.
    """

    metavar: str
    expected: str
    convert: Callable[[Any], Any]
    store: Callable[[Any, str], Any] = lambda value, field: value
    load: Callable[[Any], Any] = lambda stored: stored
    choices: tuple[str, ...] = ()
    off: str = ""

    def __repr__(self) -> str:
        # Signatures in the documentation and in help() show it.
        return f"<{self.expected}>"

    def read(self, field: str, value: Any, *, optional: bool = False) -> Any:
        """Convert a user's input.

        Parameters:
            field: its name in the error.
            optional: whether it may be ``None``.

        Raises:
            InvalidEntry: the input is wrong.
        """
        if value is None and optional:
            return None
        try:
            return self.convert(value)
        except Wrong as exc:
            expected = f"{self.expected}, or None" if optional else self.expected
            hint: str | None = str(exc)  # Empty if there is none.
            if self.choices and isinstance(value, str):
                hint = nearest_hint(value, self.choices)
            raise InvalidEntry(field, expected, value, hint=hint) from None


def require(is_right: bool, value: Any, hint: str = "") -> Any:
    """Return ``value`` if ``is_right``; otherwise raise :class:`Wrong` with the hint."""
    if not is_right:
        raise Wrong(hint)
    return value


def checked_kind(metavar: str, expected: str, is_right: Callable[[Any], bool]) -> Kind:
    """Return the kind of the values for which ``is_right`` is true. They are kept as they are."""
    return Kind(metavar, expected, lambda value: require(is_right(value), value))


def flag(off: str = "") -> Kind:
    """Return the kind of ``True`` and ``False``.

    Parameters:
        off: option of the command line that sets the flag to ``False``.
    """
    kind = checked_kind("", "True or False", lambda value: isinstance(value, bool))
    return kind._replace(off=off)


def whole(least: int, most: float = math.inf) -> Kind:
    """Return the kind of whole numbers from ``least`` to ``most``."""
    bounds = f"from {least}" if most == math.inf else f"from {least} to {most}"
    return checked_kind(
        "N", f"a whole number {bounds}", lambda value: type(value) is int and least <= value <= most
    )


def choice(*choices: str) -> Kind:
    """Return the kind whose values are these words."""
    expected = "one of " + ", ".join(f'"{word}"' for word in choices)
    return checked_kind("TEXT", expected, choices.__contains__)._replace(choices=choices)


def length(least: float = 0, most: float = YEAR) -> Kind:
    """Return the kind of lengths of time from ``least`` to ``most`` seconds, kept in seconds."""

    def convert(value: Any) -> float:
        """Return a length of time in seconds; raise Wrong if it is none, or out of bounds."""
        seconds = seconds_of(value)
        if seconds is None or not least <= seconds <= most:
            raise Wrong
        return float(seconds)

    # The bounds in words, for the error.
    lower = f"at least {least:g} s"
    if least == 0:
        lower = "not negative"
    elif least == POSITIVE:
        lower = "more than 0"
    upper = f" and at most {most / 86_400:g} days"
    if most == math.inf:
        upper = ""
    elif most > 2 * YEAR:
        upper = f" and at most {most / YEAR:g} years"
    return Kind("LENGTH", f"{DURATION_FORMS}, {lower}{upper}", convert)


def name(most: int) -> Kind:
    """Return the kind of texts of 1 to ``most`` characters without control characters."""
    expected = f"text of 1 to {most} characters without control characters"
    return checked_kind("NAME", expected, lambda value: is_short_text(value, most))


#: Text of any length without control characters.
TEXT = checked_kind(
    "TEXT",
    "text without control characters",
    lambda value: isinstance(value, str) and storable(value) == value,
)


def _instant(value: Any) -> datetime:
    """Return the aware datetime that a user gave, as an object or as text in ISO 8601.

    Raises:
        Wrong: the value is anything else. Each call of ``require`` raises it for a false condition.
    """
    instant = value
    hint = "add tzinfo, for example tzinfo=datetime.UTC"
    if isinstance(value, str):
        try:
            instant = datetime.fromisoformat(value)
        except ValueError:
            raise Wrong from None
        hint = f"add the offset, as in {instant.isoformat(timespec='minutes')}+01:00"
    require(isinstance(instant, datetime), value)
    require(instant.utcoffset() is not None, instant, hint)
    # Users write the last instant of the year 9999 for "never", and other zones cannot show it.
    late_enough: datetime = max(from_ms(MIN_MS), instant)
    return min(late_enough, from_ms(MAX_MS))


#: Aware datetime, or its text in ISO 8601.
INSTANT = Kind(
    "INSTANT",
    "an instant such as 2026-12-01T09:00+01:00",
    _instant,
    lambda value, field: value.isoformat(),
)


def local_instant(field: str, value: Any, zone: tzinfo) -> datetime:
    """Return a user's instant, which is a local time of ``zone`` if it has no offset.

    Raises:
        InvalidEntry: the value is neither a datetime nor its text in ISO 8601.
    """
    with suppress(ValueError):
        instant = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(instant, datetime) and instant.tzinfo is None:
            return instant.replace(tzinfo=zone)
    # Any other value has an offset, or read() refuses it.
    return INSTANT.read(field, value)  # type: ignore[no-any-return]


#: Kinds of fields, by their types.
_KINDS = {bool: flag(), str: TEXT, datetime: INSTANT}


def _kind_of(value_type: Any) -> Kind:
    """Return the kind of a field whose annotation is a type alone."""
    # The parts of ``str | None`` are its two types, and those of a Literal are its words.
    parts = get_args(value_type) or (value_type,)
    for known_type, kind in _KINDS.items():
        # freezegun puts a subclass in place of datetime.
        if any(isinstance(part, type) and issubclass(part, known_type) for part in parts):
            return kind
    return choice(*parts)  # the words of a Literal


class Field(NamedTuple):
    """Field of a class.

    Parameters:
        path: its name in errors, such as ``"once.lease"``.
        default: the value of a missing field; ``NODEFAULT`` if the field must be there.
        optional: whether the value may be ``None``.
        help: its sentence for people.
        label: its label in a form; empty for its own name.
    """

    path: str
    kind: Kind
    default: Any
    optional: bool
    help: str = ""
    label: str = ""

    def read(self, value: Any) -> Any:
        """Convert a user's input; raise InvalidEntry if it is wrong."""
        return self.kind.read(self.path, value, optional=self.optional)

    def store(self, value: Any) -> Any:
        """Convert the value into JSON; raise InvalidEntry if it cannot be stored."""
        return None if value is None else self.kind.store(value, self.path)

    def load(self, stored: Any) -> Any:
        """Convert the stored JSON into an input."""
        return None if stored is None else self.kind.load(stored)


class Model(Struct, frozen=True):
    """Read-only object that checks its fields when it is made.

    Raises:
        InvalidEntry: a field is wrong.
    """

    #: Name of the object in errors, before the name of the wrong field.
    path: ClassVar[str] = ""
    #: Values that :meth:`of` accepts, in words for its errors.
    forms: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check each field, and put the converted value in its place."""
        fields = fields_of(type(self)).items()
        for (field_name, field), value in zip(fields, structs.astuple(self), strict=True):
            if value is not field.default:  # A default needs no check.
                # The object is read-only, so an assignment would raise an error.
                structs.force_setattr(self, field_name, field.read(value))

    @classmethod
    def of(cls, value: Any) -> Any:
        """Return the object that a user wrote as a mapping of its fields, or the object itself.

        Raises:
            InvalidEntry: a field is unknown or wrong, or the input has another form.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise InvalidEntry(cls.path, cls.forms, value)
        check_field_names(cls.path, value, cls.__struct_fields__)
        for field_name, field in fields_of(cls).items():
            if field.default is NODEFAULT and field_name not in value:
                hint = "the field is missing"
                raise InvalidEntry(field.path, field.kind.expected, None, hint=hint)
        return cls(**value)

    @classmethod
    def decode(cls, stored: Any) -> Any:
        """Return the object of a stored form. Fields that only a later version has are left out.

        Raises:
            InvalidEntry: the stored form is wrong.
        """
        if isinstance(stored, Mapping):
            stored = {key: stored[key] for key in cls.__struct_fields__ if key in stored}
        return cls.of(stored)

    def but(self, **changes: Any) -> Self:
        """Return a copy with some fields changed. All of its fields are checked."""
        return structs.replace(self, **changes)

    def encode(self) -> Any:
        """Return the stored form: a dict of the fields that do not have their default."""
        stored = {}
        for field_name, field in fields_of(type(self)).items():
            value = getattr(self, field_name)
            if value != field.default:
                stored[field_name] = field.store(value)
        return stored


@cache
def fields_of(model: type[Model]) -> Mapping[str, Field]:
    """Return the fields of a class by name."""
    hints = get_type_hints(model, include_extras=True)
    types = get_type_hints(model)
    fields = {}
    for info in structs.fields(model):
        value_type = types[info.name]
        # The metadata of an annotation are the kind, the help and the label. An annotation without
        # metadata is a type alone, which decides the kind.
        metadata = getattr(hints[info.name], "__metadata__", ())
        kind, *words = metadata or (_kind_of(value_type),)
        default = info.default
        if info.default_factory is not NODEFAULT:
            default = info.default_factory()
        # Without a path of the class, the name of the field is the whole path.
        path = f"{model.path}.{info.name}".lstrip(".")
        optional = type(None) in get_args(value_type)
        fields[info.name] = Field(path, kind, default, optional, *words)
    return fields
