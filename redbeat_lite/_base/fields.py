"""Fields that users write: the kinds of their values, and objects that check their fields.

A class lists its fields once. Each has a type, a kind, a default and a sentence for people::

    class Pause(Model, frozen=True):
        path: ClassVar[str] = "on_failure"

        after: Annotated[int, Whole(1, 1000), "Number of failures in a row."]

Constructor, stored form, options of the command line and form of the page follow from that line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, NamedTuple, get_args, get_type_hints

from msgspec import NODEFAULT, Struct, structs

from .errors import InvalidEntry, check_field_names
from .text import is_short_text, nearest_hint
from .times import DURATION_FORMS, YEAR, aware, seconds_of

#: Least length of time that is more than 0.
POSITIVE = math.ulp(0)


class Kind:
    """Kind of the values of a field; this one is text."""

    #: Kind of the value in the help of the command line.
    metavar = "TEXT"
    #: The right values in words.
    expected = "text"
    #: Whether the value may be ``None``; the type of the field says it.
    optional = False

    def read(self, field: str, value: Any) -> Any:
        """Convert a user's input, which is not ``None`` if the field is optional.

        Parameters:
            field: its name in the error.

        Raises:
            InvalidEntry: the input is wrong.
        """
        if not isinstance(value, str):
            raise self.wrong(field, value)
        return value

    def store(self, field: str, value: Any) -> Any:
        """Convert the value into JSON; raise InvalidEntry if it cannot be stored."""
        return value

    def load(self, stored: Any) -> Any:
        """Convert the stored JSON into an input of :meth:`read`."""
        return stored

    def wrong(self, field: str, value: Any, hint: str | None = None) -> InvalidEntry:
        """Return the error for a wrong input."""
        expected = f"{self.expected}, or None" if self.optional else self.expected
        return InvalidEntry(field, expected, value, hint=hint)


class Flag(Kind):
    """``True`` or ``False``.

    Parameters:
        off: option of the command line that means ``False``.
    """

    metavar = ""
    expected = "True or False"

    def __init__(self, off: str = "") -> None:
        self.off = off

    def read(self, field: str, value: Any) -> Any:
        if not isinstance(value, bool):
            raise self.wrong(field, value)
        return value


class Whole(Kind):
    """Whole number from ``least`` to ``most``."""

    metavar = "N"

    def __init__(self, least: int, most: float = math.inf) -> None:
        self.least = least
        self.most = most
        self.expected = f"a whole number from {least}"
        if most != math.inf:
            self.expected += f" to {most}"

    def read(self, field: str, value: Any) -> Any:
        if type(value) is not int or not self.least <= value <= self.most:
            raise self.wrong(field, value)
        return value


class Choice(Kind):
    """One of several words."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices
        self.expected = "one of " + ", ".join(f'"{choice}"' for choice in choices)

    def read(self, field: str, value: Any) -> Any:
        if value not in self.choices:
            raise self.wrong(field, value, nearest_hint(value, self.choices))
        return value


class Length(Kind):
    """Length of time, which becomes seconds, from ``least`` to ``most`` seconds."""

    metavar = "LENGTH"

    def __init__(self, least: float = 0, most: float = YEAR) -> None:
        self.least = least
        self.most = most
        self.expected = f"{DURATION_FORMS}, {_bounds(least, most)}"

    def read(self, field: str, value: Any) -> Any:
        seconds = seconds_of(value)
        if seconds is None or not self.least <= seconds <= self.most:
            raise self.wrong(field, value)
        return float(seconds)


def _bounds(least: float, most: float) -> str:
    """Return the bounds of a length of time in words."""
    bounds = f"at least {least:g} s"
    if least in (0, POSITIVE):
        bounds = "more than 0" if least else "not negative"
    return bounds if most == math.inf else f"{bounds} and at most {most / 86_400:g} days"


class Instant(Kind):
    """Aware datetime."""

    metavar = "INSTANT"

    def read(self, field: str, value: Any) -> Any:
        return aware(field, value)

    def store(self, field: str, value: datetime) -> Any:
        return value.isoformat()

    def load(self, stored: Any) -> Any:
        return datetime.fromisoformat(stored)


class Name(Kind):
    """Short text without control characters."""

    metavar = "NAME"

    def __init__(self, most: int) -> None:
        self.most = most
        self.expected = f"text of 1 to {most} characters without control characters"

    def read(self, field: str, value: Any) -> Any:
        if not is_short_text(value, self.most):
            raise self.wrong(field, value)
        return value


class Field(NamedTuple):
    """Field of a class.

    Parameters:
        path: its name in errors, such as ``"once.lease"``.
        default: the value of a missing field; ``NODEFAULT`` if the field must be there.
        help: its sentence for people.
    """

    path: str
    kind: Kind
    default: Any
    help: str = ""

    def read(self, value: Any) -> Any:
        """Convert a user's input; raise InvalidEntry if it is wrong."""
        if value is None and self.kind.optional:
            return None
        return self.kind.read(self.path, value)

    def store(self, value: Any) -> Any:
        """Convert a value into JSON; raise InvalidEntry if it cannot be stored."""
        return None if value is None else self.kind.store(self.path, value)


class Model(Struct, frozen=True):
    """Read-only object that checks its fields when it is made.

    Raises:
        InvalidEntry: a field is wrong.
    """

    #: Name of the object in errors, before the name of the wrong field.
    path: ClassVar[str] = ""
    #: Inputs of :meth:`of` in words.
    forms: ClassVar[str] = "a mapping of fields"

    def __post_init__(self) -> None:
        for name, field in fields_of(type(self)).items():
            value = getattr(self, name)
            if value is not field.default:
                structs.force_setattr(self, name, field.read(value))

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
        return cls(**check_field_names(cls.path, value, cls.__struct_fields__))

    @classmethod
    def decode(cls, stored: Any) -> Any:
        """Return the object of a stored form; skip the fields of a later version.

        Raises:
            InvalidEntry: the stored form is wrong.
        """
        if isinstance(stored, Mapping):
            stored = {name: stored[name] for name in cls.__struct_fields__ if name in stored}
        return cls.of(stored)

    def encode(self) -> Any:
        """Return the stored form: a dict of the fields that do not have their default."""
        stored = {}
        for name, field in fields_of(type(self)).items():
            value = getattr(self, name)
            if value != field.default:
                stored[name] = field.store(value)
        return stored


@cache
def fields_of(model: type[Model]) -> Mapping[str, Field]:
    """Return the fields of a class by name."""
    hints = get_type_hints(model, include_extras=True)
    fields = {}
    for info in structs.fields(model):
        hint = hints[info.name]
        kind, *words = hint.__metadata__
        kind.optional = type(None) in get_args(hint.__origin__)
        default = info.default
        if info.default_factory is not NODEFAULT:
            default = info.default_factory()
        path = f"{model.path}.{info.name}".lstrip(".")
        fields[info.name] = Field(path, kind, default, *words)
    return fields
