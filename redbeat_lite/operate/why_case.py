"""Evidence for one question to ``why``, the query that gathers it, and the form of the answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from .._base.times import from_ms, in_zone
from ..api.change_log import of_entry, search
from ..api.reader import Reader, not_found
from ..api.run_history import RunHistory, RunQuery
from ..beat.status import Status, asking, reports_in, status_in
from ..entries.entry import Entry
from ..entries.freezes import Freeze, recorded
from ..entries.message import queue_of
from ..entries.words import change_words, last_sign_of_life
from ..pipeline.pipeline_keys import run_of, turns_key
from ..rules import Question
from ..runs.run import Run
from ..store.changes import Change
from ..store.redis_values import texts
from ..store.scripts import checked
from ..store.store import Store

if TYPE_CHECKING:
    from celery import Celery

#: Changes after which an entry is stored.
STORING = ("added", "released")

#: Changes after which an entry is not stored.
REMOVING = ("removed", "quarantined", "discarded")

#: State of an entry that is not stored.
ABSENT = "not stored"

#: Start of a period that has always lasted.
_EVER = datetime.min.replace(tzinfo=UTC)

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
class Hold:
    """Period in which something kept an entry from being sent.

    Parameters:
        state: state of the entry in this period, such as ``"paused"``; empty if nobody led.
        begin: start of the period.
        end: end of the period; ``None`` if it has not ended.
        reasons: causes of its start and its end.
    """

    state: str
    begin: datetime
    end: datetime | None
    reasons: tuple[Reason, ...]

    def covers(self, instant: datetime) -> bool:
        """Return whether an instant lies in the period."""
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
        since: instant of the oldest recorded change of any entry; ``None`` if there is none.
        leaderless: periods without a leader.
        freezes: the recorded freezes, of any entries.
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
    since: datetime | None = None
    leaderless: tuple[Hold, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    refused: str | None = None
    queue: str = "celery"
    takers: tuple[str, ...] = ()
    line: tuple[str, ...] = ()

    def when(self, instant: datetime | int) -> str:
        """Return an instant in words. A number is in epoch milliseconds."""
        if isinstance(instant, int):
            instant = from_ms(instant)
        return in_zone(instant, self.zone)

    def last(self, *actions: str, fields: Collection[str] = ()) -> Change | None:
        """Return the last change with one of these actions or fields; ``None``: there is none."""
        changes = (change for change in self.changes if _matches(change, actions, fields))
        return next(changes, None)

    def first(self, after: datetime, *actions: str, fields: Collection[str] = ()) -> Change | None:
        """Return the first change after an instant with one of these actions or fields."""
        for change in reversed(self.changes):  # The oldest comes first.
            if change.at > after and _matches(change, actions, fields):
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

    def dated(self, change: Change) -> datetime:
        """Return the instant of a change, but at most the present.

        The server dates changes, and its clock may be ahead of the one of this machine.
        """
        return min(change.at, self.now)

    def change_reason(self, change: Change, kind: str) -> Reason:
        """Return a change as a reason."""
        return Reason(kind, full(f"It was {change_words(change, self.zone)}"), change.at)

    def changed_since(self, instant: datetime) -> Iterator[Reason]:
        """Yield the first later change that moved occurrences or stored the entry."""
        change = self.altered(instant)
        if change is not None:
            yield self.change_reason(change, "changed")

    def is_outstanding(self, nominal: int) -> bool:
        """Return whether the entry still waits to send an occurrence.

        Parameters:
            nominal: nominal time of the occurrence, in epoch ms.
        """
        planned = None if self.entry is None else self.entry.known_state.nominal
        # A question is no occurrence: the schedule of another library is asked at that instant.
        return planned is not None and not isinstance(planned, Question) and planned <= nominal

    def holds_at(self, instant: datetime) -> list[Hold]:
        """Return the periods around an instant that kept the entry from being sent."""
        holds = (*_states(self), *_freezes(self), *self.leaderless)
        return [hold for hold in holds if hold.covers(instant)]

    def delays(self, instant: datetime, began: datetime | None = None) -> Iterator[Reason]:
        """Yield the recorded causes that kept an occurrence from being sent in time.

        Parameters:
            instant: nominal time of the occurrence.
            began: start of the run, if it ran late. Only causes that had ended by then are yielded.
        """
        for hold in self.holds_at(instant):
            if began is None or (hold.end is not None and hold.end <= began + _SKEW):
                yield from hold.reasons


def _states(case: Case) -> Iterator[Hold]:
    """Yield the periods in which the entry was, or still is, not stored, paused or disabled.

    An ended period is left out if its start or its end is not recorded.
    """
    # State that has begun and not ended -> the change that began it.
    begun: dict[str, Change] = {}
    oldest_first = case.changes[::-1]
    for change in oldest_first:
        for state, begins in _transitions(change):
            start = begun.pop(state, None)
            if begins:
                begun[state] = change
            elif start is not None:
                reasons = (case.change_reason(start, state), case.change_reason(change, state))
                yield Hold(state, start.at, case.dated(change), reasons)
    first = oldest_first[0] if oldest_first else None
    if first is not None and first.action in STORING:
        # A run before this addition was of an earlier entry of the same name.
        has_run_before = any(run.scheduled_at <= first.at for run in case.runs)
        if not has_run_before:
            yield Hold(ABSENT, _EVER, case.dated(first), (case.change_reason(first, first.action),))
    present = _present_state(case.entry)
    if present is not None:
        yield _present_hold(case, present, begun.get(present))


def _transitions(change: Change) -> Iterator[tuple[str, bool]]:
    """Yield the states of an entry that a change begins (``True``) or ends (``False``)."""
    if change.action in (*STORING, *REMOVING):
        yield ABSENT, change.action in REMOVING
        # An entry that is gone is neither paused nor disabled, and a new one is not paused.
        yield "paused", False
        yield "disabled", False
    elif change.action in ("paused", "resumed"):
        yield "paused", change.action == "paused"
    for field, before, _ in change.fields:
        if field == "enabled":
            # Only the value before is needed, because the edit has changed it. The edit of many
            # entries records no value (``None``). It may have disabled them.
            yield "disabled", before != "false"


def _present_state(entry: Entry | None) -> str | None:
    """Return the state that keeps an entry from being sent now; ``None`` if none does."""
    if entry is None:
        return ABSENT
    if entry.known_state.paused:
        return "paused"
    return None if entry.enabled else "disabled"


def _present_hold(case: Case, state: str, start: Change | None) -> Hold:
    """Return the period of the present state, which has not ended.

    Parameters:
        state: ``"not stored"``, ``"paused"`` or ``"disabled"``.
        start: change that began the period; ``None`` if the change is not recorded. Then the period
            begins now, because nothing is known of the time before. Of an entry without any record,
            it has always lasted.
    """
    entry = case.entry
    if start is not None:
        return Hold(state, case.dated(start), None, (case.change_reason(start, state),))
    if entry is None and not (case.changes or case.runs):
        return Hold(state, _EVER, None, ())
    note = ""
    by_itself = "; it may have removed itself"
    if entry is not None:
        note = f": {entry.paused_note}" if entry.paused_note else ""
        by_itself = ""
    who = f"Who did that, and when, is not recorded{by_itself}."
    reason = Reason("not recorded", f"{full(f'It is {state}{note}')} {who}")
    return Hold(state, case.now, None, (reason,))


def _freezes(case: Case) -> Iterator[Hold]:
    """Yield the freezes of the entry as periods; none if the entry is not stored."""
    for freeze in case.freezes:
        if case.entry is not None and freeze.selection.covers(case.entry):
            note = f": {freeze.note}" if freeze.note else ""
            until = case.when(freeze.end)
            sentence = full(f"{freeze.actor} froze {freeze.selection} until {until}{note}")
            reason = Reason("frozen", sentence, freeze.since)
            yield Hold("frozen", freeze.since, freeze.end, (reason,))


def _matches(change: Change, actions: Collection[str], fields: Collection[str]) -> bool:
    """Return whether a change has one of these actions, or may have changed one of these fields."""
    if change.action == "edited" and not change.fields:
        return bool(fields)  # This edit did not record its fields.
    is_of_field = any(field in fields for field, _, _ in change.fields)
    return is_of_field or change.action in actions


def gather(app: Celery, name: str, now: datetime, zone: tzinfo, store: Store | None = None) -> Case:
    """Gather the evidence about an entry.

    It takes some five round trips, and reads the whole record of changes.

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
    commands = (
        asking(keys),
        ("ZRANGE", turns_key(settings.key_prefix, name), 0, -1),
    )
    # The replies to ``commands`` are the status of the beats, and the runs of the entry's pipeline
    # that take turns.
    facts = reader.read(name, *commands)
    runs = RunHistory(reader).of_stored(name, facts.entry, RunQuery.of(_RUNS))
    changes, since = search(reader.store, name, _LINES, actions=_GLOBAL_ACTIONS)
    status_reply, turns = checked(facts.replies)
    entry = facts.entry
    status = status_in(status_reply)
    queue = app.conf.task_default_queue if entry is None else queue_of(app, entry)
    reports = reports_in(status_reply)
    takers = sorted(worker for worker, report in reports.items() if queue in report.queues)
    # The record of changes also has freezes that have ended. It is the later one of the two reads.
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
        runs=tuple(runs),
        kept=kept,
        changes=tuple(of_entry(name, changes, facts.change, _LINES)),
        since=since,
        leaderless=tuple(leaderless_periods(changes, status, zone)),
        freezes=tuple(freezes.values()),
        refused=status.refused.errors.get(name),
        queue=queue,
        line=tuple(map(run_of, texts(turns))),
        takers=tuple(takers),
    )
    if not (entry or case.runs or case.changes or case.refused):
        raise not_found(name)
    return case


def leaderless_periods(
    changes: Iterable[Change],
    status: Status,
    zone: tzinfo,
) -> Iterator[Hold]:
    """Yield the periods without a leader.

    Each new leader has recorded the last sign of life of the leader before it. A period without an
    end goes on.
    """
    for change in changes:
        begin = last_sign_of_life(change)
        if change.action == "term begun" and begin is not None:
            sentence = (
                f"Nobody led: a leader last gave a sign of life at {in_zone(begin, zone)}, "
                f"and at {in_zone(change.at, zone)} {change.actor} began to lead."
            )
            yield Hold("", begin, change.at, (Reason("no leader", sentence, begin),))
    if status.leader is not None:
        return
    begin = status.last_tick
    sentence = "Nobody leads now, and no beat has ever led."
    if begin is not None:
        last = f"the last sign of life of a leader was at {in_zone(begin, zone)}"
        sentence = f"Nobody leads now; {last}."
    yield Hold("", begin or _EVER, None, (Reason("no leader", sentence, begin),))
