"""From what became of runs to incidents that are opened and closed: pure, and given the time."""

from __future__ import annotations

from ..expect import Expect
from ..instants import from_ms
from .facts import Deadline, Decision, End, Failures, Seen, Watched
from .incident import Case, Kind
from .run import Outcome

#: Outcomes of a body that came to nothing, and of a message that no body got.
_FAILED: tuple[Outcome, ...] = ("failed", "rejected", "lost", "expired")
_NOT_BEGUN: tuple[Outcome, ...] = ("rejected", "lost", "expired")

#: What counts for ``on_failure``, and what is gone by where nothing else is expected; no incident of it is kept.
_STRIKES: tuple[Outcome, ...] = ("failed", "rejected", "lost")
_NOTHING = Expect()

#: Outcomes of a run that has not ended.
_RUNNING: tuple[Outcome, ...] = ("running", "retrying")

#: A run has not begun: of these two, one at most is open for an entry.
_MISSED: tuple[Kind, Kind] = ("missed", "not_consumed")

#: Which fields of an expectation a kind goes by. The others hold or do not hold at the moment of a look.
_FIELDS: dict[Kind, str] = {
    "missed": "start_within",
    "not_consumed": "start_within",
    "late": "start_within",
    "too_long": "finish_within",
    "failed": "failures",
    "paused": "failures",
    "no_success": "succeed_every",
}


def fold(seen: Seen) -> Decision:
    """Decide what a look leads to. What was opened and closed within one look is passed over."""
    return _Fold(seen).decision()


