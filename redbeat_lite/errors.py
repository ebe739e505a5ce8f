"""Every exception the package raises on purpose.

The docstring of a class is its default message, so that raising the bare class still says something useful.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches
from typing import Any, TypeGuard
from urllib.parse import unquote, urlsplit

from .public import public

#: Characters of somebody else's error that anybody reads. To look for passwords takes time by the square of them.
_LONGEST = 4000

#: Control characters: an error is one line of a log, and one of a terminal.
_OBEYED = re.compile(r"[\x00-\x1f\x7f-\x9f]")


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
        super().__init__(f"{where}{field}: expected {expected}, got {shorten(value)}{tail}")

    def of(self, entry: str) -> InvalidEntry:
        """The same error, with the name of the entry it belongs to."""
        return InvalidEntry(self.field, self.expected, self.value, entry=entry, hint=self.hint)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_invalid, (self.field, self.expected, self.value, self.entry, self.hint)


def _rebuild_invalid(field: str, expected: str, value: object, entry: str | None, hint: str | None) -> InvalidEntry:
    return InvalidEntry(field, expected, value, entry=entry, hint=hint)


def meant(word: object, known: Iterable[str]) -> str | None:
    """The hint at which of the words that there are comes near this one; ``None`` where none does."""
    near = get_close_matches(str(word), [*known], n=1)
    return f"did you mean {near[0]!r}?" if near else None


def known_only(of: str, given: Mapping[str, Any], known: Collection[str]) -> Mapping[str, Any]:
    """What was ``given`` as fields of something; raises InvalidEntry if one is none of the known."""
    for name in given:
        if name not in known:
            expected = f"one of the fields {', '.join(known)}"
            raise InvalidEntry(f"{of}.{name}", expected, name, hint=meant(name, known))
    return given


def shorten(value: object, limit: int = 120) -> str:
    """A value as it is shown in an error."""
    try:
        text = str(value) if isinstance(value, datetime) else repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} nested too deeply to be shown"
    except ValueError:  # Python writes no whole number of more than 4,300 digits.
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


@public
class EntryNotFound(RedbeatError, KeyError):
    """No entry of that name is stored."""

    __str__ = Exception.__str__  # KeyError would show the repr of the message


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
    """What Redis holds for this entry cannot be read."""


class NotKnownHere(InvalidEntry, CorruptEntry):
    """The entry's schedule class is not registered in this process. Another process may know it."""


@public
class UnsupportedFormat(RedbeatError):
    """The schedule in Redis was written by a newer redbeat_lite, or its beat is of an older one."""


def describe(exc: BaseException) -> str:
    """An exception with its kind, as text that can be stored and sent whatever it says."""
    kind, text = type(exc).__name__, text_of(exc)
    return kind if text == kind else f"{kind}: {text}"


def text_of(exc: BaseException) -> str:
    """What an exception says, or its kind where that is nothing; as text that can be stored, sent and shown."""
    try:
        text = str(exc)
    except Exception:  # noqa: BLE001 - whoever wrote it may have got that wrong as well
        text = "(its text cannot be shown)"
    if len(text) > _LONGEST:
        text = text[:_LONGEST].rpartition(" ")[0] + " …"  # no half of a password
    return hide_passwords(storable(text)) or type(exc).__name__


#: What came instead of what an error of ours expected, to the end of its line.
_CAME = re.compile(r"(?:, got |(?<=no value of type)).*")


def without_values(error: str) -> str:
    """What is wrong with an entry, without what came instead, which may be an argument."""
    return _CAME.sub("", error)


def storable(text: str) -> str:
    """Text in which what is no UTF-8, as the name of a file may hold, and what a terminal obeys is spelled out."""
    return _OBEYED.sub(lambda found: repr(found[0])[1:-1], text).encode(errors="backslashreplace").decode()


def is_plain(value: object, most: int) -> TypeGuard[str]:
    """Whether this is text of 1 to ``most`` characters without control characters, which can be stored."""
    return isinstance(value, str) and 1 <= len(value) <= most and (value.isprintable() or storable(value) == value)


#: What the names of options have in them whose values are shown nowhere.
SECRET = r"\w*(?:passw|passphrase|pwd|secret|token)\w*"

#: What may be a password, after what is kept of it.
_PASSWORDS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        # In a URL, before its last "@": one that is not in percent form may have a "/" or a "#" in it.
        r"((?:://|;)[^:/?#\s]*:)\S*(?=@)",
        rf"([?&;]{SECRET}=)[^&;\s]*",
        # In what redis-py 6.4 to 7 show of a client, "password=…,socket_timeout=4.0,…)>": up to the next option.
        rf"(Connection\(.*?\b{SECRET}=).*?(?=,\w+=|\)>|$)",
        # In a sentence: a password may have blanks in it, a token has none.
        r"(?<![?&;\w])(\w*token\w*=)(?!\*\*)[^\s,;&)]+",
        rf"(?<![?&;\w])((?!\w*token){SECRET}=)(?!\*\*)[^\n,;&)]+",
        # In a mapping.
        rf"""(['"]{SECRET}['"]: ?)(?:b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|[^,}}\s]+)""",
    )
)


#: The passwords that this process was given, as they may be quoted.
_known: set[str] = set()

#: Characters of a password that is looked for by itself; a shorter one would be found in half of all words.
_SHORTEST = 6


def remember(given: Any) -> None:
    """Have the passwords in settings hidden from now on, wherever they stand and whatever characters they have: those
    of a URL, of several, or of options, which may hold further ones."""
    if isinstance(given, Mapping):
        for name, value in given.items():
            if isinstance(value, str) and re.fullmatch(SECRET, str(name), re.IGNORECASE):
                _known.add(value)
            else:
                remember(value)
    elif isinstance(given, (list, tuple)):
        for each in given:
            remember(each)
    elif isinstance(given, str) and "@" in given:
        # A ";" stands between several URLs, of any scheme where kombu reads them, or in the password of one.
        for part in {given, *given.split(";")}:
            with suppress(ValueError):  # it is no URL, and is refused elsewhere
                password = urlsplit(f"//{part.partition('://')[2] or part}").password or ""
                _known.update((password, unquote(password)))


def hide_passwords(text: str) -> str:
    """A text that quotes URLs, clients or options, such as somebody else's error, with what is or may be a password
    replaced by ``**``."""
    for secret in sorted(_known, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "**", text)
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1**", text)
    return text
