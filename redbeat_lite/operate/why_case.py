"""Evidence for one question to ``why``, the query that gathers it, and the form of the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import NamedTuple

from celery import Celery

from .._base.times import from_ms, in_zone, to_ms
from ..api.change_log import of_entry, search
from ..api.reader import Reader, not_found
from ..api.run_history import RunHistory, RunQuery
from ..beat.status import Status, read_status
from ..entries.changes import Change
from ..entries.entry import Entry
from ..entries.freeze import recorded_end
from ..entries.run import Run
from ..entries.words import change_words, last_sign_of_life, span
from ..rules import Question
from ..rules.calendars import CalendarRule
from ..settings import MAX_HISTORY
from ..store.store import Store

#: Changes after which an entry is stored.
_STORING = ("added", "released")

#: Changes after which an entry is not stored.
_REMOVING = ("removed", "quarantined", "discarded")

#: State of an entry that is not stored.
ABSENT = "not stored"

#: Action of a change -> state of the entry after the change, if the state keeps it from being sent.
#: Empty: the change ended such a state.
_STATE_AFTER = {
    **dict.fromkeys(_STORING, ""),
    **dict.fromkeys(_REMOVING, ABSENT),
    "paused": "paused",
    "resumed": "",
    "frozen": "frozen",
    "thawed": "",
}

#: Changes of an entry that may move its occurrences.
_MOVING = ("edited", *_STORING, *_REMOVING)

#: Maximum number of changes after the instant in question that are shown. The earliest are shown.
_LATER = 5

#: Maximum number of changes to read. The record keeps fewer, so all are read.
_LINES = 20_000

#: Actions of changes that concern all entries: a new leader, and the begin and end of a freeze.
_GLOBAL_ACTIONS = ("term begun", "frozen", "thawed")


class Hold(NamedTuple):
    """State that kept an entry from being sent at an instant.

    Parameters:
        state: the state in words, such as ``"paused"``.
        changes: the changes that began and ended it, as far as they are recorded.
        may_run_later: whether occurrences that the state held back may have been sent after it. The
            misfire policy decides about them if the state ended as planned.
    """

    state: str
    changes: Sequence[Change]
    may_run_later: bool = False


@dataclass(frozen=True, order=True, slots=True)
class Event:
    """A recorded run or change.

    Parameters:
        at: nominal time of the run, or instant of the change.
        text: description of the run or the change.
    """

    at: datetime
    text: str


@dataclass(slots=True)
class Explanation:
    """Answer to the question why an entry did not run.

    Parameters:
        verdict: the answer in a sentence, for example that the entry did run.
        causes: sentences that explain the verdict.
        timeline: the recorded runs and changes around the instant, the earliest first.
        next_run: a sentence about the next run; empty if an instant was asked about.
        nominal: nominal time of the explained occurrence; ``None`` if there is none.
    """

    verdict: str
    causes: list[str] = field(default_factory=list)
    timeline: list[Event] = field(default_factory=list)
    next_run: str = ""
    nominal: datetime | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """The entry of a question, and the evidence about it.

    Parameters:
        name: name of the entry.
        entry: the stored entry; ``None`` if it is not stored.
        now: the present, by the clock of this machine.
        zone: time zone for the instants in sentences.
        status: status of the beats.
        runs: the recorded runs of the entry, the newest first.
        changes: the recorded changes of the entry, the newest first.
        record: the recorded changes of the leader and of the freeze, the newest first.
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

    @property
    def present_state(self) -> str:
        """Present state of the entry; if the entry is paused, with the note of the pause."""
        if self.entry is None:
            return ABSENT
        note = self.entry.paused_note
        return f"{self.entry.status}: {note}" if note else self.entry.status

    @property
    def planned(self) -> datetime | None:
        """Nominal time of the occurrence that the entry sends next; ``None`` if it is not known."""
        planned = None if self.entry is None else self.entry.state.nominal
        # A Question is no occurrence. It is the time at which to ask a schedule class of the user
        # whether it is due.
        if planned is None or isinstance(planned, Question):
            return None
        return from_ms(planned)

    @property
    def nominals_in_state(self) -> list[datetime]:
        """Nominal times of the last and the next run, as far as the state of the entry has them."""
        last = None if self.entry is None else self.entry.last_run_at
        return [nominal for nominal in (last, self.planned) if nominal is not None]

    @property
    def recorded_nominals(self) -> list[datetime]:
        """Nominal times of :attr:`nominals_in_state`, and then those of the recorded runs."""
        nominals = self.nominals_in_state
        for run in self.runs:
            # A record can stand for several occurrences in a row. These are the first and the last.
            nominals += [run.scheduled_at, run.until or run.scheduled_at]
        return nominals

    def run_at(self, nominal: datetime) -> Run | None:
        """Return the recorded run of a nominal time; ``None`` if there is none.

        One record can stand for all occurrences from its ``scheduled_at`` to its ``until``.
        """
        for run in self.runs:
            if run.scheduled_at <= nominal <= (run.until or run.scheduled_at):
                return run
        return None

    def has_changed_since(self, instant: datetime) -> bool:
        """Return whether a change after an instant may have moved the occurrences of the entry."""
        return any(change.at > instant and _may_move(change) for change in self.changes)

    def calendar_causes(self, begin: datetime, end: datetime) -> Iterator[str]:
        """Yield a sentence for each block of days in a row that the calendar leaves out.

        The sentence names the day of the first occurrence in the block. Only occurrences from
        ``begin`` to ``end``, inclusive, count.
        """
        rule = None if self.entry is None else self.entry.rule
        if isinstance(rule, CalendarRule):
            # left_out() excludes both bounds, so widen the range by one ms on each side.
            # ``first`` is the first occurrence of a block of consecutive days.
            for first in rule.left_out(to_ms(begin) - 1, to_ms(end) + 1):
                day = f"{from_ms(first).astimezone(rule.zone):%Y-%m-%d}"
                yield f"Its calendar {rule.calendar} leaves out {day}."

    def hold_at(self, instant: datetime, changes: Sequence[Change]) -> Hold | None:
        """Return the state that kept the entry from being sent at an instant.

        ``None`` if there was no such state, or none is known.

        Parameters:
            changes: recorded changes of the entry, or of the freeze, the newest first.
        """
        # Each of these changes has begun or ended such a state.
        switches = [change for change in changes if _state_after(change) is not None]
        # The last change until the instant, and the first change after it.
        begin = next((change for change in switches if change.at <= instant), None)
        end = next((change for change in reversed(switches) if change.at > instant), None)
        if begin is None:
            return self._absence_before(end)
        state = _state_after(begin)
        planned_end = recorded_end(begin)
        if not state:
            return None  # The change has ended such a state.
        if planned_end and planned_end <= instant:
            # The state had ended at its planned time. No change is recorded for such an end.
            return None
        # A state without a recorded or planned end holds at present, or it has ended at an unknown
        # time, perhaps before the instant. For example, the beat records no change when it removes
        # a finished entry. ``present_state`` may have the note of a pause after the state.
        if not (end or planned_end or self.present_state.startswith(state)):
            return None
        recorded = [begin] if end is None else [begin, end]
        # After a planned end, the misfire policy decides about the occurrences of that time. A
        # resumption by hand may ignore them.
        was_resumed = recorded[-1].action == "resumed"
        return Hold(state, recorded, may_run_later=planned_end is not None and not was_resumed)

    def _absence_before(self, change: Change | None) -> Hold | None:
        """Return the state of an entry before the change that stored it, which is ``ABSENT``.

        ``None`` if the change did not store it. Also ``None`` if a run from before the change is
        recorded, because that shows that an earlier entry had the same name.
        """
        if change is None or change.action not in _STORING:
            return None
        had_run = any(run.scheduled_at <= change.at for run in self.runs)
        return None if had_run else Hold(ABSENT, [change])

    def timeline(self, instant: datetime) -> list[Event]:
        """Return the recorded runs and changes around an instant, the earliest first.

        The list has the last two runs until the instant, and the first run after it. It has the
        changes that began and ended the state of the entry, or a freeze, at the instant. It has
        the first changes of the entry after the instant. If nobody led at the instant, it has the
        time without a leader.
        """
        # In all these lists, the newest run or change comes first.
        earlier_runs = [run for run in self.runs if run.scheduled_at <= instant]
        later_runs = [run for run in self.runs if run.scheduled_at > instant]
        later_changes = [change for change in self.changes if change.at > instant]
        # Use a set: the change that ended a hold may also be one of the first later changes.
        events = {self._run_event(run) for run in (*earlier_runs[:2], *later_runs[-1:])}
        events.update(map(self._change_event, later_changes[-_LATER:]))
        for changes in (self.changes, self.record):
            hold = self.hold_at(instant, changes)
            if hold:
                events.update(map(self._change_event, hold.changes))
        # The change that begins a term also says when the leader before was last alive.
        for change in self.record:
            silent_since = last_sign_of_life(change)
            if silent_since and silent_since <= instant < change.at:
                text = f"nobody led until {self.when(change.at)}, when {change.actor} began to lead"
                events.add(Event(silent_since, text))
        return sorted(events)

    def _run_event(self, run: Run) -> Event:
        """Describe the outcome and the details of a recorded run."""
        parts = [f"run: {run.outcome}"]
        if run.began_at:
            late = (run.began_at - run.scheduled_at).total_seconds()
            parts.append(f"began after {span(late)}")
        if run.until:  # The record stands for several occurrences.
            parts.append(f"{run.count} occurrences until {self.when(run.until)}")
        if run.error:
            parts.append(run.error)
        if run.task_id:
            parts.append(f"task {run.task_id}")
        return Event(run.scheduled_at, ", ".join(parts))

    def _change_event(self, change: Change) -> Event:
        """Describe a recorded change."""
        return Event(change.at, change_words(change, self.zone, named=True))


