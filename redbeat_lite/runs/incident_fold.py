"""Decide which incidents open and close, by ends of runs and by deadlines; no input or output."""

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

#: Outcomes of a run that should have begun, but perhaps never did. ``revoked`` and ``skipped`` are
#: not among them, because such a run was kept from beginning on purpose.
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
        what: ``"start"``, ``"finish"`` or ``"success"``. ``"begun"`` and ``"ended"`` are signals
            instead of deadlines: a run was in time, so an open incident can perhaps be closed.
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
    """Facts that the leader reads from Redis, to decide which incidents open and close.

    The feed is a stream of the ends of runs. The news are a stream of opened and closed incidents.

    Parameters:
        feed_begin: id up to which earlier looks have read the feed; empty: it is not known.
        feed_end: id up to which the feed is read after this look.
        ends: new ends of runs, from the feed.
        overdue: deadlines that have passed. Those of successes are left out while the feed has more
            lines than this look has read, because one of these lines may be a success.
        failures: name of an entry among the ends -> its consecutive failures.
        incidents: open incidents.
        stored: field of an open incident -> its stored text.
        news_begin: id up to which hooks have handled the news so far; empty: it is not known.
        news: incidents of the news that this process has not announced yet. An incident with
            ``until`` was closed. An incident without it was opened.
        news_end: id of the last line of the news that was read.
        first_due: due time of the entry that is due first, in epoch ms; ``None``: there is none.
        quarantined: names of the entries in quarantine. To read 10,000 of them takes 2 ms.
        freeze: stored text of the last freeze.
        more: whether perhaps more ends or deadlines wait to be read.
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
        incidents: incidents to open or to change, and incidents to close, which have ``until``.
        failures: name of an entry -> its consecutive failures from now on.
        deadlines: text of a deadline to set (:attr:`Deadline.member`) -> its instant, in epoch ms.
    """

    incidents: list[Incident]
    failures: dict[str, Failures]
    deadlines: dict[str, int]


