"""Decide which incidents open and close, by ends of runs and by deadlines; no input or output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from msgspec.structs import replace

from .._base.times import from_ms, to_ms
from ..entries.changes import decode_last
from ..entries.entry import Entry
from ..entries.freeze import end_of, last_end
from ..entries.lifecycle import expected_of, run_due
from ..entries.message import queue_of
from ..entries.run import Outcome, Row
from ..entries.state import EntryState
from ..policies import Expect
from .incident import Incident, Key, Kind
from .run_store import Line, ms_of

#: Outcomes of a run that should have begun, but perhaps never did. ``revoked`` and ``skipped`` are
#: not among them, because such a run was kept from beginning on purpose.
_MAY_NOT_HAVE_BEGUN: tuple[Outcome, ...] = ("rejected", "lost", "expired")

#: Outcomes of a run that has failed, as ``Expect(failures=N)`` counts it. After N failures in a
#: row, the incident ``failed`` opens.
_FAILED: tuple[Outcome, ...] = ("failed", *_MAY_NOT_HAVE_BEGUN)

#: Expectation of an entry that sets only ``on_failure``, so that its failures are counted. If they
#: open the incident ``failed``, the same decision closes it, because ``_still_holds`` finds that
#: nothing is expected of the entry.
_NOTHING = Expect()

#: Outcomes of a run that has not ended.
_RUNNING: tuple[Outcome, ...] = ("running", "retrying")

#: Kind of an incident about runs -> field of :class:`Expect` that was not met. An incident of any
#: other kind is open as long as its key is in ``Fold.states``.
_EXPECTED_FIELDS: dict[Kind, str] = {
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

#: Maximum number of open incidents. With so many, an incident of an entry does not open. Incidents
#: of the whole schedule are few. An incident ``paused`` makes the leader pause its entry, so it
#: opens nevertheless.
_MOST = 1000


class Deadline(NamedTuple):
    """Deadline that has passed, of one run or of an entry.

    Parameters:
        member: its stored text in the sorted set of deadlines: ``what|nominal|name``.
        what: ``"start"``, ``"finish"`` or ``"success"``. ``"begun"`` and ``"ended"`` are signals
            instead of deadlines: a run was in time, so an open incident can perhaps be closed.
        nominal: nominal time (time by the schedule) of the run; 0 for ``"success"``, which is about
            no single run.
        name: name of the entry.
        at: instant of the deadline, in epoch ms.
        row: row of the run; ``None`` if nothing of the run is recorded.
    """

    member: str
    what: str
    nominal: int
    name: str
    at: int
    row: Row | None = None

    @classmethod
    def decode(cls, member: str, at: int) -> Self:
        """Return the deadline that a member of the sorted set stands for."""
        # Split only twice, from the left, because the name of an entry can contain the separator.
        what, _, rest = member.partition("|")
        nominal, _, name = rest.partition("|")
        # A deadline of the kind "success" has no nominal time.
        is_number = nominal.lstrip("-").isdecimal()
        return cls(member, what, int(nominal) if is_number else 0, name, at)


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


class Facts(NamedTuple):
    """Facts that the leader reads from Redis, to decide which incidents open and close.

    The feed is a stream of the ends of runs. The news are a stream of opened and closed incidents.

    Parameters:
        feed_begin: id up to which the feed was read before; empty: it is not known.
        feed_end: id up to which the feed is read now.
        ends: new ends of runs, from the feed.
        overdue: deadlines that have passed. Those of successes are left out while the feed has more
            lines than were read, because one of these lines may be a success.
        failures: name of an entry among the ends -> its consecutive failures.
        incidents: open incidents.
        stored: field of an open incident -> its stored text.
        handled: id up to which the hooks of some leader have handled the news; empty: it is not
            known.
        unannounced: incidents of the news that this process has not announced yet. An incident with
            ``until`` was closed. An incident without it was opened.
        news_end: id of the last line of the news that was read.
        first_due: due time of the entry that is due first, in epoch ms; infinite: there is none.
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
    handled: str
    unannounced: list[Incident]
    news_end: str
    first_due: float
    quarantined: list[str]
    freeze: bytes
    more: bool

    @property
    def open_kinds(self) -> Counter[str]:
        """Kind of incident -> count of the open incidents of this kind."""
        return Counter(incident.kind for incident in self.incidents)


