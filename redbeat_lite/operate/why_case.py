"""Evidence for one question to ``why``, the query that gathers it, and the form of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import chain
from typing import NamedTuple

from celery import Celery

from .._base.times import from_ms, in_zone, to_ms
from ..api.change_log import of_entry, search
from ..api.reader import Reader, not_found
from ..api.run_history import RunHistory, RunQuery
from ..beat.status import Status, read
from ..entries.changes import Change
from ..entries.entry import Entry
from ..entries.freeze import recorded_end
from ..entries.run import Run
from ..entries.words import change_words, last_sign_of_life
from ..rules import Question
from ..rules.calendars import CalendarRule
from ..store.store import Store

#: Changes after which an entry is stored.
_STORING = ("added", "released")

#: Changes after which an entry is not stored.
_REMOVING = ("removed", "quarantined", "discarded")

#: State of an entry that is not stored.
ABSENT = "not stored"

#: State in which an entry sends nothing -> the actions that begin it, and those that end it.
_STATES = {
    ABSENT: (_REMOVING, _STORING),
    "paused": (("paused",), ("resumed", *_STORING, *_REMOVING)),
    "disabled": (("disabled",), ("enabled", *_STORING, *_REMOVING)),
    "frozen": (("frozen",), ("thawed",)),
}

#: Fields of an entry that decide which occurrences it has, and which of them are sent if they are
#: late.
_TIMING = ("schedule", "calendar", "start_at", "end_at", "max_runs", "jitter", "misfire")

#: Start of a period that has always lasted, and end of one that has not ended.
_EVER = datetime.min.replace(tzinfo=UTC)
_NEVER = datetime.max.replace(tzinfo=UTC)

#: Tolerance for the difference of two clocks: a freeze ends by the leader's clock, and a run begins
#: by the server's clock.
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
        sentence: the cause in words, with its instant if it has one.
    """

    kind: str
    sentence: str


@dataclass(slots=True)
class Explanation:
    """Answer to the question why an entry did not run.

    Parameters:
        verdict: the answer in a sentence; it may say that the entry did run.
        reasons: the causes, the most important first. A reason of kind ``"next"`` is about the next
            occurrence.
        nominal: nominal time of the explained occurrence; ``None`` if there is none.
    """

    verdict: str
    reasons: list[Reason]
    nominal: datetime | None = None


