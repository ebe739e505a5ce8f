"""Selection of many entries by patterns of their names and tasks, and by a tag."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from functools import lru_cache
from glob import escape
from typing import NamedTuple

from .._base.fields import checked_kind
from .._base.json_values import dumps
from .._base.text import is_short_text
from ..settings import MAX_NAME
from .changes import Stored
from .entry import Entry
from .model import TAG

#: Maximum number of characters of a pattern: enough for the longest name with each character in
#: brackets.
_LONGEST = 3 * MAX_NAME


#: Name or pattern of names.
PATTERN = checked_kind(
    "PATTERN",
    f"a name or a pattern, as billing-*, of 1 to {_LONGEST} characters",
    lambda text: is_short_text(text, _LONGEST),
)


class Selection(NamedTuple):
    """Selection of entries. An entry must match every field; without fields, all entries match.

    Parameters:
        name: pattern of names, as of files: ``billing-*``.
        tag: one of the entry's tags.
        task: pattern of names of tasks.
    """

    name: str = "*"
    tag: str | None = None
    task: str = "*"

    @classmethod
    def of(cls, name: object = "*", tag: object = None, task: object = "*") -> Selection:
        """Return the selection for a user's input.

        Raises:
            InvalidEntry: a field is wrong; names the field.
        """
        checked_name = PATTERN.read("name", name)
        checked_task = PATTERN.read("task", task)
        return cls(checked_name, TAG.read("tag", tag, optional=True), checked_task)

    @classmethod
    def one(cls, name: str) -> Selection:
        """Return the selection of one entry, whose name may have characters of a pattern."""
        return cls(escape(name))

    def among(self, page: Iterable[Stored]) -> Iterator[Stored]:
        """Yield the stored entries that may match; :meth:`covers` decides about a decoded one.

        Decoding all entries would take long. So the task is not checked, and the tag is searched in
        the text of the definition. An entry that has this text in another field is yielded, too.
        """
        tag = b"" if self.tag is None else dumps(self.tag).encode()
        for stored in page:
            if tag in (stored.definition or b"") and self.allows(stored.name):
                yield stored

    def allows(self, name: bytes) -> bool:
        """Return whether a stored name matches the pattern of names. Tag and task do not matter."""
        return matches(name.decode(errors="replace"), self.name)

    def covers(self, entry: Entry) -> bool:
        """Return whether an entry matches by its name, its tags and its task."""
        if self.tag is not None and self.tag not in entry.tags:
            return False
        return matches(entry.name, self.name) and matches(entry.task, self.task)

    @property
    def is_all(self) -> bool:
        """Whether every entry matches."""
        return self == Selection()

    def __str__(self) -> str:
        """Describe the selection by the fields that narrow it, such as ``billing-*, tag slow``."""
        parts = []
        # A selection of all entries is shown as "*". Beside a tag or a task, "*" says nothing.
        if self.name != "*" or self.is_all:
            parts.append(self.name)
        if self.tag is not None:
            parts.append(f"tag {self.tag}")
        if self.task != "*":
            parts.append(f"task {self.task}")
        return ", ".join(parts)


def matches(text: str, pattern: str) -> bool:
    """Return whether a pattern, as of file names, matches the whole text. Case matters."""
    return _matcher(pattern)(text) is not None


# fnmatchcase() is not used, because its cache keeps 32,768 patterns, and a pattern of 600
# characters takes 16 kB.
@lru_cache(maxsize=100)
def _matcher(pattern: str) -> Callable[[str], object]:
    """Return a function that returns ``None`` for a text that a pattern does not match."""
    return re.compile(translate(pattern)).match


def is_pattern(name: str) -> bool:
    """Return whether a name is a pattern, which can match several names.

    In a pattern, ``*`` is any text, ``?`` is any character, and ``[`` begins a set of characters.
    """
    return escape(name) != name
