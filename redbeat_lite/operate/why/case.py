"""One question to ``why``: whom it is about, what is known of it, and how that is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo

from ...entries.entry import Entry
from ...entries.words import in_zone
from ...instants import from_ms
from ...storage.changes import Change
from .evidence import Evidence
from .explanation import Reason, full

#: Who tells.
RECORD, CHANGES, STATE, RULE = "record of runs", "record of changes", "state of the entry", "its schedule"

#: The changes that bring an entry, and those that take it away.
HERE, GONE = ("added", "released"), ("removed", "quarantined", "discarded")

#: The fields that decide which occurrences an entry has.
_TIMING = ("schedule", "start_at", "end_at", "max_runs", "jitter")

_DID = {
    "added": "added it",
    "edited": "changed it",
    "removed": "removed it",
    "paused": "paused it",
    "resumed": "resumed it",
    "quarantined": "put it in quarantine",
    "released": "released it from quarantine",
    "discarded": "forgot it, which was in quarantine",
}


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked about.

    Parameters:
        entry: as it is stored; ``None`` where it is not.
        evidence: what is known of it.
        now: the present.
        zone: of the app, in which times are told.
    """

    entry: Entry | None
    evidence: Evidence
    now: datetime
    zone: tzinfo

    @property
    def name(self) -> str:
        """The entry, as a sentence names it."""
        return repr(self.evidence.name)

    def when(self, instant: datetime | int) -> str:
        """An instant in words; a number counts milliseconds since 1970."""
        return in_zone(from_ms(instant) if isinstance(instant, int) else instant, self.zone)

    def last(self, until: datetime, *actions: str) -> Change | None:
        """The last of these changes that was made by an instant."""
        return next((each for each in self.evidence.changes if each.at <= until and each.action in actions), None)

    def first(self, after: datetime, *actions: str) -> Change | None:
        """The first of these changes that was made after an instant."""
        later = [each for each in self.evidence.changes if each.at > after and each.action in actions]
        return later[-1] if later else None

    def edit(self, after: datetime, *fields: str) -> Change | None:
        """The first edit after an instant that changed one of these fields."""
        edits = [each for each in self.evidence.changes if each.at > after and each.action == "edited"]
        return next((each for each in reversed(edits) if {field for field, *_ in each.fields} & {*fields}), None)

    def altered(self, after: datetime) -> Change | None:
        """The first change after an instant by which other occurrences came to be: of the schedule, or all of it."""
        return self.edit(after, *_TIMING) or self.first(after, *HERE)

    def paused_at(self, instant: datetime) -> Change | None:
        """The pause in which an instant lies, as far as pauses are recorded."""
        last = self.last(instant, "paused", "resumed", *HERE)
        return last if last is not None and last.action == "paused" else None

    def told(self, change: Change, kind: str) -> Reason:
        """A change as a reason."""
        fields = "; ".join(_of_field(*each) for each in change.fields)
        more = "".join(f": {text}" for text in (fields, change.note) if text)
        sentence = f"{change.actor} {_DID[change.action]} at {self.when(change.at)} ({change.way}){more}"
        return Reason(kind, full(sentence), change.at, CHANGES)

    def hindrances(self, instant: datetime) -> Iterator[Reason]:
        """What is recorded that kept an occurrence of an instant from being sent in time."""
        for gap in self.evidence.gaps:
            if gap.covers(instant):
                began = f"at {self.when(gap.end)} {gap.who} began to lead" if gap.end else "nobody leads yet"
                sentence = f"Nobody led: a leader last gave a sign of life at {self.when(gap.begin)}, and {began}."
                yield Reason("no leader", sentence, gap.begin, CHANGES if gap.end else "status")
        if (pause := self.paused_at(instant)) is not None:
            yield self.told(pause, "paused")
            if (resumption := self.first(instant, "resumed")) is not None:
                yield self.told(resumption, "paused")


def _of_field(field: str, before: str | None, after: str | None) -> str:
    if before is None and after is None:  # arguments are not told
        return field
    return f"{field} from {_value(before)} to {_value(after)}"


def _value(text: str | None) -> str:
    return "its default" if text is None else text