class Period(NamedTuple):
    """Period in which something kept an entry from being sent.

    Parameters:
        state: state of the entry in this period, such as ``"paused"``; empty if nobody led.
        begin, end: start and end of the period. ``_EVER`` and ``_NEVER`` mean that it has none.
        reasons: causes of its start and its end.
        lasting: whether runs of this period are never sent. After a freeze, and after a pause with
            an end, the misfire policy may send them.
    """

    state: str
    begin: datetime
    end: datetime
    reasons: Iterable[Reason]
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """The entry of a question, and the evidence about it.

    Parameters:
        name: name of the entry.
        entry: the stored entry; ``None`` if it is not stored.
        now: the present, by the clock of this machine. It is not before the newest change, which
            has the server's time.
        zone: time zone for the instants in sentences.
        status: status of the beats.
        runs: the recorded runs of the entry, the newest first.
        changes: the recorded changes of the entry, the newest first.
        record: the recorded changes of the entry, of the leader, and of the freeze, the newest
            first. It may lack the last change of the entry.
    """

    name: str
    entry: Entry | None
    now: datetime
    zone: tzinfo
    status: Status
    runs: Sequence[Run] = ()
    changes: Sequence[Change] = ()
    record: Sequence[Change] = ()

    def when(self, instant: datetime) -> str:
        """Return an instant in words."""
        return in_zone(instant, self.zone)

    def with_outcome(self, nominal: datetime) -> str:
        """Return a nominal time in words, with the outcome of its run if there is one."""
        run = self.run_at(nominal)
        if run is None:
            return self.when(nominal)
        return f"{self.when(nominal)} ({run.outcome})"

    @property
    def present_state(self) -> str:
        """Present state of the entry in one word."""
        return ABSENT if self.entry is None else self.entry.status

    @property
    def planned(self) -> datetime | None:
        """Nominal time of the occurrence that the entry sends next; ``None`` if it is not known."""
        planned = None if self.entry is None else self.entry.state.nominal
        # A Question is no occurrence. It is the time at which a schedule class that a user has
        # written is asked whether it is due.
        if planned is None or isinstance(planned, Question):
            return None
        return from_ms(planned)

    def run_at(self, nominal: datetime) -> Run | None:
        """Return the recorded run of a nominal time; ``None`` if there is none.

        One record may stand for all occurrences from its ``scheduled_at`` to its ``until``.
        """
        for run in self.runs:
            if run.scheduled_at <= nominal <= (run.until or run.scheduled_at):
                return run
        if self.entry is not None and self.entry.last_run_at == nominal:
            # The run has no record, but the state of the entry shows that it was sent.
            return Run(self.name, nominal, "unknown", self.entry.last_task_id)
        return None

    def changed_since(self, instant: datetime) -> Iterator[Reason]:
        """Yield, as a reason, the first change after ``instant`` that may have moved occurrences.

        If there is no such change, nothing is yielded.
        """
        for change in reversed(self.changes):  # Look at the oldest change first.
            if change.at > instant and _may_move_occurrences(change):
                yield self.reason_of(change)
                return

    def calendar_reasons(self, begin: datetime, end: datetime) -> Iterator[Reason]:
        """Yield a reason for each block of days that the calendar leaves out.

        Only days with occurrences from ``begin`` to ``end``, inclusive, count.
        """
        rule = None if self.entry is None else self.entry.rule
        if isinstance(rule, CalendarRule):
            # left_out() excludes both bounds, so widen them by one ms. It yields one occurrence of
            # each block of consecutive days.
            for first in rule.left_out(to_ms(begin) - 1, to_ms(end) + 1):
                day = f"{from_ms(first).astimezone(rule.zone):%Y-%m-%d}"
                yield Reason("calendar", f"Its calendar {rule.calendar} leaves out {day}")

    def reason_of(self, change: Change) -> Reason:
        """Return a change as a reason."""
        subject = "All entries were" if change.action in ("frozen", "thawed") else "It was"
        return Reason(change.action, f"{subject} {change_words(change, self.zone)}")

    def periods_at(self, instant: datetime) -> list[Period]:
        """Return the periods around an instant that kept the entry from being sent."""
        in_states = chain.from_iterable(_periods_of(self, state) for state in _STATES)
        periods = chain(in_states, _absence_before(self), _leaderless_periods(self))
        return [period for period in periods if period.begin <= instant < period.end]

    def state_at(self, instant: datetime, *, lasting: bool = False) -> str:
        """Return the state that kept the entry from being sent at an instant; empty if none did.

        Parameters:
            lasting: only consider periods whose runs are never sent.
        """
        for period in self.periods_at(instant):
            if period.state and (period.lasting or not lasting):
                return period.state
        return ""

    def delays(self, instant: datetime, began: datetime | None = None) -> Iterator[Reason]:
        """Yield the recorded causes that kept an occurrence from being sent in time.

        Parameters:
            instant: nominal time of the occurrence.
            began: start of the run, if the occurrence has run; ``None`` if it has not. A cause that
                lasted longer is left out, because the run began in spite of it.
        """
        for period in self.periods_at(instant):
            if began is None or period.end <= began + _SKEW:
                yield from period.reasons


def _may_move_occurrences(change: Change) -> bool:
    """Return whether an entry may have had other occurrences before a change than after it."""
    if change.action in (*_STORING, *_REMOVING):
        return True
    fields = [field for field, _, _ in change.fields]
    # An edit whose fields are not recorded may have changed any field.
    return change.action == "edited" and (not fields or not set(_TIMING).isdisjoint(fields))


def _periods_of(case: Case, state: str) -> Iterator[Period]:
    """Yield the periods in which the entry was, or still is, in a state in which it sends nothing.

    An ended period is left out if its start or its end is not recorded.
    """
    begins, ends = _STATES[state]
    start: Change | None = None
    for change in reversed(case.record if state == "frozen" else case.changes):
        action = _action_of(change)
        if start is not None and action in (*begins, *ends):
            yield _period(case, state, start, end=change)
            start = None
        if action in begins:
            start = change
    freeze = case.status.freeze
    holds = state == case.present_state or (state == "frozen" and freeze is not None)
    # A period that no change has ended counts only if the entry is still in this state, or if the
    # change names the end.
    if start is not None and (holds or recorded_end(start)):
        yield _period(case, state, start, end=None)
    elif holds:
        # The start is not known, so the period covers only the time from now on.
        yield Period(state, case.now, _NEVER, [Reason("not recorded", _present_words(case, state))])


