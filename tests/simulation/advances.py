"""Check of commits: each occurrence that a commit advances an entry past was sent, or counts as skipped.

A commit has the new state of each entry. The check compares it with the messages that the commit sends, and with
the runs that the commit records as skipped or left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from redbeat_lite._base.json_values import loads_as
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

#: If this many commits within a second do not advance an entry that nobody has edited, the beat is in a busy loop.
#: One or two are normal: another task may acquire the once-lock between the plan and the commit.
_MANY_IN_VAIN = 5


class UnsentRange(NamedTuple):
    """Range of runs that a commit records as not sent, all with the same outcome."""

    outcome: str
    #: Nominal times of the first and the last run, epoch ms.
    first: int
    last: int
    #: Number of runs.
    number: int

    def nominal_times(self) -> list[int]:
        """Return the nominal times of these runs, if they are equally far apart."""
        period = (self.last - self.first) // max(self.number - 1, 1)
        return [self.first + n * period for n in range(self.number)]


class Advance(NamedTuple):
    """Change of one entry by a commit."""

    name: str
    before: EntryState
    after: EntryState
    unsent_ranges: list[UnsentRange]
    #: Number of messages that the commit has put into a queue.
    pushed_count: int

    @property
    def sent_count(self) -> int:
        """Number of runs that count as sent."""
        return self.after.count - self.before.count

    @property
    def left_out_ranges(self) -> list[UnsentRange]:
        """Runs that were not sent because another task had the once-lock."""
        return [unsent for unsent in self.unsent_ranges if unsent.outcome == "left out"]

    def complaints(self, period: int | None) -> Iterator[str]:
        """Yield what is wrong with the counts of this advance.

        Parameters:
            period: interval of the entry, in ms; ``None``: do not check how many occurrences the entry has passed.
        """
        skipped = self.after.skipped - self.before.skipped
        recorded = sum(unsent.number for unsent in self.unsent_ranges)
        # If messages go one by one, the commit pushes none.
        if self.pushed_count and self.pushed_count != self.sent_count:
            yield f"{self.pushed_count} messages of {self.name} were sent, and {self.sent_count} count"
        if recorded != skipped:
            yield f"{recorded} runs of {self.name} are recorded as not sent, and {skipped} count as skipped"
        if period is None or self.before.nominal is None or self.after.nominal is None:
            return
        passed = (self.after.nominal - self.before.nominal) / period
        if passed != self.sent_count + skipped:
            what = f"{passed:g} runs of {self.name} from {self.before.nominal} on were due"
            yield f"{what}, and {self.sent_count} were sent and {skipped} skipped"


class Advances:
    """Watches all commits."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._story = scenario.story
        self._commit = _sha("schedule/commit").encode()
        #: The state of each entry after the last script.
        self._states: dict[bytes, bytes] = {}
        #: Number of commits that did not advance an entry, by its name and the second.
        self._in_vain: Counter[tuple[str, int]] = Counter()

    def forget(self) -> None:
        """Note that the server has lost data."""
        self._states = {}

    def observe(self, command: list[bytes], reply: Any) -> list[Advance]:
        """Check one call of a script. If it is a commit, return the entries that it has advanced."""
        advances = []
        # Commits of backfills have another key here.
        if command[1] == self._commit and isinstance(reply, list) and reply[0] == 1 and command[4] == _DUE:
            advances = list(self._read(command, reply[1:]))
        states: dict[bytes, bytes] = self._scenario.server.database.find(_STATE) or {}  # type: ignore[assignment]
        self._states = states.copy()
        return advances

    def _read(self, command: Sequence[bytes], results: Sequence[int | bytes]) -> Iterator[Advance]:
        """Check what a commit has done with each entry, and yield it."""
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
                period = None if self._may_pass_uncounted(advance) else self._scenario.period_of(name)
                for complaint in advance.complaints(period):
                    self._story.violate("accounted", complaint)
            yield advance

    def _may_pass_uncounted(self, advance: Advance) -> bool:
        """Return whether the entry may pass runs that count neither as sent nor as skipped.

        These are the runs beyond the misfire limit, if the last run that ``max_runs`` allows is left out
        (seed 98701007).
        """
        entries: Any = self._scenario.server.database.find(_ENTRIES) or {}
        definition = loads_as(dict, entries.get(advance.name.encode()))
        has_limit = "limit" in definition.get("misfire", {})
        return bool(advance.left_out_ranges) and has_limit and "max_runs" in definition

    def _note_in_vain(self, name: str) -> None:
        self._in_vain[name, self._story.now // 1000] += 1
        if self._in_vain[name, self._story.now // 1000] == _MANY_IN_VAIN:
            self._story.violate("in vain", f"{name} was committed {_MANY_IN_VAIN} times in a second, and stays due")


def _unsent(value: Sequence[Any]) -> UnsentRange:
    _, _, _, letter, first, last, number = value
    return UnsentRange(OUTCOMES[letter], first, last, number)