@dataclass(eq=False)
class Fold:
    """Decision in progress. It begins with the open incidents, and handles one fact after another.

    Parameters:
        now: the server's time, in epoch ms.
        look: the new facts, and the open incidents.
        entries: the stored entries that the look names, by name.
        states: key -> text of each incident that must be open now, except those about runs.
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
        #: Incidents that were open before this decision, by key.
        self._before = {incident.key: incident for incident in self.look.incidents}
        #: Incidents that are open by the facts handled so far, by key.
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
            # Skip a deadline that a success among the ends above has set again.
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
        """Return whether an entry does not run: it is paused or disabled, or a freeze holds.

        No incident of such an entry stays open, except ``paused``.
        """
        return entry.state.paused or not entry.enabled or end_of(self.look.freeze) > self.now

    def _handle_end(self, end: Line) -> None:
        """Handle the end of a run: close incidents, and count a failure.

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

        Such an incident is about an earlier run. It is about this run if the record of the run came
        after its deadline.

        This method counts the time limits from the nominal time (the time by the schedule). A run
        with jitter is due later, so it can be in time although this method closes nothing. In that
        case the incident is closed when the deadline of the run is handled.
        """
        row = end.row
        if row.begin is None:
            return
        # ``row.begin`` is in ms after the nominal time.
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
            return  # This run is counted already, or somebody has resumed the entry after it.
        # ``times`` counts for ``failed``, and ``strikes`` for ``paused``.
        times = before.times
        if is_failure:
            times += 1
        # Earlier failures do not count for ``on_failure`` if the entry was resumed after them.
        strikes = before.strikes if may_pause(entry, before.nominal) else 0
        # No worker took an expired run in time, so its task did not fail. An entry that does not
        # run needs no pause.
        is_strike = row.outcome != "expired" and not self._is_muted(entry)
        if entry.on_failure and is_strike:
            strikes += 1
            if strikes >= entry.on_failure.after:
                text = f"paused: {_failure_words(end, strikes)}"
                # The next look of the leader finds this incident open, and pauses the entry.
                self._open_incident("paused", end.name, text, row.nominal, times=strikes)
        self._failures[end.name] = Failures(times, row.nominal, generation, strikes)
        if is_failure and times >= expect.failures:
            text = _failure_words(end, times)
            self._open_incident("failed", end.name, text, row.nominal, times=times)

    def _handle_deadline(self, deadline: Deadline) -> None:
        """Open or close an incident, now that a deadline has passed."""
        what = deadline.what
        nominal = deadline.nominal or 0  # A deadline of the kind "success" has and needs none.
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
        # Read ``start_ms``, ``finish_ms`` or ``success_ms`` of the expectation. It is ``None`` if
        # an edit has removed the time limit since the deadline was set.
        limit_ms = getattr(self._expect(entry), f"{what}_ms", None)
        if limit_ms is None:
            return
        seconds = f"{limit_ms / 1000:g} s"
        # Perhaps the entry has changed since the deadline was set. So compute again from which
        # instant its time limit counts.
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

        This is the last change of the entry (if it is one of ``_RESTARTS``), the end of its pause,
        or the end of a freeze, whichever is latest; 0 without any of them. An end that is still to
        come counts as ``now``, because somebody can end the pause or the freeze at any time.
        """
        starts = [last_end(self.look.freeze), entry.state.paused_until]
        # The last change is ``None`` if it is missing or unreadable.
        change = decode_last(entry.name, entry.state.change.encode())
        if change is not None and change.action in _RESTARTS:
            starts.append(to_ms(change.at))
        return max(min(start or 0, self.now) for start in starts)

    def _handle_start(self, entry: Entry, deadline: Deadline, due: int, seconds: str) -> None:
        """Decide whether a run has missed its start, has begun late, or has begun in time.

        Parameters:
            due: due time of the run. Jitter or a countdown makes it later than the nominal time.
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
            # A run with any other outcome, such as ``revoked``, was kept from beginning on purpose.
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
            # The run has ended, and its start and its duration are recorded.
            if nominal + row.begin + row.duration <= deadline.at:
                self._close("too_long", name, nominal)
            else:
                text = f"{run} ended later than within {seconds}"
                self._open_incident("too_long", name, text, nominal)

    def _open_missed(self, name: str, text: str, nominal: int, queue: str | None = None) -> None:
        """Open an incident about a run that has not begun.

        It is ``not_consumed`` if no known worker consumes the queue of the run, else ``missed``.
        The other one of the two closes.

        Parameters:
            queue: queue in which the run perhaps waits; ``None`` if it was taken from there.
        """
        kind: Kind = "missed"
        other: Kind = "not_consumed"
        if queue is not None and queue not in self.queues:
            kind = "not_consumed"
            other = "missed"
            text += f": no worker that reports takes from the queue {queue!r}"
        self._open_incident(kind, name, text, nominal)
        # If the run was reported before, _open_incident() perhaps has not opened this kind. Then
        # the other one must stay open.
        if (kind, name) in self._open:
            self._close(other, name)

    def _missed_incident(self, name: str) -> Incident | None:
        """Return the open incident of an entry about a run that has not begun.

        At most one of the kinds ``missed`` and ``not_consumed`` is open.
        """
        return self._open.get(("missed", name)) or self._open.get(("not_consumed", name))

    def _close_missed_and_late(self, name: str, nominal: int) -> None:
        """Close the incidents about a late start, because a run has begun in time."""
        kinds: tuple[Kind, ...] = ("missed", "not_consumed", "late")
        for kind in kinds:
            self._close(kind, name, nominal)

    def _close_obsolete(self) -> None:
        """Close incidents whose condition no longer holds.

        An incident about the runs of an entry also closes if the entry is gone, was added again, or
        does not run.
        """
        for (kind, name), incident in [*self._open.items()]:
            entry = self.entries.get(name)
            field = _FIELDS.get(kind)
            if field and (entry is None or entry.state.generation != incident.generation):
                # The entry is gone or unreadable, or was added again with another generation.
                still_holds = False
            elif entry and kind == "paused":
                # This incident closes when the entry is resumed, or has no ``on_failure`` any more.
                still_holds = may_pause(entry, incident.nominal)
            elif entry and (self._is_muted(entry) or ("paused", name) in self._open):
                # The entry does not run, or will be paused, so only ``paused`` stays open.
                still_holds = False
            elif entry and field:
                # A later run or deadline normally closes this incident. If an edit has removed the
                # expectation, neither would close it, so close it now.
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
            nominal: nominal time of the reported run; ``None`` if the incident is not about a run.
            times: new count of the incident; by default one more than before.
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
        # Ignore a second report of the same run, which can both expire and begin too late. Ignore a
        # report of an earlier run, too. Never ignore ``times``, because no run is counted twice.
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

    It does not count once somebody has resumed the entry after it.

    Parameters:
        nominal: nominal time of the run; ``None`` if no run has failed.
    """
    return entry.on_failure is not None and (nominal or 0) > entry.state.forgiven


def _iso(nominal: int) -> str:
    return from_ms(nominal).isoformat(timespec="seconds")


def _failure_words(end: Line, times: int) -> str:
    """Return the failure of a run in words, without the name of its entry.

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