def _present_words(case: Case, state: str) -> str:
    """Return a sentence about the present state of an entry, which no change has begun."""
    freeze = case.status.freeze
    if state == "frozen" and freeze is not None:
        return f"All entries are frozen until {case.when(freeze.until)}"
    sentence = f"It is {state}, and since when is not recorded"
    if case.entry is None:
        return f"{sentence}; it may have removed itself"
    # An entry that was imported has been paused before it was stored here.
    return f"{sentence}: {case.entry.paused_note}" if case.entry.paused_note else sentence


def _period(case: Case, state: str, start: Change, end: Change | None) -> Period:
    """Return a period from its first change to the change that ended it, or to its planned end.

    Parameters:
        end: ``None`` if no change has ended it.
    """
    planned = recorded_end(start) or _NEVER
    if end is None or planned <= end.at:
        return Period(state, start.at, planned, [case.reason_of(start)], planned == _NEVER)
    reasons = [case.reason_of(start), case.reason_of(end)]
    # After a thaw, the misfire policy decides. It may also decide if another pause has replaced a
    # pause with an end, because that may have an end, too.
    lasting = state != "frozen" and (planned == _NEVER or end.action not in _STATES[state][0])
    return Period(state, start.at, end.at, reasons, lasting)


def _absence_before(case: Case) -> Iterator[Period]:
    """Yield the time before the entry was added, in which it was not stored.

    If a run from that time is recorded, there was an earlier entry of the same name, and nothing is
    known about that time.
    """
    if case.changes and case.changes[-1].action in _STORING:
        first = case.changes[-1]
        if not any(run.scheduled_at <= first.at for run in case.runs):
            yield Period(ABSENT, _EVER, first.at, [case.reason_of(first)])


def _action_of(change: Change) -> str:
    """Return the action of a change; ``enabled`` or ``disabled`` for an edit of ``enabled``."""
    for field, before, _ in change.fields:
        if field == "enabled":
            # The edit has changed this truth value, so the new value is the opposite of ``before``.
            # An edit of many entries records no value (``None``). It may have disabled them.
            return "enabled" if before == "false" else "disabled"
    return change.action


def _leaderless_periods(case: Case) -> Iterator[Period]:
    """Yield the periods without a leader.

    Each new leader has recorded the last sign of life of the leader before it.
    """
    for change in case.record:
        # ``begin`` is ``None`` unless the change says that a new leader has followed another one.
        begin = last_sign_of_life(change)
        if begin is not None:
            sentence = (
                f"Nobody led: a leader last gave a sign of life at {case.when(begin)}, "
                f"and at {case.when(change.at)} {change.actor} began to lead"
            )
            yield Period("", begin, change.at, [Reason("no leader", sentence)])
    if case.status.leader is None:
        last_tick = case.status.last_tick
        seen = "never" if last_tick is None else case.when(last_tick)
        sentence = f"Nobody leads now; the last sign of life of a leader: {seen}"
        yield Period("", last_tick or _EVER, _NEVER, [Reason("no leader", sentence)])


def gather(app: Celery, name: str, now: datetime, zone: tzinfo, store: Store | None = None) -> Case:
    """Gather the evidence about an entry.

    This takes about six round trips, and reads the whole record of changes.

    Parameters:
        store: the stored schedule; ``None``: a new connection is opened.

    Raises:
        EntryNotFound: nothing is known of such an entry.
        CorruptEntry: the stored entry cannot be read.
        redis.exceptions.RedisError: the server does not answer.
    """
    reader = Reader(app, store)
    entry = reader.read(name)
    status = read(reader.store)
    runs = RunHistory(reader).of_stored(name, entry, RunQuery.of(_RUNS))
    # search() returns the changes of the entry, and all changes with ``_GLOBAL_ACTIONS``.
    # of_entry() keeps only the changes of the entry. If the last change, which is stored with the
    # entry, is not among them, of_entry() adds it.
    record = search(reader.store, name, _LINES, actions=_GLOBAL_ACTIONS)
    changes = of_entry(name, record, None if entry is None else entry.last_change, _LINES)
    case = Case(
        name,
        entry,
        # The times of changes come from the server, whose clock may be ahead of this machine's.
        now=max([now, *(change.at for change in changes)]),
        zone=zone,
        status=status,
        runs=runs,
        changes=changes,
        record=record,
    )
    # An entry that was never stored is known, too, if the beat refuses it in ``beat_schedule``.
    if not (entry or runs or changes or name in status.refused.errors):
        raise not_found(name)
    return case
