"""Decision which incidents open and close, by what became of runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .._base.times import from_ms
from ..policies import Expect, Pause
from .incident import Case, Key, Kind
from .run import Outcome, Row

#: Outcomes that count as a failure in a row.
_FAILED: tuple[Outcome, ...] = ("failed", "rejected", "lost", "expired")

#: Outcomes that a message may have before its body begins.
_NOT_BEGUN: tuple[Outcome, ...] = ("rejected", "lost", "expired")

#: Outcomes that count for ``on_failure``.
_STRIKES: tuple[Outcome, ...] = ("failed", "rejected", "lost")

#: Expectation of an entry that only has ``on_failure``. Its failures are counted, and open nothing.
_NOTHING = Expect()

#: Outcomes of a run that has not ended.
_RUNNING: tuple[Outcome, ...] = ("running", "retrying")

#: Kinds of a run that has not begun. At most one of the two is open per entry.
_MISSED: tuple[Kind, ...] = ("missed", "not_consumed")

#: Field of the expectation behind each kind. Other kinds hold or do not hold at the
#: moment of a look.
_FIELDS: dict[Kind, str] = {
    "missed": "start_within",
    "not_consumed": "start_within",
    "late": "start_within",
    "too_long": "finish_within",
    "failed": "failures",
    "paused": "failures",
    "no_success": "succeed_every",
}


class End(NamedTuple):
    """Line of the feed: the end of a run.

    Parameters:
        at: epoch ms, by the clock of the process that looks.
        nominal: nominal time, epoch ms.
        begin: ms after the nominal time; ``None`` if the body has not begun.
        duration: ms.
    """

    at: int
    name: str
    nominal: int
    outcome: Outcome
    begin: int | None = None
    duration: int | None = None
    error: str = ""


class Deadline(NamedTuple):
    """Deadline whose time has come, for one run or for an entry.

    Parameters:
        what: ``"start"``, ``"finish"`` or ``"success"``; ``"begun"`` or ``"ended"`` if a run was in
            time and may close an open incident; ``"pause <generation>"`` if too many runs have
            failed.
        nominal: nominal time of the run; ``None`` for ``"success"``, and for the retry of an
            incident for which there was no room.
        at: epoch ms.
        since: instant from which the time limit counts for the present entry; ``None``: the
            instant that the deadline was made with.
        row: the row of the run.
    """

    what: str
    nominal: int | None
    name: str
    at: int = 0
    since: int | None = None
    row: Row | None = None

    @property
    def member(self) -> str:
        """Member of the sorted set of deadlines."""
        return f"{self.what}|{'' if self.nominal is None else self.nominal}|{self.name}"


class Watched(NamedTuple):
    """Expectations of a stored entry.

    Parameters:
        muted: whether no incident is to open, because it is paused, frozen or disabled.
        forgiven: nominal time up to which failures do not count for ``on_failure``.
    """

    expect: Expect | None
    muted: bool = False
    generation: str = ""
    on_failure: Pause | None = None
    forgiven: int = 0

    def counts(self, nominal: int | None) -> bool:
        """Return whether the failure of a run counts for ``on_failure``.

        Resuming an entry forgives the failures of the runs before.
        """
        return self.on_failure is not None and (nominal or 0) > self.forgiven


class Failures(NamedTuple):
    """Failures in a row of one generation of an entry.

    Parameters:
        times: how many.
        nominal: nominal time of the last one. A run fails only once.
        strikes: how many of them count for ``on_failure``. An expired run does not.
    """

    times: int = 0
    nominal: int | None = None
    generation: str = ""
    strikes: int = 0


class Seen(NamedTuple):
    """All that one look has read.

    Parameters:
        now: epoch ms.
        ends: new lines of the feed, the oldest first.
        overdue: deadlines whose time has come.
        watched: the stored entries that the ends, deadlines and incidents name.
        failures: failures in a row of these entries.
        untaken: entry -> its queue, if no known worker takes from it.
        states: incidents that hold at the moment, apart from runs, with their texts.
        cases: the open incidents.
    """

    now: int
    ends: Sequence[End] = ()
    overdue: Sequence[Deadline] = ()
    watched: Mapping[str, Watched] = {}
    failures: Mapping[str, Failures] = {}
    untaken: Mapping[str, str] = {}
    states: Mapping[Key, str] = {}
    cases: Sequence[Case] = ()


class Decision(NamedTuple):
    """Incidents to open, to close and to update, failures in a row, and deadlines to set."""

    opened: list[Case]
    closed: list[Case]
    counted: list[Case]
    failures: dict[str, Failures]
    deadlines: dict[str, int]


def fold(seen: Seen) -> Decision:
    """Decide what follows from a look.

    An incident that opens and closes within one look is left out.
    """
    return _Fold(seen).decision()


class _Fold:
    """One decision about incidents, with the incidents that were open before it."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._before = {case.key: case for case in seen.cases if case.until is None}
        self._open = dict(self._before)
        self._failures: dict[str, Failures] = {}
        self._deadlines: dict[str, int] = {}

    def decision(self) -> Decision:
        for end in self._seen.ends:
            self._handle_end(end)
        # Handle finish deadlines last: a run already reported as missed must not also be
        # reported as too long.
        for deadline in sorted(self._seen.overdue, key=lambda deadline: deadline.what == "finish"):
            # A success among the ends above may have set this deadline again.
            if deadline.member not in self._deadlines:
                self._handle_deadline(deadline)
        for (kind, name), text in self._seen.states.items():
            if (kind, name) not in self._open:
                self._open_case(kind, name, text, None)
        self._close_obsolete()
        opened = []
        counted = []
        for key, case in self._open.items():
            if key not in self._before:
                opened.append(case)
            elif case != self._before[key]:
                counted.append(case)
        closed = [case for key, case in self._before.items() if key not in self._open]
        return Decision(opened, closed, counted, self._failures, self._deadlines)

    def _watched(self, name: str) -> Watched:
        return self._seen.watched.get(name, Watched(None))

    def _handle_end(self, end: End) -> None:
        """Count a failed run, and close the incidents that a run in time or a success ends."""
        watched = self._watched(end.name)
        expect = watched.expect
        if expect is None:
            if watched.on_failure is None:
                return
            expect = _NOTHING
        self._close_if_in_time(expect, end)
        if end.outcome == "succeeded":
            self._failures[end.name] = Failures()
            self._close("failed", end.name)
            self._close("no_success", end.name)
            if expect.success_ms is not None:
                next_success = Deadline("success", None, end.name)
                self._deadlines[next_success.member] = end.at + expect.success_ms
        elif end.outcome in _NOT_BEGUN and end.begin is None and expect.start_ms is not None:
            text = f"the run of {_iso(end.nominal)} has {_outcome_words(end.outcome)}"
            self._open_missed(end.name, text, end.nominal)
            if watched.on_failure:
                self._count_failure(expect, end, is_failure=False)
        elif end.outcome in _FAILED:
            self._count_failure(expect, end)

    def _close_if_in_time(self, expect: Expect, end: End) -> None:
        """Close incidents that a run in time ends.

        The limits count from the nominal time here. A run with jitter is due later, so it may be in
        time and yet close nothing here; its deadline closes the incident then. The same run may
        have opened the incident, because its record may be written after the look.
        """
        if end.begin is None:
            return
        if expect.start_ms is not None and end.begin <= expect.start_ms:
            self._close_missed_and_late(end.name, end.nominal)
        ended = end.begin + (end.duration or 0)
        if expect.finish_ms is not None and end.outcome != "retrying" and ended <= expect.finish_ms:
            self._close("too_long", end.name, end.nominal)

    def _count_failure(self, expect: Expect, end: End, *, is_failure: bool = True) -> None:
        """Count a failed run once.

        Parameters:
            is_failure: ``False`` for a run that opens ``missed``, which counts for ``on_failure``
                only.
        """
        watched = self._watched(end.name)
        before = self._failures.get(end.name) or self._seen.failures.get(end.name) or Failures()
        if before.generation != watched.generation:
            before = Failures()
        if before.nominal == end.nominal or end.nominal <= watched.forgiven:
            return
        times = before.times + is_failure
        strikes = before.strikes if watched.counts(before.nominal) else 0
        if watched.on_failure and end.outcome in _STRIKES and not watched.muted:
            strikes += 1
            if strikes >= watched.on_failure.after:
                text = f"paused: {_failure_words(end, strikes)}"
                self._open_case("paused", end.name, text, end.nominal, strikes)
                # A later look pauses the entry, because this process may end before it does. Any
                # leader may take the later look.
                pause = Deadline(f"pause {watched.generation}", end.nominal, end.name)
                self._deadlines[pause.member] = 0
        self._failures[end.name] = Failures(times, end.nominal, watched.generation, strikes)
        if is_failure and times >= expect.failures:
            self._open_case("failed", end.name, _failure_words(end, times), end.nominal, times)

    def _handle_deadline(self, deadline: Deadline) -> None:
        """Open or close the incident that a deadline decides about."""
        what = deadline.what
        nominal = deadline.nominal
        name = deadline.name
        if nominal is not None and what == "begun":
            self._close_missed_and_late(name, nominal)
        elif nominal is not None and what == "ended":
            self._close("too_long", name, nominal)
        expect = self._watched(name).expect
        within = getattr(expect, f"{what}_ms", None)
        if expect is None or within is None:
            return
        seconds = f"{within / 1000:g} s"
        if deadline.since is not None and deadline.since + within > deadline.at:
            # An edit has given the entry more time.
            self._deadlines[deadline.member] = deadline.since + within
        elif what == "success":
            self._open_case("no_success", name, f"no run has succeeded for {seconds}", None)
        elif nominal is None and what == "start":
            self._open_case("missed", name, f"a run has not begun within {seconds}", None)
        elif nominal is None:
            self._open_case("too_long", name, f"a run has not ended within {seconds}", None)
        elif what == "start":
            self._handle_start(deadline, nominal, seconds)
        else:
            self._handle_finish(deadline, nominal, seconds)

    def _handle_start(self, deadline: Deadline, nominal: int, seconds: str) -> None:
        """Decide whether a run has missed its start, began late, or began in time.

        Parameters:
            seconds: the time limit in words.
        """
        name = deadline.name
        row = deadline.row
        due = nominal if deadline.since is None else deadline.since
        run = f"the run of {_iso(nominal)}"
        if due != nominal:
            run += f", due at {_iso(due)},"
        if row is None:
            queue = self._seen.untaken.get(name)
            self._open_missed(name, f"{run} has not begun within {seconds}", nominal, queue)
        elif row.begin is None:
            # A revoked or left out run is nobody's fault.
            if row.outcome in _NOT_BEGUN:
                self._open_missed(name, f"{run} has not begun within {seconds}", nominal)
        elif nominal + row.begin <= deadline.at:
            self._close_missed_and_late(name, nominal)
        elif not row.attempt and self._missed_case(name) is None:
            # The row of a retried run has the start of the retry, which says nothing here.
            after = (nominal + row.begin - due) / 1000
            text = f"{run} began {after:g} s after its due time, not within {seconds}"
            self._open_case("late", name, text, nominal)

    def _handle_finish(self, deadline: Deadline, nominal: int, seconds: str) -> None:
        """Decide whether a run has taken too long.

        Parameters:
            seconds: the time limit in words.
        """
        name = deadline.name
        row = deadline.row
        run = f"the run of {_iso(nominal)}"
        if row is None or row.outcome in _RUNNING:
            missed = self._missed_case(name)
            if row is not None or missed is None or (missed.nominal or 0) > nominal:
                self._open_case("too_long", name, f"{run} has not ended within {seconds}", nominal)
        elif row.begin is not None and row.duration is not None:
            if nominal + row.begin + row.duration <= deadline.at:
                self._close("too_long", name, nominal)
            else:
                text = f"{run} ended later than within {seconds}"
                self._open_case("too_long", name, text, nominal)

    def _open_missed(self, name: str, text: str, nominal: int, queue: str | None = None) -> None:
        """Open the incident of a run that has not begun, in place of its other kind.

        Parameters:
            queue: the entry's queue, if no known worker takes from it.
        """
        kind: Kind = "missed"
        other: Kind = "not_consumed"
        if queue is not None:
            kind = "not_consumed"
            other = "missed"
            text += f": no worker that was heard of takes from the queue {queue!r}"
        self._open_case(kind, name, text, nominal)
        if (kind, name) in self._open:
            self._close(other, name)

    def _missed_case(self, name: str) -> Case | None:
        for kind in _MISSED:
            case = self._open.get((kind, name))
            if case is not None:
                return case
        return None

    def _close_missed_and_late(self, name: str, nominal: int) -> None:
        """Close the incidents that a run which began in time ends."""
        for kind in (*_MISSED, "late"):
            self._close(kind, name, nominal)

    def _close_obsolete(self) -> None:
        """Close incidents that hold no more, or whose entry is gone, muted or changed."""
        for (kind, name), case in [*self._open.items()]:
            watched = self._watched(name)
            field = _FIELDS.get(kind)
            if kind == "paused":
                holds = watched.counts(case.nominal)
            elif watched.muted or ("paused", name) in self._open:
                holds = False
            elif field is None:
                holds = case.key in self._seen.states
            else:
                holds = getattr(watched.expect, field, None) is not None
            is_other_entry = field is not None and case.generation != watched.generation
            if not holds or is_other_entry:
                self._close(kind, name)

    def _open_case(
        self, kind: Kind, name: str, text: str, nominal: int | None, times: int | None = None
    ) -> None:
        """Open an incident, or update it if it is open. ``times`` counts one more by default."""
        known = self._open.get((kind, name)) or self._before.get((kind, name))
        if known is None:
            generation = self._watched(name).generation if kind in _FIELDS else ""
            case = Case(
                kind, name, self._seen.now, text, times or 1, nominal, generation=generation
            )
            self._open[kind, name] = case
            return
        # The same run may be reported twice: it has expired, and it did not begin in time.
        is_news = times or nominal is None or known.nominal is None or nominal > known.nominal
        if is_news:
            times = times or known.times + 1
            self._open[kind, name] = known._replace(text=text, times=times, nominal=nominal)

    def _close(self, kind: Kind, name: str, nominal: int | None = None) -> None:
        """Close an incident, unless a later run than this one has opened it."""
        case = self._open.get((kind, name))
        if case is None:
            return
        if nominal is None or case.nominal is None or nominal >= case.nominal:
            del self._open[kind, name]


def _iso(nominal: int) -> str:
    return from_ms(nominal).isoformat(timespec="seconds")


def _failure_words(end: End, times: int) -> str:
    words = _outcome_words(end.outcome)
    if times > 1:
        words += f" {times} times in a row"
    if end.error:
        words += f": {end.error}"
    return words


def _outcome_words(outcome: Outcome) -> str:
    """Return an outcome as it follows "has"."""
    return {"lost": "lost its worker", "rejected": "been rejected"}.get(outcome, outcome)
