"""Comparison of a silent beat with another scheduler: what it would have sent, and what was sent.

Pure.

The other scheduler's store shows what was sent: for each entry, its last run and its number of
runs. Nothing has to be set up for that, and the instants are exact, however rare the looks. Of
several runs between two looks, only their number and the last instant are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, tzinfo
from typing import Literal, NamedTuple

from .._base import times
from ..entries.preview import walk
from ..rules import At, Every, Rule
from .move_in import Carried, Carrier, ForeignEntry, LeftOut

Kind = Literal["left out", "not sent", "late", "early", "more", "fewer"]


class Difference(NamedTuple):
    """One difference between the two beats.

    Parameters:
        at: when it was noticed.
        kind: ``"left out"``: the entry cannot be carried over; ``"not sent"``: the other beat has
            not sent a due run; ``"late"``, ``"early"``: it sent at another time; ``"more"``,
            ``"fewer"``: it sent another number of runs.
        text: the difference for people, with the instants.
    """

    at: datetime
    name: str
    kind: Kind
    text: str


class _Track:
    """One entry since its last run, with the runs that we would send from that run on.

    Parameters:
        since: instant of our first look at the entry in this state, epoch ms.
        stream: instants at which we would send its runs, epoch ms.
    """

    def __init__(
        self, foreign: ForeignEntry, carried: Carried, rule: Rule, stream: Iterator[int], since: int
    ) -> None:
        self.foreign = foreign
        self.since = since
        self.overdue = False
        self._carried = carried
        self._stream = stream
        self._interval = rule.ms if isinstance(rule, Every) and not rule.align else None
        self.next_ms = next(stream, None)

    @property
    def single(self) -> bool:
        """Whether the entry runs once."""
        entry = self._carried.entry
        return entry.max_runs == 1 or isinstance(entry.schedule, At)

    def ran_since(self, before: _Track) -> bool:
        """Return whether the entry has run. An edit starts a new comparison."""
        is_edited = self._carried.definition != before._carried.definition
        return not is_edited and self.foreign.runs > before.foreign.runs

    def keeps_pace(self, last_run: int, number: int, tolerance: int) -> bool:
        """Return whether the runs since this look are an interval apart, on average.

        The other scheduler may count an interval from the sending of the run before. Then each run
        adds its own lateness to that of all later runs, so only the average can be compared.

        Parameters:
            last_run: instant of the last run, epoch ms.
            number: number of runs since this look.
        """
        if self._interval is None or self.foreign.since is None:
            return False
        gap = (last_run - times.to_ms(self.foreign.since)) / number
        return abs(gap - self._interval) <= min(tolerance, self._interval / 2)

    def until(self, last_run: int, tolerance: int) -> tuple[list[int], int | None]:
        """Return our runs up to the instant ``last_run``, and our next one, in epoch ms.

        The track is used up afterwards.
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
    """Comparison, look by look.

    After each run that is seen, the next one is expected from that run on. So it is no difference
    if the other scheduler counts an interval from the moment of sending.

    Parameters:
        tolerance: seconds that two instants may differ; half the time to the next run, if that is
            less.
        lag: seconds until the other scheduler's store shows a run.
    """

    def __init__(self, carrier: Carrier, zone: tzinfo, *, tolerance: float, lag: float) -> None:
        self._carrier = carrier
        self._zone = zone
        self._tolerance = round(tolerance * 1000)
        self._lag = round(lag * 1000)
        self._tracks: dict[str, _Track | LeftOut] = {}
        #: Number of runs that agree.
        self.agreed = 0
        #: Number of differences by kind.
        self.counts: Counter[str] = Counter()

    def look(self, entries: Iterable[ForeignEntry | LeftOut], now: int) -> Iterator[Difference]:
        """Yield the differences since the last look.

        Parameters:
            entries: of the other scheduler.
            now: epoch ms.
        """
        before = self._tracks
        self._tracks = {}
        for entry in entries:
            last = before.get(entry.name)
            track = self._track(entry, last, now)
            self._tracks[entry.name] = track
            for kind, text in self._compare(track, last, now):
                self.counts[kind] += 1
                yield Difference(times.from_ms(now), entry.name, kind, text)

    @property
    def watched(self) -> int:
        """Number of entries that are compared."""
        return sum(isinstance(track, _Track) for track in self._tracks.values())

    def undecided(self, now: int) -> int:
        """Return how many due entries have runs that the other store may not show yet."""
        count = 0
        for track in self._tracks.values():
            if isinstance(track, LeftOut) or track.overdue or track.next_ms is None:
                continue
            count += track.next_ms <= now
        return count

    def _track(
        self, foreign: ForeignEntry | LeftOut, before: _Track | LeftOut | None, now: int
    ) -> _Track | LeftOut:
        """Return the track of an entry, a new one if the entry has changed since the last look."""
        if isinstance(before, _Track) and before.foreign == foreign:
            return before
        carried = self._carrier.carry(foreign, now)
        if isinstance(carried, LeftOut):
            return carried
        assert isinstance(foreign, ForeignEntry)
        # Begin at the last run and not now, because runs that came due since then are compared.
        since = now if foreign.since is None else times.to_ms(foreign.since)
        ahead = walk([carried.entry], now=min(since, now), zone=self._zone)
        stream = (times.to_ms(run.at) for run in ahead)
        return _Track(foreign, carried, carried.entry.rule(self._zone), stream, now)

    def _compare(
        self, track: _Track | LeftOut, before: _Track | LeftOut | None, now: int
    ) -> Iterator[tuple[Kind, str]]:
        """Yield the differences of one entry since the last look."""
        if isinstance(track, LeftOut):
            # A one-off that has run cannot be carried over any more, which is no difference.
            has_run = isinstance(before, _Track) and before.single
            if track != before and not has_run:
                yield "left out", f"it cannot be carried over: {track.reason}"
        elif track is before:
            due = track.next_ms
            if due is None or track.overdue:
                return
            # A run that was overdue at the first look has its time, too.
            if now > max(due, track.since) + self._tolerance + self._lag:
                track.overdue = True
                yield "not sent", f"it was due at {self._iso(due)}, and has not been sent"
        elif isinstance(before, _Track) and track.ran_since(before):
            yield from self._compare_runs(before, track.foreign)

    def _compare_runs(self, before: _Track, foreign: ForeignEntry) -> Iterator[tuple[Kind, str]]:
        """Yield how the runs since the last look differ from those that we would have sent."""
        assert foreign.since is not None
        last_run = times.to_ms(foreign.since)
        number = foreign.runs - before.foreign.runs
        if before.keeps_pace(last_run, number, self._tolerance):
            self.agreed += number
            return
        expected, following = before.until(last_run, self._tolerance)
        if len(expected) == number:
            self.agreed += number
            due = expected[-1]
            if last_run - due > self._tolerance:
                yield "late", f"it was due at {self._iso(due)}, and sent at {self._iso(last_run)}"
            return
        if not expected and number == 1:
            due_text = "not at all" if following is None else f"not before {self._iso(following)}"
            sent = f"sent at {self._iso(last_run)}"
            yield "early", f"{sent}, where we would have sent it {due_text}"
            return
        ours = f"where we would have sent it {_times(len(expected))}"
        if len(expected) < number:
            yield "more", f"sent {_times(number)}, {ours}"
            return
        span = "so far"
        if before.foreign.since is not None:
            span = f"since {self._iso(times.to_ms(before.foreign.since))}"
        yield "fewer", f"sent {_times(number)} {span}, {ours}"

    def _iso(self, ms: int) -> str:
        local = times.from_ms(ms).astimezone(self._zone)
        return local.isoformat(sep=" ", timespec="milliseconds")


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