class _Fold:
    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._before = {case.key: case for case in seen.cases if case.until is None}
        self._open = dict(self._before)
        self._failures: dict[str, Failures] = {}
        self._deadlines: dict[str, int] = {}

    def decision(self) -> Decision:
        for end in self._seen.ends:
            self._end(end)
        # Those of the end last: of a run that is missed it is not said, too, that it has not ended.
        for each in sorted(self._seen.overdue, key=lambda each: each.what == "finish"):
            # A success among the ends above may have set this deadline again.
            if each.member not in self._deadlines:
                self._overdue(each)
        self._hold()
        self._drop_unexpected()
        after, before = self._open, self._before
        return Decision(
            [case for key, case in after.items() if key not in before],
            [case for key, case in before.items() if key not in after],
            [case for key, case in after.items() if key in before and case != before[key]],
            self._failures,
            self._deadlines,
        )

    def _watched(self, name: str) -> Watched:
        return self._seen.watched.get(name, Watched(None))

    def _end(self, end: End) -> None:
        watched = self._watched(end.name)
        expect = watched.expect or (_NOTHING if watched.on_failure else None)
        if expect is None:
            return
        self._in_time(expect, end)
        if end.outcome == "succeeded":
            self._failures[end.name] = Failures()
            self._close("failed", end.name)
            self._close("no_success", end.name)
            if expect.success_ms is not None:
                self._deadlines[Deadline("success", None, end.name).member] = end.at + expect.success_ms
        elif end.outcome in _NOT_BEGUN and end.begin is None and expect.start_ms is not None:
            self._missed(end.name, f"the run of {_told(end.nominal)} has {_ended(end.outcome)}", end.nominal)
            if watched.on_failure:
                self._failed(expect, end, 0)
        elif end.outcome in _FAILED:
            self._failed(expect, end)

    def _in_time(self, expect: Expect, end: End) -> None:
        """Close what a run that was in time shows to be over; a due time after the nominal one may make it so later.

        It may be the run that it was opened for: what is recorded in time may be written after the look.
        """
        if end.begin is None:
            return
        if expect.start_ms is not None and end.begin <= expect.start_ms:
            self._begun(end.name, end.nominal)
        ended = end.begin + (end.duration or 0)
        if expect.finish_ms is not None and end.outcome != "retrying" and ended <= expect.finish_ms:
            self._close("too_long", end.name, end.nominal)

    def _failed(self, expect: Expect, end: End, counts: int = 1) -> None:
        watched = self._watched(end.name)
        known = self._failures.get(end.name) or self._seen.failures.get(end.name) or Failures()
        if known.generation != watched.generation:
            known = Failures()
        if known.nominal == end.nominal or end.nominal <= watched.forgiven:
            return
        times, strikes = known.times + counts, known.strikes if watched.counts(known.nominal) else 0
        if watched.on_failure and end.outcome in _STRIKES and not watched.muted:
            strikes += 1
            if strikes >= watched.on_failure.after:
                self._open_case("paused", end.name, f"paused: {_often(end, strikes)}", end.nominal, strikes)
                # Left to the next look, whoever takes it: this one may not come to it.
                self._deadlines[Deadline(f"pause {watched.generation}", end.nominal, end.name).member] = 0
        self._failures[end.name] = Failures(times, end.nominal, watched.generation, strikes)
        if counts and times >= expect.failures:
            self._open_case("failed", end.name, _often(end, times), end.nominal, times)

    def _overdue(self, deadline: Deadline) -> None:
        expect, nominal, since = self._watched(deadline.name).expect, deadline.nominal, deadline.since
        within = getattr(expect, f"{deadline.what}_ms", None)
        if nominal is not None and deadline.what == "begun":
            self._begun(deadline.name, nominal)
        elif nominal is not None and deadline.what == "ended":
            self._close("too_long", deadline.name, nominal)
        if expect is None or within is None:
            return
        if since is not None and since + within > deadline.at:
            self._deadlines[deadline.member] = since + within  # The entry has been given more time.
        elif deadline.what == "success":
            self._open_case("no_success", deadline.name, f"no run has succeeded for {within / 1000:g} s", None)
        elif nominal is None:
            kind: Kind = "missed" if deadline.what == "start" else "too_long"
            done = "begun" if kind == "missed" else "ended"
            self._open_case(kind, deadline.name, f"a run has not {done} within {within / 1000:g} s", None)
        elif deadline.what == "start":
            self._start(deadline, nominal, within)
        else:
            self._finish(deadline, nominal, within)

    def _start(self, deadline: Deadline, nominal: int, within: int) -> None:
        row, name = deadline.row, deadline.name
        due = nominal if deadline.since is None else deadline.since
        run = f"the run of {_told(nominal)}" + ("" if due == nominal else f", due at {_told(due)},")
        if row is None or (row.begin is None and row.outcome in _NOT_BEGUN):
            queue = self._seen.untaken.get(name) if row is None else None
            self._missed(name, f"{run} has not begun within {within / 1000:g} s", nominal, queue)
        elif row.begin is None:
            return  # Revoked, or left out: somebody decided so.
        elif nominal + row.begin <= deadline.at:
            self._begun(name, nominal)
        elif not row.attempt and self._open_missed(name) is None:  # of one tried again, the row tells the last begin
            after = (nominal + row.begin - due) / 1000
            began = f"{run} began {after:g} s after its due time, not within {within / 1000:g} s"
            self._open_case("late", name, began, nominal)

    def _missed(self, name: str, text: str, nominal: int, queue: str | None = None) -> None:
        """A run has not begun; where a queue is given, as nobody takes from it. One kind takes the other's place."""
        kind, other = _MISSED if queue is None else reversed(_MISSED)
        why = "" if queue is None else f": no worker that was heard of takes from the queue {queue!r}"
        self._open_case(kind, name, text + why, nominal)
        if (kind, name) in self._open:
            self._close(other, name)

    def _begun(self, name: str, nominal: int) -> None:
        """A run has begun in time."""
        for kind in (*_MISSED, "late"):
            self._close(kind, name, nominal)

    def _open_missed(self, name: str) -> Case | None:
        return next((case for kind in _MISSED if (case := self._open.get((kind, name)))), None)

    def _finish(self, deadline: Deadline, nominal: int, within: int) -> None:
        row, name = deadline.row, deadline.name
        if row is None or row.outcome in _RUNNING:
            missed = self._open_missed(name)
            if row is not None or missed is None or (missed.nominal or 0) > nominal:
                self._too_long(name, nominal, within)
        elif row.begin is not None and row.duration is not None:
            if nominal + row.begin + row.duration <= deadline.at:
                self._close("too_long", name, nominal)
            else:
                self._too_long(name, nominal, within, "ended later than")

    def _too_long(self, name: str, nominal: int, within: int, what: str = "has not ended") -> None:
        text = f"the run of {_told(nominal)} {what} within {within / 1000:g} s"
        self._open_case("too_long", name, text, nominal)

    def _hold(self) -> None:
        for (kind, name), text in self._seen.states.items():
            if (kind, name) not in self._open:
                self._open_case(kind, name, text, None)

    def _drop_unexpected(self) -> None:
        """Close what holds no more, and incidents of entries that are gone or others, paused or disabled, or expect
        something else."""
        for (kind, name), case in [*self._open.items()]:
            watched, field = self._watched(name), _FIELDS.get(kind)
            if kind == "paused":
                goes_on = watched.counts(case.nominal)
            else:
                holds = getattr(watched.expect, field, None) is not None if field else case.key in self._seen.states
                goes_on = holds and not watched.muted and ("paused", name) not in self._open
            if not goes_on or (field and case.generation != watched.generation):
                self._close(kind, name)

    def _open_case(self, kind: Kind, name: str, text: str, nominal: int | None, times: int = 0) -> None:
        known = self._open.get((kind, name)) or self._before.get((kind, name))
        if known is not None:
            # A run may be found twice: it has expired, and did not begin in time.
            if times or nominal is None or known.nominal is None or nominal > known.nominal:
                self._open[kind, name] = known._replace(text=text, times=times or known.times + 1, nominal=nominal)
        else:
            generation = self._watched(name).generation if kind in _FIELDS else ""
            self._open[kind, name] = Case(kind, name, self._seen.now, text, times or 1, nominal, generation=generation)

    def _close(self, kind: Kind, name: str, nominal: int | None = None) -> None:
        case = self._open.get((kind, name))
        if case is not None and (nominal is None or case.nominal is None or nominal >= case.nominal):
            del self._open[kind, name]


def _told(nominal: int) -> str:
    return from_ms(nominal).isoformat(timespec="seconds")


def _often(end: End, times: int) -> str:
    return _ended(end.outcome) + (f" {times} times in a row" if times > 1 else "") + (end.error and f": {end.error}")


def _ended(outcome: Outcome) -> str:
    return {"lost": "lost its worker", "rejected": "been rejected"}.get(outcome, outcome)
