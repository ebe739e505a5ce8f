"""Texts for logs, for Redis and for people: short, without control characters and passwords."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches
from typing import Any, TypeGuard
from urllib.parse import unquote, urlsplit

#: Maximum number of characters of another library's error. The time of the search for passwords
#: grows with the square of the length.
_LONGEST_ERROR = 4000

#: Control characters. A terminal would execute them, and a line end would split a line of a log.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

#: Control characters, and characters that move the cursor or change the direction of a text.
#: Anybody may write them into the name or the description of an entry.
_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+"
)

#: End of the text of an :class:`InvalidEntry`, from the wrong value to the end of the line.
_RECEIVED_VALUE = re.compile(r"(?:, got |(?<=no value of type)).*")

#: Names of options whose values are never shown.
_SECRET = r"\w*(?:passw|passphrase|pwd|secret|token)\w*"

#: Places in which a text may have a password. What the group of a pattern matches stays, and all
#: else that the pattern matches becomes ``**``.
_PASSWORD_PLACES = (
    # In a URL, before its last "@". A password that is not in percent form may contain "/" or "#".
    r"((?:://|;)[^:/?#\s]*:)\S*(?=@)",
    rf"([?&;]{_SECRET}=)[^&;\s]*",
    # In the text of a redis-py client (6.4 to 7), "password=…,socket_timeout=4.0,…)>", up to the
    # next option.
    rf"(Connection\(.*?\b{_SECRET}=).*?(?=,\w+=|\)>|$)",
    # In a sentence. A password may contain blanks, a token does not.
    r"(?<![?&;\w])(\w*token\w*=)(?!\*\*)[^\s,;&)]+",
    rf"(?<![?&;\w])((?!\w*token){_SECRET}=)(?!\*\*)[^\n,;&)]+",
    # In a mapping.
    rf"""(['"]{_SECRET}['"]: ?)(?:b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|[^,}}\s]+)""",
)
_PASSWORDS = tuple(re.compile(pattern, re.IGNORECASE | re.DOTALL) for pattern in _PASSWORD_PLACES)

#: Passwords in the settings of this process, which errors of libraries may quote.
_known_passwords: set[str] = set()

#: Least characters of a known password that is replaced everywhere. A shorter one may be a part of
#: many words.
_SHORTEST_PASSWORD = 6


def nearest_hint(word: object, known_words: Iterable[str]) -> str | None:
    """Return a hint with the most similar known word; ``None`` if no word is similar."""
    near = get_close_matches(str(word), [*known_words], n=1)
    return f"did you mean {near[0]!r}?" if near else None


def shorten(value: object, limit: int = 120) -> str:
    """Return the ``repr`` of a value for an error, with at most ``limit`` characters."""
    try:
        text = str(value) if isinstance(value, datetime) else repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} nested too deeply to be shown"
    except ValueError:  # Python writes no whole number of more than 4,300 digits.
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def describe(exc: BaseException) -> str:
    """Return the class and the text of an exception, as :func:`text_of` returns the text."""
    kind = type(exc).__name__
    text = text_of(exc)
    # The text of an exception without a text is its class.
    return kind if text == kind else f"{kind}: {text}"


def text_of(exc: BaseException) -> str:
    """Return the text of an exception, or its class if it has no text.

    The result is short, on one line and without passwords, fit to be stored, sent and shown.
    """
    try:
        text = str(exc)
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything
        text = "(its text cannot be shown)"
    if len(text) > _LONGEST_ERROR:
        # Cut at a space, because half of a password would not be recognized.
        text = text[:_LONGEST_ERROR].rpartition(" ")[0] + " …"
    return hide_passwords(storable(text)) or type(exc).__name__


def without_values(error: str) -> str:
    """Return the text of an InvalidEntry without the wrong value, which may be a secret."""
    return _RECEIVED_VALUE.sub("", error)


def storable(text: str) -> str:
    """Return a text with escapes for control characters, and for what UTF-8 cannot hold."""
    escaped = _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)
    return escaped.encode(errors="backslashreplace").decode()


def clean(text: str) -> str:
    """Return a text with a space in place of line ends and of characters that are not printable.

    Without them, a text cannot confuse a terminal or a page.
    """
    return _UNPRINTABLE.sub(" ", text)


def is_short_text(value: object, most: int) -> TypeGuard[str]:
    """Return whether a value is text of 1 to ``most`` characters that needs no escapes."""
    return isinstance(value, str) and 1 <= len(value) <= most and storable(value) == value


def remember_passwords(settings: Any) -> None:
    """Have :func:`hide_passwords` hide the passwords in these settings from now on.

    Parameters:
        settings: a URL, several URLs, or a mapping of options, which may contain all of these.
    """
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            if isinstance(value, str) and re.fullmatch(_SECRET, str(name), re.IGNORECASE):
                _known_passwords.add(value)
            else:
                remember_passwords(value)
    elif isinstance(settings, (list, tuple)):
        for setting in settings:
            remember_passwords(setting)
    elif isinstance(settings, str) and "@" in settings:
        # A ";" separates the URLs of several servers, or is a part of a password.
        for url in {settings, *settings.split(";")}:
            with suppress(ValueError):  # It is no URL. The check of the settings refuses it.
                _remember_password_of(url)


def _remember_password_of(url: str) -> None:
    """Remember the password of a URL, as it is written and without percent form."""
    address = url.partition("://")[2] or url
    password = urlsplit(f"//{address}").password or ""
    _known_passwords.update((password, unquote(password)))


def hide_passwords(text: str) -> str:
    """Return a text with ``**`` in place of known passwords and of probable ones."""
    # The longest password comes first, because a shorter one may be a part of it.
    for password in sorted(_known_passwords, key=len, reverse=True):
        if len(password) >= _SHORTEST_PASSWORD:
            # Do not replace it inside a longer word.
            text = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", "**", text)
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1**", text)
    return text
