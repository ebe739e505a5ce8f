"""Decision which incidents open and close, from the ends of runs and from deadlines. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from .._base.times import from_ms, to_ms
from ..entries.changes import decode_last
from ..entries.entry import Entry
from ..entries.freeze import end_of, last_end
from ..entries.lifecycle import expected_of, run_due
from ..entries.message import queue_of
from ..entries.run import Outcome, Row
from ..policies import Expect
from .incident import Incident, Key, Kind
from .run_store import Line, ms_of

#: Outcomes of a run that was due, but perhaps never began. They do not include the outcomes of runs
#: that somebody kept from beginning, such as ``revoked`` and ``skipped``.
_MAY_NOT_HAVE_BEGUN: tuple[Outcome, ...] = ("rejected", "lost", "expired")

#: Outcomes of a run that has failed, as ``Expect(failures=N)`` counts it. After N failures in a
#: row, the incident ``failed`` opens.
_FAILED: tuple[Outcome, ...] = ("failed", *_MAY_NOT_HAVE_BEGUN)

#: Expectation of an entry that sets only ``on_failure``. The failures of such an entry are counted,
#: but open no incident ``failed``.
_NOTHING = Expect()

#: Outcomes of a run that has not ended.
_RUNNING: tuple[Outcome, ...] = ("running", "retrying")

#: Kind of incident -> field of the entry's expectation that the incident is about. An incident of
#: any other kind is open as long as its key is in ``Fold.states``.
_FIELDS: dict[Kind, str] = {
    "missed": "start_within",
    "not_consumed": "start_within",
    "late": "start_within",
    "too_long": "finish_within",
    "failed": "failures",
    "paused": "failures",
    "no_success": "succeed_every",
}

#: Actions after which the time limit for the next success of an entry begins again.
_RESTARTS = ("edited", "resumed", "released")


class Deadline(NamedTuple):
    """Deadline that has passed, of one run or of an entry.

    Parameters:
        what: ``"start"``, ``"finish"`` or ``"success"``; ``"begun"`` or ``"ended"`` if a run was in
            time and may close an open incident.
        nominal: nominal time (time by the schedule) of the run; ``None`` for ``"success"``.
        at: instant of the deadline, in epoch ms.
        row: row of the run; ``None`` if nothing of the run is recorded.
    """

    what: str
    nominal: int | None
    name: str
    at: int = 0
    row: Row | None = None

    @property
    def member(self) -> str:
        """Text that stands for this deadline in the sorted set of deadlines."""
        return f"{self.what}|{'' if self.nominal is None else self.nominal}|{self.name}"


class Failures(NamedTuple):
    """Consecutive failures of an entry since it was added.

    Parameters:
        times: count of the failures.
        nominal: nominal time of the last failed run, so that one run does not count twice.
        generation: random text that changes when an entry is removed and added again.
        strikes: count of the failures that count for ``on_failure``. An expired run does not.
    """

    times: int = 0
    nominal: int | None = None
    generation: str = ""
    strikes: int = 0


class Look(NamedTuple):
    """Content of Redis at one moment. The feed has the ends of runs; the news have incidents.

    Parameters:
        feed_begin: id up to which the feed was read before; empty: it is not known.
        feed_end: id up to which the feed is read with this look.
        ends: new ends of runs, from the feed.
        overdue: deadlines whose time has come. Deadlines of successes appear only if the feed is
            read to its end, because a later line may be a success.
        failures: name of an entry among the ends -> its consecutive failures.
        incidents: open incidents.
        stored: field of an open incident -> its stored text.
        news_begin: id up to which hooks have handled the news before; empty: it is not known.
        news: incidents of the news that were not announced yet. An incident with ``until`` was
            closed. An incident without it was opened.
        news_end: id of the last news that was read.
        first_due: score of the entry that is due first; ``None``: there is none.
        quarantined: names of the entries in quarantine; 10,000 of them take 2 ms.
        freeze: stored text of the last freeze.
        more: whether the next look will find more ends or deadlines at once.
    """

    feed_begin: str
    feed_end: str
    ends: list[Line]
    overdue: list[Deadline]
    failures: Mapping[str, Failures]
    incidents: list[Incident]
    stored: Mapping[bytes, bytes]
    news_begin: str
    news: list[Incident]
    news_end: str
    first_due: float | None
    quarantined: list[str]
    freeze: bytes
    more: bool


class Decision(NamedTuple):
    """Changes to write.

    Parameters:
        incidents: incidents to open, open ones with a new count or text, and ones to close, with
            ``until``.
        failures: name of an entry -> its consecutive failures from now on.
        deadlines: text of a deadline to set (:attr:`Deadline.member`) -> its instant, in epoch ms.
    """

    incidents: list[Incident]
    failures: dict[str, Failures]
    deadlines: dict[str, int]


@dataclass(eq=False)
class Fold:
    """Decision in progress. It begins with the open incidents, and each fact may change them.

    Parameters:
        now: the server's time, in epoch ms.
        look: what is new, and the open incidents.
        entries: the stored entries that the look names, by name.
        states: key of an incident that is not about runs, and must be open now -> its text.
        default: expectation of the entries that have none of their own.
        queues: queues that known workers consume.
    """

    now: int
    look: Look
    entries: Mapping[str, Entry]
    states: Mapping[Key, str]
    default: Expect | None
    queues: Collection[str]

    def __post_init__(self) -> None:
        #: Open incidents by key, before the decision and at this point of it.
        self._before = {incident.key: incident for incident in self.look.incidents}
        self._open = dict(self._before)
        #: Failures and deadlines to write, as in :class:`Decision`.
        self._failures: dict[str, Failures] = {}
        self._deadlines: dict[str, int] = {}

    def decide(self) -> Decision:
        """Handle ends, deadlines and states in turn, and return the changes.

        An incident that would open and close in the same decision is left out.
        """
        for end in self.look.ends:
            self._handle_end(end)
        # Handle finish deadlines last: a run already reported as missed must not also be
        # reported as too long.
        for deadline in sorted(self.look.overdue, key=lambda deadline: deadline.what == "finish"):
            # A success among the ends above may have set this deadline again.
            if deadline.member not in self._deadlines:
                self._handle_deadline(deadline)
        for (kind, name), text in self.states.items():
            if (kind, name) not in self._open:
                self._open_incident(kind, name, text)
        # Close last, because an incident ``paused`` that was just opened closes the other incidents
        # of its entry.
        self._close_obsolete()
        incidents = [
            replace(before, until=from_ms(self.now))
            for key, before in self._before.items()
            if key not in self._open
        ]
        incidents += [
            incident for key, incident in self._open.items() if incident != self._before.get(key)
        ]
        return Decision(incidents, self._failures, self._deadlines)

    def _expect(self, entry: Entry) -> Expect | None:
        """Return what is expected of an entry's runs; ``None`` for nothing."""
        expect = expected_of(entry, self.default)
        if expect is not None and entry.state.finished:
            return expect.but(succeed_every=None)  # No further run can succeed.
        return expect

    def _is_muted(self, entry: Entry) -> bool:
        """Return whether no incident of an entry may open, because the entry does not run."""
        return entry.state.paused or not entry.enabled or end_of(self.look.freeze) > self.now

    def _handle_end(self, end: Line) -> None:
        """Count a failed run, or close the incidents that a run in time or a success closes.

        Parameters:
            end: line of the feed about the end of the run.
        """
        row = end.row
        entry = self.entries.get(end.name)
        if entry is None:
            return
        expect = self._expect(entry)
        if expect is None:
            if entry.on_failure is None:
                return
            expect = _NOTHING  # Only the failures of this entry are counted.
        self._close_if_in_time(expect, end)
        if row.outcome == "succeeded":
            self._failures[end.name] = Failures()
            self._close("failed", end.name)
            self._close("no_success", end.name)
            if expect.success_ms is not None:
                # The time limit for the next success begins with this one.
                next_success = Deadline("success", nominal=None, name=end.name)
                self._deadlines[next_success.member] = ms_of(row.feed) + expect.success_ms
        elif row.outcome in _FAILED:
            # A run with the outcome ``failed`` has begun, even if its beginning is not recorded.
            has_begun = row.begin is not None or row.outcome == "failed"
            is_missed = expect.start_ms is not None and not has_begun
            if is_missed:
                text = f"the run of {_iso(row.nominal)} has {_outcome_words(row.outcome)}"
                self._open_missed(end.name, text, row.nominal)
            # A run that has opened ``missed`` counts for ``on_failure``, but must not count for
            # ``failed`` as well.
            if not is_missed or entry.on_failure:
                self._count_failure(entry, expect, end, is_failure=not is_missed)

    def _close_if_in_time(self, expect: Expect, end: Line) -> None:
        """Close the incidents about lateness, if a run began or ended in time.

        The incident is about an earlier run. Or it is about this run, if the record of the run came
        after its deadline.

        Here, the time limits count from the nominal time (the time by the schedule). A run with
        jitter is due later, so it may be in time although this method closes nothing. In that case
        the incident is closed when the deadline of the run is handled.
        """
        row = end.row
        if row.begin is None:
            return
        if expect.start_ms is not None and row.begin <= expect.start_ms:
            self._close_missed_and_late(end.name, row.nominal)
        if expect.finish_ms is None or row.outcome == "retrying":
            return  # There is no time limit, or the run has not ended.
        if row.begin + (row.duration or 0) <= expect.finish_ms:
            self._close("too_long", end.name, row.nominal)

    def _count_failure(self, entry: Entry, expect: Expect, end: Line, *, is_failure: bool) -> None:
        """Count a failed run once. If its entry has now failed too often, open an incident.

        ``failed`` opens after as many failures in a row as the expectation says, and ``paused``
        after as many as ``on_failure`` says.

        Parameters:
            is_failure: ``False`` for a run that has opened ``missed``. It counts for ``on_failure``
                alone.
        """
        row = end.row
        generation = entry.state.generation
        # If an earlier end in this decision has changed the count, use the changed count.
        before = self._failures.get(end.name) or self.look.failures.get(end.name) or Failures()
        if before.generation != generation:
            before = Failures()  # The entry was removed and added again since.
        if before.nominal == row.nominal or row.nominal <= entry.state.forgiven:
            return  # This run is counted already, or the entry was resumed after it.
        # ``times`` counts for ``failed``, and ``strikes`` for ``paused``.
        times = before.times
        if is_failure:
            times += 1
        # If the entry was resumed after the failures before, they do not count for ``on_failure``.
        strikes = before.strikes if may_pause(entry, before.nominal) else 0
        # No worker took an expired run in time, so its task did not fail. An entry that is muted,
        # for example because it is paused, is not paused once more.
        is_strike = row.outcome != "expired" and not self._is_muted(entry)
        if entry.on_failure and is_strike:
            strikes += 1
            if strikes >= entry.on_failure.after:
                text = f"paused: {_failure_words(end, strikes)}"
                # Whoever leads at the next look reads this incident, and pauses the entry.
                self._open_incident("paused", end.name, text, row.nominal, times=strikes)
        self._failures[end.name] = Failures(times, row.nominal, generation, strikes)
        if is_failure and times >= expect.failures:
            text = _failure_words(end, times)
            self._open_incident("failed", end.name, text, row.nominal, times=times)

    def _handle_deadline(self, deadline: Deadline) -> None:
        """Open or close an incident, now that a deadline has passed."""
        what = deadline.what
        nominal = deadline.nominal or 0  # None for "success", which does not use it.
        name = deadline.name
        entry = self.entries.get(name)
        if entry is None:
            return
        if what == "begun":
            self._close_missed_and_late(name, nominal)
            return
        if what == "ended":
            self._close("too_long", name, nominal)
            return
        # The time limit is ``None`` if an edit has removed it since.
        limit_ms = getattr(self._expect(entry), f"{what}_ms", None)
        if limit_ms is None:
            return
        seconds = f"{limit_ms / 1000:g} s"
        # The entry may have changed since the deadline was set. So compute again from which instant
        # its time limit counts.
        since = run_due(entry, nominal, self.now)
        if what == "success":
            since = self._fresh_start(entry)
        if since + limit_ms > deadline.at:
            # An edit of the entry has moved the deadline, so check it again at its new time.
            self._deadlines[deadline.member] = since + limit_ms
        elif what == "success":
            self._open_incident("no_success", name, f"no run has succeeded for {seconds}")
        elif what == "start":
            self._handle_start(entry, deadline, since, seconds)
        else:  # This is a deadline of the kind "finish".
            self._handle_finish(deadline, nominal, seconds)

    def _fresh_start(self, entry: Entry) -> int:
        """Return the instant, in epoch ms, from which an entry's time limit for successes counts.

        This is a change of the entry, the end of its pause, or the end of a freeze, whichever is
        last; 0 without any of them. During a freeze it is ``now``, because the freeze may end at
        any time.
        """
        starts = [last_end(self.look.freeze), entry.state.paused_until]
        # If the last change of an entry is missing or unreadable, only the two ends count.
        change = decode_last(entry.name, entry.state.change.encode())
        if change is not None and change.action in _RESTARTS:
            starts.append(to_ms(change.at))
        return max(min(start or 0, self.now) for start in starts)

    def _handle_start(self, entry: Entry, deadline: Deadline, due: int, seconds: str) -> None:
        """Decide whether a run has missed its start, has begun late, or has begun in time.

        Parameters:
            due: when the run was due: with jitter or a countdown later than its nominal time.
            seconds: the time limit in words.
        """
        name = deadline.name
        nominal = deadline.nominal or 0
        row = deadline.row
        run = f"the run of {_iso(nominal)}"
        if due != nominal:
            run += f", due at {_iso(due)},"
        if row is None:
            text = f"{run} has not begun within {seconds}"
            self._open_missed(name, text, nominal, queue_of(entry))
        elif row.begin is None:
            # Revoked and left-out runs are not among these outcomes: they were kept from beginning
            # on purpose.
            if row.outcome in _MAY_NOT_HAVE_BEGUN:
                self._open_missed(name, f"{run} has not begun within {seconds}", nominal)
        elif nominal + row.begin <= deadline.at:
            self._close_missed_and_late(name, nominal)
        elif not row.attempt and self._missed_incident(name) is None:
            # The run began late. Report this only for the first attempt, because the row of a
            # retried run has the retry's start. Do not report it while ``missed`` or
            # ``not_consumed`` is open for the entry.
            after = (nominal + row.begin - due) / 1000
            text = f"{run} began {after:g} s after its due time, not within {seconds}"
            self._open_incident("late", name, text, nominal)

    def _handle_finish(self, deadline: Deadline, nominal: int, seconds: str) -> None:
        """Decide whether a run has taken too long.

        Parameters:
            nominal: nominal time of the run.
            seconds: the time limit in words.
        """
        name = deadline.name
        row = deadline.row
        run = f"the run of {_iso(nominal)}"
        if row is None or row.outcome in _RUNNING:
            missed = self._missed_incident(name)
            # A run without a row has not begun. If an open incident already says so about this run
            # or about an earlier one, do not report the run as too long as well.
            is_reported = row is None and missed is not None and (missed.nominal or 0) <= nominal
            if not is_reported:
                self._open_incident(
                    "too_long", name, f"{run} has not ended within {seconds}", nominal
                )
        elif row.begin is not None and row.duration is not None:
            # The run has ended, and its beginning is known, so the length of its run is known.
            if nominal + row.begin + row.duration <= deadline.at:
                self._close("too_long", name, nominal)
            else:
                text = f"{run} ended later than within {seconds}"
                self._open_incident("too_long", name, text, nominal)

    def _open_missed(self, name: str, text: str, nominal: int, queue: str | None = None) -> None:
        """Open ``missed`` or ``not_consumed``, and close the other one.

        Parameters:
            queue: queue in which the run may wait; ``None`` if it was taken from there.
        """
        kind: Kind = "missed"
        other: Kind = "not_consumed"
        if queue is not None and queue not in self.queues:
            kind = "not_consumed"
            other = "missed"
            text += f": no worker that reports takes from the queue {queue!r}"
        self._open_incident(kind, name, text, nominal)
        # _open_incident() ignores a second report of the same run, and then this kind may not be
        # open. Only an incident that is open replaces the other one.
        if (kind, name) in self._open:
            self._close(other, name)

    def _missed_incident(self, name: str) -> Incident | None:
        """Return the open incident of an entry about a run that has not begun.

        At most one incident of the two kinds is open.
        """
        return self._open.get(("missed", name)) or self._open.get(("not_consumed", name))

    def _close_missed_and_late(self, name: str, nominal: int) -> None:
        """Close the incidents about a late start, because a run has begun in time."""
        kinds: tuple[Kind, ...] = ("missed", "not_consumed", "late")
        for kind in kinds:
            self._close(kind, name, nominal)

    def _close_obsolete(self) -> None:
        """Close incidents whose condition no longer holds.

        An incident about the runs of an entry also closes when the entry is removed, added again,
        or muted.
        """
        for (kind, name), incident in [*self._open.items()]:
            entry = self.entries.get(name)
            field = _FIELDS.get(kind)
            # The generation, a random text, changes when an entry is removed and added again.
            if field and (entry is None or entry.state.generation != incident.generation):
                still_holds = False
            elif entry and kind == "paused":
                # This incident closes when the entry is resumed, or has no ``on_failure`` any more.
                still_holds = may_pause(entry, incident.nominal)
            elif entry and (self._is_muted(entry) or ("paused", name) in self._open):
                # While an entry does not run, only its incident ``paused`` stays open.
                still_holds = False
            elif entry and field:
                # Normally a later run or deadline closes the incident, elsewhere. If nothing is
                # expected any more, neither will come, so it is closed here.
                still_holds = getattr(self._expect(entry), field, None) is not None
            else:
                # This incident is not about runs. It is open as long as its state lasts.
                still_holds = incident.key in self.states
            if not still_holds:
                self._close(kind, name)

    def _open_incident(
        self,
        kind: Kind,
        name: str,
        text: str,
        nominal: int | None = None,
        times: int | None = None,
    ) -> None:
        """Open an incident, or update the open one.

        Parameters:
            nominal: nominal time of the run that is reported; ``None`` if it is not about a run.
            times: how often it was reported so far; by default one more than before.
        """
        # An incident that this decision has closed opens again under its old id.
        before = self._open.get((kind, name)) or self._before.get((kind, name))
        if before is None:
            generation = self.entries[name].state.generation if kind in _FIELDS else ""
            self._open[kind, name] = Incident(
                kind,
                name or None,
                from_ms(self.now),
                text,
                count=times or 1,
                nominal=nominal,
                generation=generation,
            )
            return
        # Ignore a second report of the same run: the run may have expired, and also begun too late.
        # A count of failures is not ignored, because a run is counted only once.
        is_news = times or nominal is None or before.nominal is None or nominal > before.nominal
        if is_news:
            count = times or before.count + 1
            self._open[kind, name] = replace(before, text=text, count=count, nominal=nominal)

    def _close(self, kind: Kind, name: str, nominal: int | None = None) -> None:
        """Close an incident if it is open, unless a run later than ``nominal`` has opened it.

        Parameters:
            nominal: nominal time of the run that closes it; ``None`` if no run does.
        """
        incident = self._open.get((kind, name))
        if incident is None:
            return
        if nominal is None or incident.nominal is None or nominal >= incident.nominal:
            del self._open[kind, name]


def may_pause(entry: Entry, nominal: int | None) -> bool:
    """Return whether the failure of a run counts for ``on_failure``.

    A failure does not count any more once the entry was resumed after it.
    """
    return entry.on_failure is not None and (nominal or 0) > entry.state.forgiven


def _iso(nominal: int) -> str:
    return from_ms(nominal).isoformat(timespec="seconds")


def _failure_words(end: Line, times: int) -> str:
    """Return a failed run in words, without the name of its entry.

    Parameters:
        times: count of the failures in a row, with this one.
    """
    words = _outcome_words(end.row.outcome)
    if times > 1:
        words += f" {times} times in a row"
    if end.error:
        words += f": {end.error}"
    return words


def _outcome_words(outcome: Outcome) -> str:
    """Return an outcome in words, as they follow "the run has"."""
    return {"lost": "lost its worker", "rejected": "been rejected"}.get(outcome, outcome)
