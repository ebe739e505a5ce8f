"""Removal of characters that would confuse a terminal or a page, from texts that anybody wrote."""

from __future__ import annotations

import re

#: Characters beyond ASCII that move the cursor or change the direction of a text. Anybody may write
#: them into the name or the description of an entry.
BEYOND_ASCII = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_UNPRINTABLE = re.compile(rf"[\x00-\x1f{BEYOND_ASCII}]+")


def clean(text: str) -> str:
    """Return a text with a space in place of line ends and of characters that are not printable."""
    return _UNPRINTABLE.sub(" ", text)
