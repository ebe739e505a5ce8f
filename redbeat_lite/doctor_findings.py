"""What the doctor says: one finding, and how grave it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: From the least grave to the gravest. A note is something to know; a warning will be trouble some day; an error is.
SEVERITIES = ("note", "warning", "error")

#: Names that a sentence lists; a finding holds all of them.
_LISTED = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that somebody should look at.

    Parameters:
        check: which check found it, in a word that stays.
        severity: one of :data:`SEVERITIES`.
        what: what was found.
        why: why that matters.
        todo: what to do about it.
        entries: the names of the entries it is about.
    """

    check: str
    severity: str
    what: str
    why: str
    todo: str
    entries: tuple[str, ...] = ()


def gravest(findings: Iterable[Finding]) -> str | None:
    """The gravest severity among these; ``None`` if there are none."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default=None)


def listed(names: Iterable[str]) -> str:
    """Names for a sentence: the first few of them, and how many more."""
    names = [*names]
    shown = ", ".join(map(repr, names[:_LISTED]))
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"


def counted(number: int, one: str, many: str) -> str:
    """``1 entry``, ``2 entries``."""
    return f"{number} {one if number == 1 else many}"
