"""Evidence for one question to ``why``, the query that gathers it, and the form of the answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

from .._base.times import from_ms, in_zone, to_ms
from ..api.change_log import ChangeSearch, of_entry
from ..api.reader import Reader, not_found
from ..api.record import read_record
from ..beat.status import Status, asking, reports_in, status_in
from ..entries.change_words import change_words, last_sign_of_life
from ..entries.entry import Entry
from ..entries.freezes import Freeze, recorded
from ..entries.sendable import queue_of
from ..entries.state import task_id
from ..pipeline.pipeline_keys import run_of, turns_key
from ..runs.run import Run
from ..store.changes import Change
from ..store.redis_values import texts
from ..store.scripts import checked
from ..store.store import Store, quarantined_in

if TYPE_CHECKING:
    from celery import Celery

#: Changes after which an entry is stored.
STORING = ("added", "released")

#: Changes after which an entry is not stored.
REMOVING = ("removed", "quarantined", "discarded")

#: The fields that decide which occurrences an entry has.
TIMING = ("schedule", "start_at", "end_at", "max_runs", "jitter")

#: Clock tolerance, because a freeze ends by the leader's clock and a run begins by the server's.
_SKEW = timedelta(seconds=5)

#: Maximum number of runs to read. It exceeds what is kept of one entry.
_RUNS = 1000

#: Maximum number of changes to read. It exceeds what the record keeps.
_LINES = 20_000

#: Actions of changes that concern no single entry, but may keep any entry from running.
_GLOBAL_ACTIONS = ("term begun", "frozen", "thawed")


@dataclass(frozen=True, slots=True)
class Reason:
    """One cause in an explanation.

    Parameters:
        kind: name of the cause, one or two words that do not change between versions.
        sentence: the cause in words.
        at: instant of the cause; ``None`` if it has none.
    """

    kind: str
    sentence: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Answer to the question why an entry did not run.

    Parameters:
        verdict: the answer in a sentence; it may say that the entry did run.
        reasons: the causes, the most important first. A reason of kind ``"next"`` is about the next
            occurrence.
        nominal: nominal time of the explained occurrence; ``None`` if there is none.
    """

    verdict: str
    reasons: tuple[Reason, ...] = ()
    nominal: datetime | None = None


