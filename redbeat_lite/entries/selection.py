"""Which entries a person means who names many at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from functools import lru_cache
from typing import NamedTuple

from .._base.errors import InvalidEntry
from .._base.text import is_short_text
from ..settings import MAX_NAME
from ..store.json_values import dumps
from ..store.records import Stored
from .entry import Entry
from .fields import as_tags

#: What makes a name a pattern, as of file names: any text, any character, one of these.
_WILD = frozenset("*?[")

#: Characters of a pattern: of the longest name, where each is bracketed.
_LONGEST = 3 * MAX_NAME


class Selection(NamedTuple):
    """Those entries of which all holds that is given; none of it is all entries.

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
        """The selection, checked; raises InvalidEntry, which names the field."""
        for field, value in {"name": name, "task": task}.items():
            if not is_short_text(value, _LONGEST):
                raise InvalidEntry(
                    field,
                    f"a name or a pattern, as billing-*, of 1 to {_LONGEST} characters",
                    value,
                )
        return cls(str(name), None if tag is None else as_tags((tag,))[0], str(task))

    @classmethod
    def one(cls, name: str) -> Selection:
        """The entry of this name alone, whatever characters it has."""
        return cls("".join(f"[{char}]" if char in _WILD else char for char in name))

    def among(self, page: Iterable[Stored]) -> Iterator[Stored]:
        """Those that may be meant: as far as can be told without decoding them, which is what takes
        long.
        """
        tag = b"" if self.tag is None else dumps(self.tag).encode()
        for stored in page:
            if tag in (stored.definition or b"") and self.allows(stored.name):
                yield stored

    def allows(self, name: bytes) -> bool:
        """Whether the pattern of names matches this one."""
        return matches(name.decode(errors="replace"), self.name)

    def covers(self, entry: Entry) -> bool:
        """Whether an entry is one of them."""
        if self.tag is not None and self.tag not in entry.tags:
            return False
        return matches(entry.name, self.name) and matches(entry.task, self.task)

    @property
    def is_all(self) -> bool:
        """Whether there is no entry that is none of them."""
        return self == Selection()

    def __str__(self) -> str:
        told = [self.name] if self.name != "*" or self.is_all else []
        told += [f"tag {self.tag}"] if self.tag is not None else []
        return ", ".join([*told, f"task {self.task}"] if self.task != "*" else told)


def matches(text: str, pattern: str) -> bool:
    """Return whether a pattern, as of file names, matches the whole text. Case matters."""
    return _matcher(pattern)(text) is not None


# Not fnmatchcase(): it keeps 32,768 patterns, and one of 600 characters takes 16 kB.
@lru_cache(maxsize=100)
def _matcher(pattern: str) -> Callable[[str], object]:
    return re.compile(translate(pattern)).match


def is_pattern(name: str) -> bool:
    """Whether a name can mean several."""
    return not _WILD.isdisjoint(name)
