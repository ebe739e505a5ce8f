"""One question to ``why``: whom it is about, what is known of it, how that is told, and what it is answered with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any

from ...beat.status import Status
from ...entries.change_words import change_words
from ...entries.entry import Entry
from ...entries.freezes import Freeze
from ...entries.state import task_id
from ...entries.words import in_zone
from ...instants import from_ms, to_ms
from ...runs.run import Run
from ...storage.changes import Change

#: Who tells.
RECORD, CHANGES, STATE, RULE = "record of runs", "record of changes", "state of the entry", "its schedule"

#: The changes that bring an entry, and those that take it away.
HERE, GONE = ("added", "released"), ("removed", "quarantined", "discarded")

#: The fields that decide which occurrences an entry has.
TIMING = ("schedule", "start_at", "end_at", "max_runs", "jitter")


#: A freeze ends by the clock of the leader, and a run begins by that of the server.
_SKEW = timedelta(seconds=5)


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


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without a leader.

    Parameters:
        begin: the last sign of life of the one before.
        end: when the next one began; ``None`` while there is none.
        who: the next one.
    """

    begin: datetime
    end: datetime | None = None
    who: str = ""

    def covers(self, instant: datetime) -> bool:
        """Whether nobody led at an instant."""
        return self.begin <= instant and (self.end is None or instant < self.end)


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked about, and what was found of it.

    Parameters:
        name: of the entry, as a sentence names it.
        entry: as it is stored; ``None`` where it is not.
        now: the present, by the clock of this machine. Changes are dated by the server's.
        zone: of the app, for schedules without one of their own, and in which times are told.
        status: how the beats fare.
        runs: the runs that are recorded, the newest first.
        kept: how many are kept; 0: none.
        changes: of the entry, the newest first.
        unrecorded: whether somebody has changed it since the last of them.
        since: from when on changes are recorded; ``None`` where none is.
        gaps: times without a leader.
        freezes: those that are recorded, of whichever entries.
        quarantine: the record of the entry in quarantine; ``None`` if it is not there.
        refused: what is wrong with the entry as ``beat_schedule`` has it.
        queue: where its messages go.
        takers: the workers that report that they take from there.
        line: the runs of its pipeline by their ids, if they do not overlap: the one whose turn it is, and who waits.
    """

    name: str
    entry: Entry | None
    now: datetime
    zone: tzinfo
    status: Status
    runs: tuple[Run, ...] = ()
    kept: int = 20
    changes: tuple[Change, ...] = ()
    unrecorded: bool = False
    since: datetime | None = None
    gaps: tuple[Gap, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    quarantine: Mapping[str, Any] | None = None
    refused: str | None = None
    queue: str = "celery"
    takers: tuple[str, ...] = ()
    line: tuple[str, ...] = ()

    def when(self, instant: datetime | int) -> str:
        """An instant in words; a number counts milliseconds since 1970."""
        return in_zone(from_ms(instant) if isinstance(instant, int) else instant, self.zone)

    def last(self, until: datetime | None, *actions: str, fields: Collection[str] = ()) -> Change | None:
        """The last change by an instant, or of all, that is one of these or may have changed one of these fields."""
        made = (each for each in self.changes if until is None or each.at <= until)
        return next((each for each in made if each.action in actions or _touches(each, fields)), None)

    def first(self, after: datetime, *actions: str, fields: Collection[str] = ()) -> Change | None:
        """The first change after an instant that is one of these or may have changed one of these fields."""
        made = (each for each in reversed(self.changes) if each.at > after)
        return next((each for each in made if each.action in actions or _touches(each, fields)), None)

    def altered(self, after: datetime) -> Change | None:
        """The first change after an instant by which other occurrences came to be: of the schedule, or all of it."""
        return self.first(after, fields=TIMING) or self.first(after, *HERE)

    def paused_at(self, instant: datetime) -> Change | None:
        """The pause in which an instant lies; ``None`` where there is none, or nobody knows whether it had ended."""
        last = self.last(instant, "paused", "resumed", *HERE, *GONE)
        if last is None or last.action != "paused" or self.was_sent(last.at, instant):
            return None
        if self.first(instant, "paused", "resumed", *HERE, *GONE) is not None:
            return last
        lasts = self.entry is not None and self.entry.known_state.paused and not self.unrecorded
        return last if lasts else None

    def was_sent(self, after: datetime, until: datetime) -> bool:
        """Whether an occurrence between two instants was sent, as far as is known; extra runs are none."""
        if self.entry is None:
            return False
        generation = self.entry.known_state.generation
        between = (run for run in self.runs if after < run.scheduled_at <= until)
        return any(run.task_id == task_id(self.entry.name, generation, to_ms(run.scheduled_at)) for run in between)

    def told(self, change: Change, kind: str) -> Reason:
        """A change as a reason."""
        return Reason(kind, full(f"It was {change_words(change, self.zone)}"), change.at, CHANGES)

    def changed_since(self, instant: datetime) -> Iterator[Reason]:
        """By what other occurrences came to be since an instant, and whether something is not recorded."""
        if (change := self.altered(instant)) is not None:
            yield self.told(change, "changed")
        if self.unrecorded:
            last = self.changes[0]
            sentence = f"It was changed after {self.when(last.at)}; by whom and when is not recorded."
            yield Reason("not recorded", sentence, None, STATE)

    def frozen(self, instant: datetime) -> list[Freeze]:
        """The freezes of the entry in which an instant lies."""
        lasting = [each for each in self.freezes if each.since <= instant < each.end]
        return [each for each in lasting if self.entry is not None and each.selection.covers(self.entry)]

    def hindrances(self, instant: datetime, began: datetime | None = None) -> Iterator[Reason]:
        """What is recorded that kept an occurrence of an instant from being sent in time.

        If it ``began`` all the same, what had not ended by then did not keep it.
        """
        for gap in self.gaps:
            if gap.covers(instant) and (began is None or (gap.end is not None and gap.end <= began)):
                then = f"at {self.when(gap.end)} {gap.who} began to lead" if gap.end else "nobody leads yet"
                sentence = f"Nobody led: a leader last gave a sign of life at {self.when(gap.begin)}, and {then}."
                yield Reason("no leader", sentence, gap.begin, CHANGES if gap.end else "status")
        for freeze in self.frozen(instant):
            if began is None or freeze.end <= began + _SKEW:
                note = f": {freeze.note}" if freeze.note else ""
                sentence = f"{freeze.actor} froze {freeze.selection} until {self.when(freeze.end)}{note}"
                yield Reason("frozen", full(sentence), freeze.since, CHANGES)
        pause, resumption = self.paused_at(instant), self.first(instant, "resumed")
        if pause is not None and (began is None or (resumption is not None and resumption.at <= began)):
            yield self.told(pause, "paused")
            if resumption is not None:
                yield self.told(resumption, "paused")


def _touches(change: Change, fields: Collection[str]) -> bool:
    """Whether a change may have changed one of these fields; an edit that tells none may have changed any."""
    if change.action == "edited" and not change.fields:
        return bool(fields)
    return any(field in fields for field, *_ in change.fields)