def full(sentence: str) -> str:
    """Return a sentence with a full stop, unless it ends with a quoted text that has one."""
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without a leader.

    Parameters:
        begin: last sign of life of the previous leader.
        end: start of the next term; ``None`` while nobody leads.
        who: the next leader.
    """

    begin: datetime
    end: datetime | None = None
    who: str = ""

    def covers(self, instant: datetime) -> bool:
        """Return whether an instant lies in the gap."""
        return self.begin <= instant and (self.end is None or instant < self.end)


@dataclass(frozen=True, slots=True)
class Case:
    """The entry of a question, and the evidence about it.

    Parameters:
        name: name of the entry, quoted.
        entry: the stored entry; ``None`` if it is not stored.
        now: the present, by the clock of this machine. Changes have the server's time.
        zone: time zone of the app, for schedules without a zone, and for instants in sentences.
        status: status of the beats.
        runs: the recorded runs of the entry, the newest first.
        kept: count of runs that are kept of the entry; 0: none.
        changes: the recorded changes of the entry, the newest first.
        unrecorded: whether the entry was changed after the last of these, without a record.
        since: instant of the oldest recorded change of any entry; ``None`` if there is none.
        gaps: times without a leader.
        freezes: the recorded freezes, of any entries.
        quarantine: record of the entry in quarantine; ``None`` if it is not there.
        refused: error for which the beat refuses the entry of ``beat_schedule``; ``None``: none.
        queue: queue of the entry's messages.
        takers: names of the workers that report that they consume this queue.
        line: ids of the runs of its pipeline, if they may not overlap: first the run whose turn it
            is, then the waiting runs.
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
        """Return an instant in words. A number is in epoch milliseconds."""
        if isinstance(instant, int):
            instant = from_ms(instant)
        return in_zone(instant, self.zone)

    def last(
        self,
        until: datetime | None,
        *actions: str,
        fields: Collection[str] = (),
    ) -> Change | None:
        """Return the last change with one of these actions or fields.

        Parameters:
            until: only changes up to this instant; ``None``: up to now.
        """
        for change in self.changes:
            if until is not None and change.at > until:
                continue
            if change.action in actions or _touches(change, fields):
                return change
        return None

    def first(self, after: datetime, *actions: str, fields: Collection[str] = ()) -> Change | None:
        """Return the first change after an instant with one of these actions or fields."""
        for change in reversed(self.changes):
            if change.at > after and (change.action in actions or _touches(change, fields)):
                return change
        return None

    def altered(self, after: datetime) -> Change | None:
        """Return the first change after an instant that moved occurrences or stored the entry."""
        return self.first(after, fields=TIMING) or self.first(after, *STORING)

    def run_at(self, instant: datetime) -> Run | None:
        """Return the recorded run of an instant.

        One record may stand for all occurrences from its ``scheduled_at`` to its ``until``.
        """
        for run in self.runs:
            if run.scheduled_at <= instant <= (run.until or run.scheduled_at):
                return run
        return None

    def paused_at(self, instant: datetime) -> Change | None:
        """Return the change that paused the entry, if the entry was certainly paused at an instant.

        If the end of the pause is not recorded, the pause may have ended before the instant.
        """
        last = self.last(instant, "paused", "resumed", *STORING, *REMOVING)
        if last is None or last.action != "paused" or self.was_sent(last.at, instant):
            return None
        # The entry stayed paused until the next change, or until now.
        if self.first(instant, "paused", "resumed", *STORING, *REMOVING) is not None:
            return last
        still_paused = self.entry is not None and self.entry.known_state.paused
        return last if still_paused and not self.unrecorded else None

    def was_sent(self, after: datetime, until: datetime) -> bool:
        """Return whether an occurrence between two instants is recorded as sent.

        Runs by hand do not count. They have other task ids.
        """
        if self.entry is None:
            return False
        generation = self.entry.known_state.generation
        for run in self.runs:
            if after < run.scheduled_at <= until:
                nominal = to_ms(run.scheduled_at)
                if run.task_id == task_id(self.entry.name, generation, nominal):
                    return True
        return False

    def change_reason(self, change: Change, kind: str) -> Reason:
        """Return a change as a reason."""
        return Reason(kind, full(f"It was {change_words(change, self.zone)}"), change.at)

    def changed_since(self, instant: datetime) -> Iterator[Reason]:
        """Yield the first later change that moved occurrences, and a gap in the record."""
        change = self.altered(instant)
        if change is not None:
            yield self.change_reason(change, "changed")
        if self.unrecorded:
            last = self.when(self.changes[0].at)
            sentence = f"It was changed after {last}; by whom and when is not recorded."
            yield Reason("not recorded", sentence)

    def frozen(self, instant: datetime) -> list[Freeze]:
        """Return the freezes of the entry that were in force at an instant."""
        entry = self.entry
        if entry is None:
            return []
        in_force = [freeze for freeze in self.freezes if freeze.since <= instant < freeze.end]
        return [freeze for freeze in in_force if freeze.selection.covers(entry)]

    def hindrances(self, instant: datetime, began: datetime | None = None) -> Iterator[Reason]:
        """Yield the recorded causes that kept an occurrence from being sent in time.

        Parameters:
            instant: nominal time of the occurrence.
            began: start of the run, if it ran late. Only causes that had ended by then are yielded.
        """
        yield from self._leaderless(instant, began)
        for freeze in self.frozen(instant):
            if began is None or freeze.end <= began + _SKEW:
                note = f": {freeze.note}" if freeze.note else ""
                until = self.when(freeze.end)
                sentence = f"{freeze.actor} froze {freeze.selection} until {until}{note}"
                yield Reason("frozen", full(sentence), freeze.since)
        pause = self.paused_at(instant)
        if pause is None:
            return
        resumption = self.first(instant, "resumed")
        if began is None or (resumption is not None and resumption.at <= began):
            yield self.change_reason(pause, "paused")
            if resumption is not None:
                yield self.change_reason(resumption, "paused")

    def _leaderless(self, instant: datetime, began: datetime | None) -> Iterator[Reason]:
        """Yield the times without a leader that kept an occurrence from being sent in time.

        Parameters:
            began: start of its run; ``None`` if it has not begun.
        """
        for gap in self.gaps:
            if not gap.covers(instant):
                continue
            if began is not None and (gap.end is None or gap.end > began):
                continue  # The run began within the gap, so the gap did not delay it.
            then = "nobody leads yet"
            if gap.end is not None:
                then = f"at {self.when(gap.end)} {gap.who} began to lead"
            last = f"a leader last gave a sign of life at {self.when(gap.begin)}"
            yield Reason("no leader", f"Nobody led: {last}, and {then}.", gap.begin)


