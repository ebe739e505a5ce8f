"""A beat that runs silently beside another scheduler: what it would have sent, held against what was sent. Pure.

What was sent is learnt from the other scheduler's own store: each entry keeps there when it ran last, and how often.
That needs nothing to be set up, and the instants are exact, however seldom one looks; of several runs between two looks
only the number and the last instant are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, tzinfo
from typing import Literal, NamedTuple

from ... import instants
from ...entries.preview import walk
from ...schedules import At, Every, Rule
from .carrier import Carried, Carrier
from .source import Found, Left

Kind = Literal["left out", "not sent", "late", "early", "more", "fewer"]


class Difference(NamedTuple):
    """One difference between the two beats.

    Parameters:
        at: when it was noticed.
        kind: ``"left out"``: it cannot be carried over; ``"not sent"``: the other beat has not sent what is due;
            ``"late"``, ``"early"``: it sent at another time; ``"more"``, ``"fewer"``: it sent another number of runs.
        text: the same for a person, with the instants.
    """

    at: datetime
    name: str
    kind: Kind
    text: str


class Shadow:
    """Compares, look by look.

    After each run that is seen, the next one is expected from that run on: that the other scheduler counts an interval
    from the moment of sending is not held against it.

    Parameters:
        tolerance: seconds that two instants may differ; half the way to the next run, where that is less.
        lag: seconds until the other scheduler's store shows what it did.
    """

    def __init__(self, carrier: Carrier, zone: tzinfo, *, tolerance: float, lag: float) -> None:
        self._carrier = carrier
        self._zone = zone
        self._tolerance = round(tolerance * 1000)
        self._lag = round(lag * 1000)
        self._tracks: dict[str, _Track | Left] = {}
        #: Runs of both that agree, and differences by kind.
        self.agreed = 0
        self.counts: Counter[str] = Counter()

    def look(self, found: Iterable[Found | Left], now: int) -> Iterator[Difference]:
        """What differs since the last look, by the entries of the other scheduler at ``now`` (epoch ms)."""
        before, self._tracks = self._tracks, {}
        for each in found:
            track = self._tracks[each.name] = self._track(each, before.get(each.name), now)
            for kind, text in self._compared(track, before.get(each.name), now):
                self.counts[kind] += 1
                yield Difference(instants.from_ms(now), each.name, kind, text)

    @property
    def watched(self) -> int:
        """How many entries are compared."""
        return sum(isinstance(track, _Track) for track in self._tracks.values())

    def undecided(self, now: int) -> int:
        """How many entries are due that the other scheduler's store need not show yet."""
        tracks = [track for track in self._tracks.values() if isinstance(track, _Track)]
        return sum(not track.overdue and track.next_ms is not None and track.next_ms <= now for track in tracks)

    def _track(self, found: Found | Left, before: _Track | Left | None, now: int) -> _Track | Left:
        if isinstance(before, _Track) and before.found == found:
            return before
        carried = self._carrier.carry(found, now)
        if isinstance(carried, Left):
            return carried
        assert isinstance(found, Found)
        # From the last run on, and not from now: what came due since is what is to be compared.
        since = now if found.since is None else instants.to_ms(found.since)
        ahead = walk([carried.entry], now=min(since, now), zone=self._zone)
        stream = (instants.to_ms(each.at) for each in ahead)
        return _Track(found, carried, carried.entry.rule(self._zone), stream, now)

    def _compared(self, track: _Track | Left, before: _Track | Left | None, now: int) -> Iterator[tuple[Kind, str]]:
        if isinstance(track, Left):
            # A one-off that has run is gone from what can be carried over, as it should be.
            if track != before and not (isinstance(before, _Track) and before.single):
                yield "left out", f"it cannot be carried over: {track.reason}"
        elif track is before:
            due = track.next_ms
            # What was overdue before anybody looked has its time, too.
            if due is not None and not track.overdue and now > max(due, track.since) + self._tolerance + self._lag:
                track.overdue = True
                yield "not sent", f"it was due at {self._shown(due)}, and has not been sent"
        elif isinstance(before, _Track) and track.ran_since(before):
            yield from self._ran(before, track.found)

    def _ran(self, before: _Track, found: Found) -> Iterator[tuple[Kind, str]]:
        assert found.since is not None
        ran, runs = instants.to_ms(found.since), found.runs - before.found.runs
        if before.keeps_pace(ran, runs, self._tolerance):
            self.agreed += runs
            return
        expected, following = before.until(ran, self._tolerance)
        if len(expected) == runs:
            self.agreed += runs
            if ran - expected[-1] > self._tolerance:
                yield "late", f"it was due at {self._shown(expected[-1])}, and sent at {self._shown(ran)}"
        elif len(expected) > runs:
            since = before.found.since
            span = f"since {self._shown(instants.to_ms(since))}" if since is not None else "so far"
            yield "fewer", f"sent {_times(runs)} {span}, where we would have sent it {_times(len(expected))}"
        elif not expected and runs == 1:
            due = "not at all" if following is None else f"not before {self._shown(following)}"
            yield "early", f"sent at {self._shown(ran)}, where we would have sent it {due}"
        else:
            yield "more", f"sent {_times(runs)}, where we would have sent it {_times(len(expected))}"

    def _shown(self, ms: int) -> str:
        return instants.from_ms(ms).astimezone(self._zone).isoformat(sep=" ", timespec="milliseconds")


class _Track:
    """One entry between two of its runs: as it was found (since when), and when we would send it from there on."""

    def __init__(self, found: Found, carried: Carried, rule: Rule, stream: Iterator[int], since: int) -> None:
        self.found = found
        self.since = since
        self.overdue = False
        self._carried = carried
        self._stream = stream
        self._interval = rule.ms if isinstance(rule, Every) and not rule.align else None
        self.next_ms = next(stream, None)

    @property
    def single(self) -> bool:
        """Whether it is to run once."""
        return self._carried.entry.max_runs == 1 or isinstance(self._carried.entry.schedule, At)

    def ran_since(self, before: _Track) -> bool:
        """Whether the entry is what it was, and has run: an edit begins anew."""
        return self._carried.definition == before._carried.definition and self.found.runs > before.found.runs

    def keeps_pace(self, ran: int, runs: int, tolerance: int) -> bool:
        """Whether these runs are those of an interval that is counted from the moment of sending.

        Each of them may then be a little late, and what follows is later by all of that together.
        """
        if self._interval is None or self.found.since is None:
            return False
        gap = (ran - instants.to_ms(self.found.since)) / runs
        return abs(gap - self._interval) <= min(tolerance, self._interval / 2)

    def until(self, ran: int, tolerance: int) -> tuple[list[int], int | None]:
        """When we would have sent up to ``ran``, and when next; all in epoch milliseconds. It ends the track."""
        passed: list[int] = []
        while self.next_ms is not None:
            following = next(self._stream, None)
            slack = tolerance if following is None else min(tolerance, (following - self.next_ms) // 2)
            if self.next_ms - slack > ran:
                break
            passed.append(self.next_ms)
            self.next_ms = following
        return passed, self.next_ms


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
