"""What the doctor says: one finding, and how grave it is."""

from __future__ import annotations

from dataclasses import dataclass

from ...public import public_in

#: From the least grave to the gravest. A note is something to know; a warning will be trouble some day; an error is.
SEVERITIES = ("note", "warning", "error")


@public_in("redbeat_lite.operate")
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
