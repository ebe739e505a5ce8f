"""Exceptions that the whole package uses.

The docstring of a class is its default message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from .public import public
from .text import nearest_hint, shorten


@public
class RedbeatError(Exception):
    """Something went wrong in redbeat_lite."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__ or type(self).__name__)


@public
class ConfigurationError(RedbeatError, ValueError):
    """A redbeat_lite setting is missing or wrong."""


@public
class InvalidEntry(RedbeatError, ValueError):
    """An entry, or a parameter of a call, is wrong.

    Parameters:
        field: path of the wrong field, such as ``"kwargs.since"`` or ``"args[2]"``.
        expected: the accepted values, in words.
        value: the wrong value; its ``repr`` is shown, shortened.
        entry: name of the entry, if it is known.
        hint: the nearest valid spelling, or another way.
    """

    def __init__(
        self,
        field: str,
        expected: str,
        value: object,
        *,
        entry: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.field = field
        self.expected = expected
        self.value = value
        self.entry = entry
        self.hint = hint
        where = f"entry {entry!r}: " if entry is not None else ""
        tail = f" ({hint})" if hint else ""
        super().__init__(f"{where}{field}: expected {expected}, got {shorten(value)}{tail}")

    def of(self, entry: str) -> InvalidEntry:
        """Return the same error with the name of its entry."""
        return self.at(self.field, entry)

    def at(self, field: str, entry: str | None = None) -> InvalidEntry:
        """Return the same error for another path of the field, and for this entry."""
        return InvalidEntry(field, self.expected, self.value, entry=entry, hint=self.hint)

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), entry=self.entry, hint=self.hint)
        return make, (self.field, self.expected, self.value)


def check_field_names(parent: str, fields: Mapping[str, Any], known_names: Collection[str]) -> None:
    """Raise InvalidEntry if a field has an unknown name.

    Parameters:
        parent: name of the field that contains these fields, for the error.
    """
    for name in fields:
        if name not in known_names:
            expected = f"one of the fields {', '.join(known_names)}"
            raise InvalidEntry(
                f"{parent}.{name}", expected, name, hint=nearest_hint(name, known_names)
            )


@public
class EntryNotFound(RedbeatError, KeyError):
    """No entry of that name is stored."""

    #: Name of the entry; ``None`` if something else is missing, such as a backfill.
    entry: str | None = None

    __str__ = Exception.__str__  # KeyError would show the repr of the message.


@public
class EntryExists(RedbeatError):
    """An entry of that name is already stored; pass replace=True to overwrite it."""


@public
class EntryChanged(RedbeatError):
    """The entry was changed by somebody else since it was read."""


@public
class ConfigOwned(RedbeatError):
    """The entry belongs to an app's configuration; its definition is changed there."""


@public
class CorruptEntry(RedbeatError):
    """The stored entry cannot be read."""


class NotKnownHere(InvalidEntry, CorruptEntry):
    """The entry's schedule class is not registered in this process, but may be in another one."""


@public
class UnsupportedFormat(RedbeatError):
    """Another version of redbeat_lite wrote the schedule in Redis, in a format of its own."""
