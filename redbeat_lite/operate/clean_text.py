"""Texts that anybody may have written, made safe to show."""

from __future__ import annotations

import re

#: Characters beyond ASCII that move the cursor or turn the direction of text. Anybody may write
#: them into the name or the description of an entry.
BEYOND_ASCII = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_UNPRINTABLE = re.compile(rf"[\x00-\x1f{BEYOND_ASCII}]+")


def clean(text: str) -> str:
    """Return a text on one line, without characters that would confuse a terminal or a page."""
    return _UNPRINTABLE.sub(" ", text)