class Decision(NamedTuple):
    """Changes to write.

    Parameters:
        incidents: incidents to open or to change, and incidents to close, which have ``until``.
        failures: name of an entry -> its consecutive failures from now on.
        deadlines: :attr:`Deadline.member` of a deadline to set -> its instant, in epoch ms.
    """

    incidents: list[Incident]
    failures: dict[str, Failures]
    deadlines: dict[str, int]


@dataclass(eq=False)
class Fold:
    """Decision in progress. It begins with the open incidents, and handles one fact after another.

    Parameters:
        now: the server's time, in epoch ms.
        facts: the new facts, and the open incidents.
        entries: the stored entries that the facts name, by name.
        states: key -> text of each incident that must be open now, except those about runs.
        default: expectation of the entries that have none of their own.
        queues: queues that known workers consume.
    """

    now: int
    facts: Facts
    entries: Mapping[str, Entry]
    states: Mapping[Key, str]
    default: Expect | None
    queues: Collection[str]

    def __post_init__(self) -> None:
        #: Incidents that were open before this decision, by key.
        self._before = {incident.key: incident for incident in self.facts.incidents}
        #: Incidents that are open by the facts handled so far, by key.
        self._open = dict(self._before)
        #: Failures and deadlines to write, as in :class:`Decision`.
        self._failures: dict[str, Failures] = {}
        self._deadlines: dict[str, int] = {}

    def decide(self) -> Decision:
        """Handle ends, deadlines and states in turn, and return the changes.

        An incident that would open and close in the same decision is left out.
        """
        for end in self.facts.ends:
            self._handle_end(end)
        # Handle finish deadlines last: a run already reported as missed must not also be
        # reported as too long.
        for deadline in sorted(self.facts.overdue, key=lambda deadline: deadline.what == "finish"):
            # Skip a deadline that a success among the ends above has set again.
            if deadline.member not in self._deadlines:
                self._handle_deadline(deadline)
        # Open an incident for each new state. The incidents of ended states are closed below.
        for key, text in self.states.items():
            if key not in self._open:
                self._report(*key, text)
        # Close last, because an incident ``paused`` that was just opened closes the other incidents
        # of its entry.
        for incident in [*self._open.values()]:
            if not self._still_holds(incident):
                self._close(*incident.key)
        closed = [
            replace(before, until=from_ms(self.now))
            for key, before in self._before.items()
            if key not in self._open
        ]
        opened_or_changed = [
            incident for key, incident in self._open.items() if incident != self._before.get(key)
        ]
        return Decision([*closed, *opened_or_changed], self._failures, self._deadlines)

    def _expectation_of(self, entry: Entry) -> Expect | None:
        """Return what is expected of an entry's runs; ``None`` if nothing is expected."""
        expect = expected_of(entry, self.default)
        if expect is not None and entry.state.finished:
            return expect.but(succeed_every=None)  # No further run can succeed.
        return expect

    def _is_stopped(self, entry: Entry) -> bool:
        """Return whether an entry does not run: it is paused or disabled, or a freeze holds."""
        return entry.state.paused or not entry.enabled or end_of(self.facts.freeze) > self.now

    def _handle_end(self, end: Line) -> None:
        """Handle the end of a run: close incidents, and count a failure.

        Parameters:
            end: line of the feed about the end of the run, or of an attempt that is retried.
        """
        row = end.row
        entry = self.entries.get(end.name)
        if entry is None:
            return
        expect = self._expectation_of(entry)
        if expect is None and entry.on_failure is None:
            return
        expect = expect or _NOTHING
        self._close_if_in_time(expect, end)
        if row.outcome == "succeeded":
            self._failures[end.name] = Failures()
            self._close("failed", end.name)
            self._close("no_success", end.name)
            if expect.success_ms is not None:
                # Set the deadline of the next success. Its time limit begins with this success. The
                # id of a line (``row.feed``) holds the time at which the line was written.
                self._deadlines[f"success||{end.name}"] = ms_of(row.feed) + expect.success_ms
        elif row.outcome in _FAILED:
            # A run with the outcome ``failed`` has begun, even if its beginning is not recorded.
            has_begun = row.begin is not None or row.outcome == "failed"
            is_missed = expect.start_ms is not None and not has_begun
            if is_missed:
                text = f"the run of {_iso(row.nominal)} has {_outcome_words(row.outcome)}"
                self._report_missed(end.name, text, row.nominal)
            self._count_failure(entry, expect, end, is_missed)

    def _close_if_in_time(self, expect: Expect, end: Line) -> None:
        """Close the incidents about lateness, if a run began or ended in time.

        Such an incident is normally about an earlier run. It is about this run if the leader had
        handled the deadline of this run before the run was recorded. An incident about a later run
        stays open.

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
        if expect.finish_ms is None or row.outcome in ("retrying", "lost"):
            return  # There is no time limit, or the run goes on with a retry or a copy.
        if row.begin + (row.duration or 0) <= expect.finish_ms:
            self._close("too_long", end.name, row.nominal)

    def _count_failure(self, entry: Entry, expect: Expect, end: Line, is_missed: bool) -> None:
        """Count a failed run once. If its entry has now failed too often, open an incident.

        ``failed`` opens after as many failures in a row as the expectation says, and ``paused``
        after as many as ``on_failure`` says.

        Parameters:
            is_missed: whether this run is reported as ``missed``. If so, it is not counted for
                ``failed`` as well.
        """
        name = end.name
        nominal = end.row.nominal
        if is_missed and entry.on_failure is None:
            return  # This run counts neither for ``failed`` nor for ``on_failure``.
        failures = self._failures_of(entry)
        # The feed can have two failures of one run, first ``lost`` and then ``failed``. Count one.
        # Do not count a run either if its entry was resumed after it.
        if failures.nominal == nominal or is_forgiven(entry.state, nominal):
            return
        strikes = self._count_strike(entry, end, failures)
        times = failures.times if is_missed else failures.times + 1
        self._failures[name] = Failures(times, nominal, entry.state.generation, strikes)
        if not is_missed and times >= expect.failures:
            self._report("failed", name, _failure_words(end, times), nominal, times)

    def _count_strike(self, entry: Entry, end: Line, failures: Failures) -> int:
        """Count a failed run for ``on_failure``, and return the new count of such failures.

        If the count reaches ``on_failure.after``, open the incident ``paused``.

        Parameters:
            failures: failures of the entry before this one.
        """
        policy = entry.on_failure
        if policy is None:
            return 0
        strikes = failures.strikes
        if is_forgiven(entry.state, failures.nominal):
            strikes = 0  # The entry was resumed after the earlier failures.
        # No worker took an expired run in time, so its task did not fail. An entry that does not
        # run needs no pause.
        if end.row.outcome == "expired" or self._is_stopped(entry):
            return strikes
        strikes += 1
        if strikes >= policy.after:
            text = f"paused: {_failure_words(end, strikes)}"
            # Once this decision is written, the leader reads the open incidents again at once. It
            # pauses the entries that have an open incident ``paused``.
            self._report("paused", end.name, text, end.row.nominal, strikes)
        return strikes

    def _failures_of(self, entry: Entry) -> Failures:
        """Return the consecutive failures of an entry, with those of this decision."""
        failures = self._failures.get(entry.name) or self.facts.failures.get(entry.name)
        if failures is None or failures.generation != entry.state.generation:
            return Failures()  # It has none, or was removed and added again after them.
        return failures

    def _handle_deadline(self, deadline: Deadline) -> None:
        """Open or close an incident, now that a deadline has passed."""
        what = deadline.what
        name = deadline.name
        entry = self.entries.get(name)
        if entry is None:
            return
        # ``begun`` and ``ended`` are not deadlines but signals of ``shared/record.lua``: a run has
        # begun or ended in time.
        if what == "begun":
            self._close_missed_and_late(name, deadline.nominal)
            return
        if what == "ended":
            self._close("too_long", name, deadline.nominal)
            return
        # Read ``start_ms``, ``finish_ms`` or ``success_ms`` of the expectation.
        limit_ms = getattr(self._expectation_of(entry), f"{what}_ms", None)
        if limit_ms is None:
            return  # An edit has removed the time limit or the whole expectation.
        # An edit of the entry may have moved the deadline. So compute again from which instant the
        # time limit counts.
        if what == "success":
            limit_begin = self._success_limit_begin(entry)
        else:
            limit_begin = run_due(entry, deadline.nominal, self.now)
        limit_end = limit_begin + limit_ms
        limit = f"{limit_ms / 1000:g} s"
        if limit_end > deadline.at:
            self._deadlines[deadline.member] = limit_end  # Check it again at its new time.
        elif what == "success":
            self._report("no_success", name, f"no run has succeeded for {limit}")
        elif what == "start":
            self._handle_start(entry, deadline, limit_begin, limit)
        else:  # This is a deadline of the kind "finish".
            self._handle_finish(deadline, limit)

    def _success_limit_begin(self, entry: Entry) -> int:
        """Return the instant, in epoch ms, from which an entry's time limit for successes counts.

        This is the last change of the entry (if it is one of ``_RESTARTS``), the end of its pause,
        or the end of a freeze, whichever is latest; 0 without any of them. An end that is still to
        come counts as ``now``, because somebody can end the pause or the freeze at any time.
        """
        starts = [last_end(self.facts.freeze), entry.state.paused_until]
        # The last change is ``None`` if it is missing or unreadable.
        change = decode_last(entry.name, entry.state.change.encode())
        if change is not None and change.action in _RESTARTS:
            starts.append(to_ms(change.at))
        return max(min(start or 0, self.now) for start in starts)

    def _handle_start(self, entry: Entry, deadline: Deadline, due: int, limit: str) -> None:
        """Decide, after its start deadline, whether a run is missed, was late, or began in time.

        Parameters:
            due: due time of the run. Jitter or a countdown makes it later than the nominal time.
            limit: the time limit in words.
        """
        name = deadline.name
        nominal = deadline.nominal
        row = deadline.row
        run = f"the run of {_iso(nominal)}"
        if due != nominal:
            run += f", due at {_iso(due)},"
        missed_text = f"{run} has not begun within {limit}"
        if row is None:  # Perhaps no worker has taken the run from its queue.
            self._report_missed(name, missed_text, nominal, queue_of(entry))
        elif row.begin is None:
            # Do not report a run that was kept from beginning on purpose, such as a revoked one.
            if row.outcome in _MAY_NOT_HAVE_BEGUN:
                self._report_missed(name, missed_text, nominal)
        elif nominal + row.begin <= deadline.at:
            self._close_missed_and_late(name, nominal)
        elif not row.attempt and self._missed_incident(name) is None:
            # The run began late. Report this only for the first attempt, because the row of a
            # retried run has the retry's start. Do not report it while ``missed`` or
            # ``not_consumed`` is open for the entry, because that incident says already that runs
            # do not begin in time.
            after = (nominal + row.begin - due) / 1000
            text = f"{run} began {after:g} s after its due time, not within {limit}"
            self._report("late", name, text, nominal)

    def _handle_finish(self, deadline: Deadline, limit: str) -> None:
        """Decide, after its finish deadline, whether a run has taken too long.

        Parameters:
            limit: the time limit in words.
        """
        name = deadline.name
        nominal = deadline.nominal
        row = deadline.row
        run = f"the run of {_iso(nominal)}"
        if row is None or row.outcome in _RUNNING:
            missed = self._missed_incident(name)
            # A run without a row has perhaps not begun. Do not report it as too long if ``missed``
            # or ``not_consumed`` is open about this run or an earlier one. Such an incident stays
            # open until a later run begins in time, so it covers this run, too. An incident about a
            # later run says nothing about this one.
            is_missed = row is None and missed is not None and (missed.nominal or 0) <= nominal
            if not is_missed:
                self._report("too_long", name, f"{run} has not ended within {limit}", nominal)
        elif row.outcome != "lost" and row.begin is not None and row.duration is not None:
            # The run has ended. If its start or its duration is not recorded, nobody knows whether
            # it ended in time, and this method decides nothing. Nor does it if the run was lost,
            # because a copy of it may still run.
            if nominal + row.begin + row.duration <= deadline.at:
                self._close("too_long", name, nominal)
            else:
                self._report("too_long", name, f"{run} ended later than within {limit}", nominal)

    def _report_missed(self, name: str, text: str, nominal: int, queue: str | None = None) -> None:
        """Report a run that has not begun.

        The incident is ``not_consumed`` if no known worker consumes the queue of the run, else
        ``missed``. The other one of the two closes.

        Parameters:
            queue: queue in which the run perhaps waits; ``None`` if it was taken from there.
        """
        kind: Kind = "missed"
        other: Kind = "not_consumed"
        if queue is not None and queue not in self.queues:
            kind = "not_consumed"
            other = "missed"
            text += f": no worker that reports takes from the queue {queue!r}"
        self._report(kind, name, text, nominal)
        # The report may have opened nothing (see ``_report``). Then the other one must stay open.
        if (kind, name) in self._open:
            self._close(other, name)

    def _missed_incident(self, name: str) -> Incident | None:
        """Return the open incident of an entry about a run that has not begun.

        At most one of the kinds ``missed`` and ``not_consumed`` is open.
        """
        return self._open.get(("missed", name)) or self._open.get(("not_consumed", name))

    def _close_missed_and_late(self, name: str, nominal: int) -> None:
        """Close the incidents about a late start, because a run has begun in time."""
        self._close("missed", name, nominal)
        self._close("not_consumed", name, nominal)
        self._close("late", name, nominal)

    def _still_holds(self, incident: Incident) -> bool:
        """Return whether the condition of an open incident holds."""
        kind, name = incident.key
        entry = self.entries.get(name)
        # While an entry is stopped, its incidents are closed. So they are while it has an open
        # incident ``paused``, which means that it has failed too often and is to be paused.
        is_quiet = entry is not None and (self._is_stopped(entry) or ("paused", name) in self._open)
        field = _EXPECTED_FIELDS.get(kind)
        if field is None:
            # This incident is not about runs. It is open as long as its state lasts.
            return incident.key in self.states and not is_quiet
        if entry is None or entry.state.generation != incident.generation:
            return False  # The entry is gone or unreadable, or was added again.
        if kind == "paused":
            # This incident is open until the entry is resumed, or has no ``on_failure`` any more.
            return bool(entry.on_failure) and not is_forgiven(entry.state, incident.nominal)
        # A later run or deadline normally closes this incident. If an edit has removed ``field``
        # from the expectation, neither would close it, so it ends now.
        return not is_quiet and getattr(self._expectation_of(entry), field, None) is not None

    def _report(
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
            if len(self._open) >= _MOST and name and kind != "paused":
                # There is no room for this incident. The comment on ``_MOST`` says why incidents of
                # the whole schedule, which have no name, and ``paused`` open nevertheless.
                return
            # ``_still_holds`` compares the generation of an incident about runs with the entry's.
            generation = self.entries[name].state.generation if kind in _EXPECTED_FIELDS else ""
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
        # Ignore a second report of the same run. For example, a run that has not begun by its
        # deadline is reported at the deadline, and again when it expires. Ignore a report of an
        # earlier run, too. But never ignore a report with ``times``, because ``_count_failure`` has
        # already left out the failures that it knows.
        is_later = nominal is None or before.nominal is None or nominal > before.nominal
        if times or is_later:
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


def is_forgiven(state: EntryState, nominal: int | None) -> bool:
    """Return whether a failure does not count, because its entry was resumed after it.

    Parameters:
        state: state of the entry. ``forgiven`` is the nominal time up to which failures do not
            count, and 0 if all do.
        nominal: nominal time of the failed run; ``None`` if no run has failed, which counts as
            forgiven.
    """
    return (nominal or 0) <= state.forgiven


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
