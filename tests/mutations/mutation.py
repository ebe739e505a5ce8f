"""One mutation, and how it is written into a copy of the checkout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class DoesNotApplyError(Exception):
    """The file of a mutation does not hold its old text exactly once."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault, as data.

    Parameters:
        name: words that say what the mutated package does, or fails to do.
        file: path below ``redbeat_lite``.
        old: text that occurs exactly once in the file.
        new: text that takes its place.
        promise: the test below ``tests/promises`` that should notice, with its file.
        acceptance: test files with real processes that should notice.
        room: test files of the room that holds the file.
    """

    name: str
    file: str
    old: str
    new: str
    promise: str
    acceptance: tuple[str, ...] = ()
    room: tuple[str, ...] = ()

    def mutated(self, checkout: Path) -> str:
        """Return the text of the file with this fault in it.

        Raises:
            DoesNotApplyError: the old text is not there, or is there several times.
        """
        text = self.path(checkout).read_text()
        count = text.count(self.old)
        if count != 1:
            raise DoesNotApplyError(
                f"{self.name}: {self.file} holds the old text {count} times, not once: {self.old!r}"
            )
        return text.replace(self.old, self.new)

    def path(self, checkout: Path) -> Path:
        """Return where the file lies in this checkout."""
        return checkout / "redbeat_lite" / self.file
