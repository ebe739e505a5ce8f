"""What ``why`` answers with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Reason:
    """One of the things that led to it.

    Parameters:
        kind: what it is, in a word or two that stay.
        sentence: the same for people.
        at: when that was; ``None`` where it has no time of its own.
        evidence: who tells.
    """

    kind: str
    sentence: str
    at: datetime | None = None
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an entry did not run, or that it did.

    Parameters:
        verdict: the answer, in a sentence.
        reasons: what led to it, what weighs most first; of kind ``"next"``, what is with the next occurrence.
        nominal: the nominal time it is about; ``None`` where there is none.
    """

    verdict: str
    reasons: tuple[Reason, ...] = ()
    nominal: datetime | None = None


def full(sentence: str) -> str:
    """A sentence that ends with somebody else's words, with its full stop."""
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
