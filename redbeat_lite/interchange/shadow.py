"""Comparison of the runs that another scheduler has sent with those that this one would have sent.

Pure. The store of the other scheduler has, for each entry, the last run and the count of runs. It
is read again and again; each time is called a look. The instants are exact, however rare the looks
are. Of several runs between two looks, only the count and the last instant are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, tzinfo
from typing import Literal, NamedTuple

from .._base import times
from ..entries.preview import upcoming_runs
from ..rules import at, every
from .move_in import Carrier, ForeignEntry, Step

Kind = Literal["left out", "not sent", "late", "early", "more", "fewer"]


class Difference(NamedTuple):
    """One difference between the two beats.

    Parameters:
        at: instant of the look (reading of the other store) that found the difference.
        name: name of the entry.
        kind: ``"left out"``: the entry cannot be imported; ``"not sent"``: the other beat has not
            sent a due run; ``"late"``, ``"early"``: it sent a run at another time; ``"more"``,
            ``"fewer"``: it sent another count of runs.
        text: the difference in words, with the instants.
    """

    at: datetime
    name: str
    kind: Kind
    text: str


class _Track:
    """One entry since its last run, with the runs that this scheduler would send after that run.

    Parameters:
        carried: the step that would import the entry, or leave it out.
        now: instant of the first look (reading of the other store) that has seen this last run of
            the entry, in epoch ms.
    """

    def __init__(self, foreign: ForeignEntry, carried: Step, now: int) -> None:
        self.foreign = foreign
        self.since = now
        #: The entry of this scheduler; ``None`` if it cannot be imported.
        self.entry = carried.entry
        #: Why the entry cannot be imported, if so.
        self.reason = "; ".join(carried.notes)
        #: Whether the next run was reported as overdue. It is reported once.
        self.overdue = False
        # Begin at the last run, because runs that were due since then are compared, too.
        begin = now if foreign.since is None else min(now, times.to_ms(foreign.since))
        # upcoming_runs() yields pairs of a run and its entry.
        ahead = upcoming_runs([] if self.entry is None else [self.entry], now=begin)
        #: Instants at which this scheduler would send runs, in epoch ms.
        self._stream = (times.to_ms(run.at) for run, _ in ahead)
        #: Next run of this scheduler, in epoch ms.
        self.next_ms = next(self._stream, None)

    @property
    def single(self) -> bool:
        """Whether the entry runs once."""
        return self.entry is not None and (
            self.entry.max_runs == 1 or isinstance(self.entry.schedule, at)
        )

    def ran_since(self, before: _Track) -> bool:
        """Return whether the entry has run since an earlier look, and was not edited since then.

        Parameters:
            before: the entry as the earlier look (reading of the other store) saw it.
        """
        # After an edit, the entries differ.
        return self.entry == before.entry and self.foreign.runs > before.foreign.runs

    def keeps_pace(self, last_run: int, number: int, tolerance: int) -> bool:
        """Return whether the runs since this look are one interval apart on average.

        The other scheduler may count an interval from the instant at which it sent the last run.
        Then the lateness of each run delays all later runs, so only the average can be compared.
        Other rules count no interval, so ``False`` is returned for them.

        Parameters:
            last_run: instant of the other scheduler's last run, in epoch ms.
            number: count of its runs since this look.
            tolerance: ms by which the average may differ from the interval.
        """
        rule = None if self.entry is None else self.entry.rule
        if not isinstance(rule, every) or rule.align or self.foreign.since is None:
            return False
        gap = (last_run - times.to_ms(self.foreign.since)) / number
        # With a tolerance of more than half an interval, a wrong count of runs would agree, too.
        return abs(gap - rule.ms) <= min(tolerance, rule.ms / 2)

    def take_until(self, last_run: int, tolerance: int) -> tuple[list[int], int | None]:
        """Return this scheduler's runs up to ``last_run``, and the run after them, in epoch ms.

        Call it once, because it takes the runs from the stream.

        Parameters:
            last_run: instant of the other scheduler's last run, in epoch ms.
            tolerance: a run up to this many ms after ``last_run`` counts, too. If runs are close
                together, it is less: half of the time from a run to the next one.
        """
        passed: list[int] = []
        while self.next_ms is not None:
            following = next(self._stream, None)
            slack = tolerance
            if following is not None:
                slack = min(tolerance, (following - self.next_ms) // 2)
            if self.next_ms - slack > last_run:
                break
            passed.append(self.next_ms)
            self.next_ms = following
        return passed, self.next_ms


class Shadow:
    """Comparison of two schedulers. Each reading of the other scheduler's store is a *look*.

    The next run of an entry is calculated from its last run in the other scheduler. So it is no
    difference if that scheduler counts an interval from the instant at which it sent a run.

    Parameters:
        carrier: converter of the other scheduler's entries.
        tolerance: seconds by which two instants may differ. If half the time to the next run is
            less, two instants may differ only by that half.
        lag: seconds until the store of the other scheduler shows a run.
    """

    def __init__(self, carrier: Carrier, zone: tzinfo, *, tolerance: float, lag: float) -> None:
        self._carrier = carrier
        self._zone = zone
        self._tolerance_ms = round(tolerance * 1000)
        self._lag_ms = round(lag * 1000)
        #: Name of an entry -> its state at the last look.
        self._tracks: dict[str, _Track] = {}
        #: Count of the runs that agree.
        self.agreed = 0
        #: Kind of difference -> count.
        self.counts: Counter[str] = Counter()

    def look(self, entries: Iterable[ForeignEntry], now: int) -> Iterator[Difference]:
        """Yield the differences since the last look (the last call of this method).

        Parameters:
            entries: all entries of the other scheduler.
            now: epoch ms.
        """
        before = self._tracks
        self._tracks = {}
        for foreign in entries:
            last = before.get(foreign.name)
            # ``foreign`` differs from that of the last look if the entry was edited. It also
            # differs if the entry has run, because it has the last run and the count of runs.
            if last is not None and last.foreign == foreign:
                track = last
            else:
                track = _Track(foreign, self._carrier.carry(foreign, now), now)
            self._tracks[foreign.name] = track
            for kind, text in self._compare(track, last, now):
                self.counts[kind] += 1
                yield Difference(times.from_ms(now), foreign.name, kind, text)

    @property
    def watched(self) -> int:
        """Count of the entries that are compared."""
        return sum(track.entry is not None for track in self._tracks.values())

    def undecided(self, now: int) -> int:
        """Return how many due entries have runs that the other store may not show yet."""
        count = 0
        for track in self._tracks.values():
            # An overdue run was reported already, so it does not count as undecided.
            if not track.overdue and track.next_ms is not None:
                count += track.next_ms <= now
        return count

    def _compare(
        self, track: _Track, before: _Track | None, now: int
    ) -> Iterator[tuple[Kind, str]]:
        """Yield the differences of one entry since the last look.

        Parameters:
            before: the entry at the last look; ``None`` if this is the first look at the entry. It
                is ``track`` itself if the entry has not changed since.
        """
        if track.entry is None:
            # Do not report a one-off that has run since the last look, and so cannot be imported
            # any more. And report the same reason only once.
            is_reported = before is not None and (before.single or before.reason == track.reason)
            if not is_reported:
                yield "left out", f"it cannot be carried over: {track.reason}"
        elif track is before:
            # The entry has not run since the last look.
            due = track.next_ms
            if due is None or track.overdue:
                return
            # Wait for the tolerance and the lag, from the due time on. If the run was due before
            # the first look at the entry, wait from that look on.
            if now > max(due, track.since) + self._tolerance_ms + self._lag_ms:
                track.overdue = True
                yield "not sent", f"it was due at {self._iso(due)}, and has not been sent"
        elif before is not None and track.ran_since(before):
            yield from self._compare_runs(before, track.foreign)

    def _compare_runs(self, before: _Track, foreign: ForeignEntry) -> Iterator[tuple[Kind, str]]:
        """Yield how the runs since the last look differ from those of this scheduler.

        Parameters:
            before: the entry at the last look, with the runs that this scheduler would send.
            foreign: the entry now.
        """
        assert foreign.since is not None  # The entry has run, so it has a last run.
        last_run = times.to_ms(foreign.since)
        number = foreign.runs - before.foreign.runs
        # An interval counts from the last run, so lateness adds up. So look first at whether the
        # average time between the runs matches the interval.
        if before.keeps_pace(last_run, number, self._tolerance_ms):
            self.agreed += number
            return
        expected, following = before.take_until(last_run, self._tolerance_ms)
        if len(expected) == number:
            self.agreed += number
            due = expected[-1]
            if last_run - due > self._tolerance_ms:
                yield "late", f"it was due at {self._iso(due)}, and sent at {self._iso(last_run)}"
            return
        # The other beat has sent one run. Here, no run was due by then.
        if not expected and number == 1:
            due_text = "not at all" if following is None else f"not before {self._iso(following)}"
            sent = f"sent at {self._iso(last_run)}"
            yield "early", f"{sent}, where we would have sent it {due_text}"
            return
        ours = f"where we would have sent it {_times(len(expected))}"
        if len(expected) < number:
            yield "more", f"sent {_times(number)}, {ours}"
            return
        # The other beat has sent fewer runs than were due since its last run.
        span = "so far"
        if before.foreign.since is not None:
            span = f"since {self._iso(times.to_ms(before.foreign.since))}"
        yield "fewer", f"sent {_times(number)} {span}, {ours}"

    def _iso(self, ms: int) -> str:
        local = times.from_ms(ms).astimezone(self._zone)
        return local.isoformat(sep=" ", timespec="milliseconds")


def _times(number: int) -> str:
    """Return "once" or "N times"."""
    return "once" if number == 1 else f"{number} times"
