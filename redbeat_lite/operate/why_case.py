"""Evidence for one question to ``why``, the query that gathers it, and the form of the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo

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
    "disabled": "disabled",
    "enabled": "",
    "frozen": "frozen",
    "thawed": "",
}

#: Changes of an entry that may move its occurrences.
_MOVING = ("edited", *_STORING, *_REMOVING)

#: Maximum number of later changes to show, which came after the instant in question.
_LATER = 5

#: Maximum number of runs to read. No entry keeps more.
_RUNS = 1000

#: Maximum number of changes to read. The record keeps fewer.
_LINES = 20_000

#: Actions of changes that concern all entries: a new leader, and the begin and end of a freeze.
_GLOBAL_ACTIONS = ("term begun", "frozen", "thawed")


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
    def known(self) -> list[datetime]:
        """Nominal times of the last and the next run, as far as the state of the entry has them."""
        last = None if self.entry is None else self.entry.last_run_at
        return [nominal for nominal in (last, self.planned) if nominal is not None]

    @property
    def recorded(self) -> list[datetime]:
        """Nominal times of the recorded runs, after those of :attr:`known`."""
        nominals = self.known
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
        # An edit of ``enabled`` alone moves no occurrence, so _action_of() gives it another action,
        # which is not in ``_MOVING``. If the edit has further fields, it counts.
        return any(
            change.at > instant and (_action_of(change) in _MOVING or len(change.fields) > 1)
            for change in self.changes
        )

    def calendar_causes(self, begin: datetime, end: datetime) -> Iterator[str]:
        """Yield a sentence for each block of days that the calendar leaves out.

        Only days with occurrences from ``begin`` to ``end``, inclusive, count.
        """
        rule = None if self.entry is None else self.entry.rule
        if isinstance(rule, CalendarRule):
            # left_out() excludes both bounds, so widen the range by one ms on each side.
            # ``first`` is the first occurrence of a block of consecutive days.
            for first in rule.left_out(to_ms(begin) - 1, to_ms(end) + 1):
                day = f"{from_ms(first).astimezone(rule.zone):%Y-%m-%d}"
                yield f"Its calendar {rule.calendar} leaves out {day}."

    def held_at(self, instant: datetime, changes: Sequence[Change]) -> tuple[str, Sequence[Change]]:
        """Return the state that kept the entry from being sent at an instant; empty if none did.

        The second value holds the changes that began and ended this state, if they are recorded.

        Parameters:
            changes: recorded changes of the entry, or of the freeze, the newest first.
        """
        switches = [change for change in changes if _action_of(change) in _STATE_AFTER]
        later = [change for change in switches if change.at > instant]
        # The newest change comes first in each list. So the last item of ``later`` is the first
        # change after the instant. The next item of ``switches`` is the last change until then.
        # Each slice has one change, or none.
        end = later[-1:]
        start = switches[len(later) :][:1]
        if not start:
            # No change until the instant is recorded. If the first change after it added the entry,
            # the entry was not stored at the instant. A run from before that change proves nothing
            # of the kind: an earlier entry had the same name.
            added = [change.at for change in end if change.action in _STORING]
            is_first = added and not any(run.scheduled_at <= added[0] for run in self.runs)
            return (ABSENT, end) if is_first else ("", ())
        state = _STATE_AFTER[_action_of(start[0])]
        planned = recorded_end(start[0])
        # The last change ended such a state, or the state had ended by itself before the instant.
        if not state or (planned and planned <= instant):
            return "", ()
        # No end is recorded or planned, and the state does not hold at present. So it has ended at
        # an unknown time, perhaps before the instant. For example, the beat records no change when
        # it removes a finished entry.
        if not (end or planned or self.present_state.startswith(state)):
            return "", ()
        return state, [*start, *end]

    def timeline(self, instant: datetime) -> list[Event]:
        """Return the recorded runs and changes around an instant, the earliest first.

        The list has the last two runs until the instant, and the first run after it. It has the
        changes that began and ended the state of the entry, or a freeze, at the instant. It has a
        time without a leader, and the first changes of the entry after the instant.
        """
        later = [run for run in self.runs if run.scheduled_at > instant]
        earlier = self.runs[len(later) :]
        changes = [change for change in self.changes if change.at > instant][-_LATER:]
        for record in (self.changes, self.record):
            changes += self.held_at(instant, record)[1]
        runs = [*earlier[:2], *later[-1:]]
        events = {Event(run.scheduled_at, self._run_words(run)) for run in runs}
        for change in changes:
            events.add(Event(change.at, change_words(change, self.zone, named=True)))
        for change in self.record:
            silent_since = last_sign_of_life(change)
            if silent_since and silent_since <= instant < change.at:
                text = f"nobody led until {self.when(change.at)}, when {change.actor} began to lead"
                events.add(Event(silent_since, text))
        return sorted(events)

    def _run_words(self, run: Run) -> str:
        """Describe the outcome and the details of a recorded run."""
        words = [f"run: {run.outcome}"]
        if run.began_at:
            late = (run.began_at - run.scheduled_at).total_seconds()
            words.append(f"began after {span(late)}")
        if run.until:
            words.append(f"{run.count} occurrences until {self.when(run.until)}")
        if run.error:
            words.append(run.error)
        if run.task_id:
            words.append(f"task {run.task_id}")
        return ", ".join(words)


def _action_of(change: Change) -> str:
    """Return the action of a change; ``enabled`` or ``disabled`` for an edit of ``enabled``."""
    for name, before, _ in change.fields:
        if name == "enabled":
            # The edit has changed this value, so the new value is the opposite of ``before``.
            # ``before`` is ``None`` for the default, which is true, and for an edit that changed
            # several entries in different ways. Such an edit may have disabled this entry.
            return "enabled" if before == "false" else "disabled"
    return change.action


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
    runs = RunHistory(reader).of_stored(name, entry, RunQuery.of(_RUNS))
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