def _may_move(change: Change) -> bool:
    """Return whether a change may have moved the occurrences of its entry."""
    # An edit of ``enabled`` alone moves no occurrence.
    is_switch = [field for field, *_ in change.fields] == ["enabled"]
    return change.action in _MOVING and not is_switch


def _state_after(change: Change) -> str | None:
    """Return the state after a change, as in ``_STATE_AFTER``; ``None`` if it changes no state."""
    for name, before, _ in change.fields:
        if name == "enabled":
            # The edit has changed this value, so an entry that was disabled before is enabled now.
            if before == "false":
                return ""
            # Otherwise the entry was enabled, which is the default (``None``). ``None`` stands also
            # for an edit that changed several entries in different ways. Such an edit may have
            # disabled this entry.
            return "disabled"
    return _STATE_AFTER.get(change.action)


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
    status = read_status(reader.store)
    runs = RunHistory(reader).of_stored(name, entry, RunQuery.of(MAX_HISTORY))
    # search() returns the changes of the entry, and all changes with ``_GLOBAL_ACTIONS``.
    # of_entry() keeps only the changes of the entry. The entry itself stores its last change, and
    # of_entry() adds this change if the record lacks it.
    record = search(reader.store, name, _LINES, actions=_GLOBAL_ACTIONS)
    changes = of_entry(name, record, None if entry is None else entry.last_change, _LINES)
    case = Case(
        name,
        entry,
        now,
        zone,
        status,
        runs,
        changes,
        [change for change in record if change.action in _GLOBAL_ACTIONS],
    )
    # An entry that was never stored is known, too, if the beat refuses it in ``beat_schedule``.
    if not (entry or runs or changes or name in status.refused.errors):
        raise not_found(name)
    return case
