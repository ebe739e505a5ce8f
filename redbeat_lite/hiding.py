"""Passwords are shown nowhere: the texts of other people's errors without them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

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
    """Have the passwords in settings hidden from now on, wherever they stand and whatever characters they have.

    Parameters:
        given: a URL, several of them, or options, which may hold further ones.
    """
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
