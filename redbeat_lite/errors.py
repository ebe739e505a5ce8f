"""Every exception the package raises on purpose.

The docstring of a class is its default message, so that raising the bare class still says something useful.
"""

from __future__ import annotations

from typing import Any


class RedbeatError(Exception):
    """Something went wrong in redbeat_lite."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__ or type(self).__name__)


class ConfigurationError(RedbeatError, ValueError):
    """A redbeat_lite setting is missing or wrong."""


class InvalidEntry(RedbeatError, ValueError):
    """An entry cannot be accepted as it is.

    Parameters:
        field: which field of the entry is wrong, dotted and indexed (``"kwargs.since"``, ``"args[2]"``).
        expected: what would have been accepted, in words.
        value: what came instead; its ``repr`` is shown, shortened.
        entry: the entry's name, where it is known.
        hint: the nearest valid spelling, or what to do instead.
    """

    def __init__(
        self, field: str, expected: str, value: object, *, entry: str | None = None, hint: str | None = None
    ) -> None:
        self.field, self.expected, self.value, self.entry, self.hint = field, expected, value, entry, hint
        where = f"entry {entry!r}: " if entry is not None else ""
        tail = f" ({hint})" if hint else ""
        super().__init__(f"{where}{field}: expected {expected}, got {_shorten(value)}{tail}")

    def of(self, entry: str) -> InvalidEntry:
        """The same error, with the name of the entry it belongs to."""
        return InvalidEntry(self.field, self.expected, self.value, entry=entry, hint=self.hint)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_invalid, (self.field, self.expected, self.value, self.entry, self.hint)


def _rebuild_invalid(field: str, expected: str, value: object, entry: str | None, hint: str | None) -> InvalidEntry:
    return InvalidEntry(field, expected, value, entry=entry, hint=hint)


def _shorten(value: object, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class EntryNotFound(RedbeatError, KeyError):
    """No entry of that name is stored."""

    __str__ = Exception.__str__  # KeyError would show the repr of the message


class EntryExists(RedbeatError):
    """An entry of that name is already stored; pass replace=True to overwrite it."""


class EntryChanged(RedbeatError):
    """The entry was changed by somebody else since it was read."""


class ConfigOwned(RedbeatError):
    """The entry belongs to an app's configuration; its definition is changed there."""


class CorruptEntry(RedbeatError):
    """What Redis holds for this entry cannot be read."""


class UnsupportedFormat(RedbeatError):
    """The schedule in Redis was written by a newer redbeat_lite."""