def _touches(change: Change, fields: Collection[str]) -> bool:
    """Return whether a change may have changed one of these fields."""
    if change.action == "edited" and not change.fields:
        return bool(fields)  # This edit did not record its fields.
    return any(field in fields for field, _, _ in change.fields)


def gather(app: Celery, name: str, now: datetime, zone: tzinfo, store: Store | None = None) -> Case:
    """Gather the evidence about an entry.

    It takes three round trips, and reads the whole record of changes.

    Parameters:
        store: the stored schedule; ``None``: a new connection is opened.

    Raises:
        EntryNotFound: nothing is known of such an entry.
        CorruptEntry: the stored entry cannot be read.
        redis.exceptions.RedisError: the server does not answer.
    """
    reader = Reader(app, store)
    settings = reader.settings
    keys = reader.store.keys
    search = ChangeSearch(name, _LINES, actions=_GLOBAL_ACTIONS)
    commands = (
        asking(keys),
        ("HGET", keys.quarantine, name),
        ("ZRANGE", turns_key(settings.key_prefix, name), 0, -1),
        search.call(keys),
    )
    facts = read_record(reader, name, _RUNS, *commands)
    status_reply, quarantine_row, turns, lines = checked(facts.replies)
    changes, since = search.run(reader.store, lines)
    entry = facts.entry
    status = status_in(status_reply)
    queue = app.conf.task_default_queue if entry is None else queue_of(app, entry)
    reports = reports_in(status_reply)
    takers = sorted(worker for worker, report in reports.items() if queue in report.queues)
    freezes = {freeze.id: freeze for freeze in (*status.freezes, *recorded(changes))}
    kept = settings.history
    if entry is not None and entry.history is not None:
        kept = entry.history
    case = Case(
        repr(name),
        entry,
        now,
        zone,
        status,
        runs=tuple(facts.runs),
        kept=kept,
        changes=tuple(of_entry(name, changes, facts.kept, _LINES)),
        unrecorded=entry is not None and facts.kept is not None and entry.last_change is None,
        since=since,
        gaps=tuple(_gaps(changes, status)),
        freezes=tuple(freezes.values()),
        quarantine=None if quarantine_row is None else quarantined_in(quarantine_row),
        refused=status.refused.errors.get(name),
        queue=queue,
        line=tuple(map(run_of, texts(turns))),
        takers=tuple(takers),
    )
    if not (entry or case.runs or case.changes or case.quarantine or case.refused):
        raise not_found(name)
    return case


def _gaps(changes: Iterable[Change], status: Status) -> Iterator[Gap]:
    """Yield the times without a leader.

    Each new leader has recorded the last sign of life of the leader before it.
    """
    for change in changes:
        if change.action == "term begun":
            last_tick = last_sign_of_life(change)
            if last_tick is not None:
                yield Gap(last_tick, change.at, change.actor)
    if status.leader is None and status.last_tick is not None:
        yield Gap(status.last_tick)
