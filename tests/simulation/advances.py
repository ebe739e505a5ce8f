"""Commits of beats: each occurrence of an entry that one passes over was sent, or is counted as left out.

Each commit says how the state of an entry changes. It is compared with what the commit has sent, and with
the runs that it records as skipped or left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from redbeat_lite.entries.run import OUTCOMES
from redbeat_lite.entries.state import EntryState
from redbeat_lite.store.keys import Keys
from redbeat_lite.store.scripts import _sha

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

_KEYS = Keys.of("redbeat-lite")
_STATE = _KEYS.state.encode()
_DUE = _KEYS.due.encode()
_ENTRIES = _KEYS.entries.encode()

#: Commits within one second that do not advance an entry, although nobody has edited it, from which on a beat spins.
#: One or two are in order, because another task may acquire the once-lock between the plan and the commit.
_MANY_IN_VAIN = 5


class Unsent(NamedTuple):
    """Runs that a commit records as not sent: what it says of them, the first one, the last one and their number."""

    outcome: str
    first: int
    last: int
    number: int

    def nominal_times(self) -> list[int]:
        """Return the nominal times of these runs, which are those of an interval."""
        period = (self.last - self.first) // max(self.number - 1, 1)
        return [self.first + n * period for n in range(self.number)]


class Advance(NamedTuple):
    """What a commit has done with one entry."""

    name: str
    before: EntryState
    after: EntryState
    unsent: list[Unsent]
    #: Number of messages that the commit has put into a queue.
    pushed: int

    @property
    def sent(self) -> int:
        """Number of runs that count as sent."""
        return self.after.count - self.before.count

    @property
    def left_out(self) -> list[Unsent]:
        """Runs that another task's once-lock has kept from being sent."""
        return [unsent for unsent in self.unsent if unsent.outcome == "left out"]

    def complaints(self, period: int | None) -> Iterator[str]:
        """Say which occurrences are not accounted for.

        Parameters:
            period: of the interval, ms; ``None``: it is none.
        """
        skipped = self.after.skipped - self.before.skipped
        recorded = sum(unsent.number for unsent in self.unsent)
        if self.pushed and self.pushed != self.sent:
            yield f"{self.pushed} messages of {self.name} were sent, and {self.sent} count"
        if recorded != skipped:
            yield f"{recorded} runs of {self.name} are recorded as not sent, and {skipped} count as skipped"
        if period is None or self.before.nominal is None or self.after.nominal is None:
            return
        passed = (self.after.nominal - self.before.nominal) / period
        if passed != self.sent + skipped:
            what = f"{passed:g} runs of {self.name} from {self.before.nominal} on were due"
            yield f"{what}, and {self.sent} were sent and {skipped} skipped"


class Advances:
    """Watches all commits."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._story = scenario.story
        self._commit = _sha("schedule/commit").encode()
        #: The state of each entry after the last script.
        self._states: dict[bytes, bytes] = {}
        #: Commits in vain of each entry, by the second.
        self._in_vain: Counter[tuple[str, int]] = Counter()

    def forget(self) -> None:
        """Note that the server has lost data."""
        self._states = {}

    def observe(self, command: list[bytes], reply: Any) -> list[Advance]:
        """Look at one call of a script, and return what it has done with entries."""
        advances = []
        if command[1] == self._commit and isinstance(reply, list) and reply[0] == 1 and command[4] == _DUE:
            advances = list(self._read(command, reply[1:]))
        states: dict[bytes, bytes] = self._scenario.server.database.find(_STATE) or {}  # type: ignore[assignment]
        self._states = states.copy()
        return advances

    def _read(self, command: Sequence[bytes], results: Sequence[int | bytes]) -> Iterator[Advance]:
        """Check what a commit says of each entry."""
        packed = msgspec.msgpack.decode(command[-1])
        for (name, guard, after, _, commands), result in zip(packed, results, strict=True):
            before = self._states.get(name.encode(), b"")
            if not before.startswith(guard.encode()):
                continue  # The entry has changed, or the call was made again, and had no effect.
            if result == 0:
                self._note_in_vain(name)
            if result != 1 or not after:
                continue
            advance = Advance(
                name,
                EntryState.decode(before),
                EntryState.decode(after.encode()),
                [_unsent(value) for kind, _, value in commands if kind == "range"],
                sum(kind == "lpush" for kind, _, _ in commands),
            )
            if self._scenario.setup.history:
                period = None if self._jumps(advance) else self._scenario.period_of(name)
                for complaint in advance.complaints(period):
                    self._story.violate("accounted", complaint)
            yield advance

    def _jumps(self, advance: Advance) -> bool:
        """Whether runs beyond the limit of an outage may be passed over without a count.

        That happens where the last run that ``max_runs`` allows is left out: seed 98701007.
        """
        entries: Any = self._scenario.server.database.find(_ENTRIES) or {}
        definition = json.loads(entries.get(advance.name.encode(), b"{}"))
        has_limit = "limit" in definition.get("misfire", {})
        return bool(advance.left_out) and has_limit and "max_runs" in definition

    def _note_in_vain(self, name: str) -> None:
        self._in_vain[name, self._story.now // 1000] += 1
        if self._in_vain[name, self._story.now // 1000] == _MANY_IN_VAIN:
            self._story.violate("in vain", f"{name} was committed {_MANY_IN_VAIN} times in a second, and stays due")


def _unsent(value: Sequence[Any]) -> Unsent:
    _, _, _, letter, first, last, number = value
    return Unsent(OUTCOMES[letter], first, last, number)
