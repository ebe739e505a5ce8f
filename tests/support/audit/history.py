"""A history as the laws read it: its records by kind, and what they say of each entry."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

Record = dict[str, Any]

#: A record, and the line on which it stands.
Line = tuple[int, Record]

FOREVER = 10**15

KINDS = (
    *("setup", "fault", "death", "end"),
    *("call", "sent", "left out", "backfill", "term"),
    *("body", "task", "clear", "run", "success"),
    *("due", "received", "refused", "lock", "outcome"),
)


class Violation(NamedTuple):
    """A law that does not hold, for which entry, key or task, and the lines that show it."""

    law: str
    about: str
    lines: tuple[int, ...]
    what: str

    def __str__(self) -> str:
        text = f"{self.law}: {self.about}: {self.what}"
        if not self.lines:
            return text
        lines = ", ".join(map(str, self.lines))
        return f"{text} (lines {lines})"


#: A violation without the name of its law. Laws yield it.
Broken = tuple[str, tuple[int, ...], str]


@dataclass(frozen=True)
class Setup:
    """The bounds of a history.

    Parameters:
        late: ms after its nominal time by which a run has to arrive where nothing is wrong.
        slack: ms between the moment of sending and the moment at which a reader of the queue sees
            it.
        answer: ms for which a fault may keep back the answer to a beat that asks what is due.
        deaf: ms after which a beat that hears nothing knows that a pause or a freeze has ended.
        delivery: ``exactly``, or ``at least`` where a fault may send a run twice.
        strays: how many messages may come from beats that do not lead any more.
        batch: how many messages a beat may have sent last without a commit, so that they come
            again; None where that is not bounded.
        ordered: whether each entry's messages are noted in the order in which they were sent, so
            that their nominal times may not go back.
        lease: ms for which a lock may outlive its run; None where nobody looked at locks.
        takers: how many workers may have had messages when they or the server were killed.
        hands: how many messages each of them may have had.
    """

    late: int = 1000
    slack: int = 0
    answer: int = 0
    deaf: int = 0
    delivery: str = "exactly"
    strays: int = 0
    batch: int | None = None
    ordered: bool = False
    lease: int | None = None
    takers: int = 0
    hands: int = 1


class Window(NamedTuple):
    """A state that surely held from ``since`` to ``until``, and perhaps from ``maybe_since`` on and
    up to ``maybe_until``."""

    maybe_since: int
    since: int
    until: int
    maybe_until: int
    line: int

    def surely(self, instant: int) -> bool:
        return self.since <= instant < self.until

    def perhaps(self, since: int, until: int) -> bool:
        """Return whether it may have held at some instant between these two."""
        return self.maybe_since <= until and since <= self.maybe_until


@dataclass
class Definition:
    """A rule of an entry, the call that made it, and the window in which it was in force."""

    call: Record
    window: Window
    phase: int | None = None
    #: The first run of an interval whose phase nobody has said; earlier ones cannot be known.
    first: int = 0

    @property
    def rule(self) -> Record:
        rule: Record = self.call["rule"]
        return rule

    def nominal_times(self, since: int, until: int) -> list[int]:
        """Return the nominal times in this span; none where the phase is unknown."""
        if "at" in self.rule:
            return [at for at in self.rule["at"] if since <= at < until]
        if self.phase is None:
            return []
        every = self.rule["every"]
        since = max(since, self.first)
        first = since + (self.phase - since) % every
        return list(range(first, until, every))

    def has(self, nominal: int) -> bool:
        """Return whether this may be a nominal time of the rule."""
        if "at" in self.rule:
            return nominal in self.rule["at"]
        return self.phase is None or (nominal - self.phase) % self.rule["every"] == 0


class Entry:
    """All that the history says of one entry."""

    def __init__(
        self,
        name: str,
        calls: Sequence[Line],
        sent: Sequence[Line],
        left_out: Sequence[Line] = (),
    ) -> None:
        self.name = name
        self.calls = calls
        self.sent = sent
        #: Its messages by rule. Those by hand and of backfills are beside it.
        self.runs = [item for item in sent if item[1].get("by", "rule") == "rule"]
        self.left_out = left_out
        #: Nominal time of each of its runs that was sent or left out, and when, in epoch ms.
        self.handled = [(message["nominal"], message["at"]) for _, message in self.runs]
        self.handled += [(nominal, each["at"]) for _, each in left_out for nominal in each["nominals"]]
        self.removed = [window for _, window in windows(calls, "remove", ("add",))]
        self.paused = [window for _, window in windows(calls, "pause", ("resume", "remove"))]
        defining = [item for item in calls if "rule" in item[1]]
        self.definitions = [
            self._definition(call, window)
            for act in ("add", "edit")
            for call, window in windows(defining, act, ("add", "edit"))
        ]
        self.definitions.sort(key=lambda definition: definition.window.maybe_since)

    def _definition(self, call: Record, window: Window) -> Definition:
        """Return a definition. An interval without a phase takes that of its first run."""
        definition = Definition(call, until_removed(window, self.calls), call["rule"].get("phase"))
        if "every" not in definition.rule or definition.phase is not None:
            return definition
        for _, message in self.runs:
            # A beat whose clock is ahead may have sent it by the rule before this one.
            instants = (message["nominal"], message["at"])
            if all(definition.window.surely(instant) for instant in instants):
                definition.phase = message["nominal"]
                definition.first = message["nominal"]
                break
        return definition

    def definition_at(self, nominal: int) -> Definition | None:
        """Return the definition that was surely in force at this instant."""
        in_force = (each for each in self.definitions if each.window.surely(nominal))
        return next(in_force, None)


class History:
    """A history, sorted by kind and by entry. Lines are counted from 1."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._lines: dict[str, list[Line]] = {kind: [] for kind in KINDS}
        for line, record in enumerate(records, 1):
            if record["kind"] not in self._lines:
                raise ValueError(f"line {line}: {record['kind']!r} is no kind of record")
            self._lines[record["kind"]].append((line, record))
        bounds: Record = {}
        for setup in self.records("setup"):
            bounds |= setup
        bounds.pop("kind", None)
        self.setup = Setup(**bounds)
        self.faults = self.records("fault")
        self.end = max((record["at"] for record in self.records("end")), default=0)
        self.entries = self._read_entries()

    def lines(self, kind: str) -> list[Line]:
        """Return the records of this kind with their lines, in the order of the history."""
        return self._lines[kind]

    def records(self, kind: str) -> list[Record]:
        """Return the records of this kind, in the order of the history."""
        return [record for _, record in self._lines[kind]]

    @property
    def is_exact(self) -> bool:
        """Whether no run may be sent twice."""
        return self.setup.delivery == "exactly"

    def _read_entries(self) -> dict[str, Entry]:
        calls: dict[str, list[Line]] = defaultdict(list)
        sent: dict[str, list[Line]] = defaultdict(list)
        left_out: dict[str, list[Line]] = defaultdict(list)
        for item in self.lines("call"):
            if item[1]["act"] not in ("freeze", "thaw"):
                calls[item[1]["entry"]].append(item)
        for item in self.lines("sent"):
            sent[item[1]["entry"]].append(item)
        for item in self.lines("left out"):
            left_out[item[1]["entry"]].append(item)
        return {name: Entry(name, calls[name], sent[name], left_out[name]) for name in [*calls, *sent, *left_out]}

    # -- what keeps an entry from running ----------------------------------------------------------

    @cached_property
    def _freezes(self) -> list[tuple[Record, Window]]:
        return [*windows(self.lines("call"), "freeze", ("thaw",))]

    @cached_property
    def _last_thaw(self) -> int:
        thaws = [call for call in self.records("call") if call["act"] == "thaw"]
        return max(map(returned, thaws), default=0)

    def frozen(self, entry: Entry) -> list[Window]:
        """Return the windows in which an entry was frozen."""
        return [
            window
            for freeze, window in self._freezes
            if freeze.get("entries") is None or entry.name in freeze["entries"]
        ]

    def held(self, entry: Entry) -> list[Window]:
        """Return the windows in which an entry was kept from running."""
        return [*entry.paused, *self.frozen(entry), *entry.removed]

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """The times of all faults, from and to; none overlaps the next one."""
        spans: list[tuple[int, int]] = []
        for began, ended in sorted((fault["began"], fault["ended"]) for fault in self.faults):
            if spans and began <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(spans[-1][1], ended))
            else:
                spans.append((began, ended))
        return spans

    def is_faulty(self, since: int, until: int) -> bool:
        """Return whether something was broken at some instant between these two."""
        index = bisect_right(self.spans, (until, FOREVER)) - 1
        return index >= 0 and since <= self.spans[index][1]

    def is_away(self, since: int, until: int) -> bool:
        """Return whether nobody could write to the server at some instant between these two."""
        away = [fault for fault in self.faults if fault.get("away")]
        return any(fault["began"] <= until and since <= fault["ended"] for fault in away)

    def kept_back(self, nominal: int) -> int:
        """Return the latest arrival of a run, which faults that follow each other may delay."""
        return end_of_quiet(self.spans, nominal, self.setup.late)

    def undisturbed(self, entry: Entry, since: int, length: int) -> int:
        """Return the end of the first time of this length in which nothing was wrong.

        It begins at an instant, or at the end of a fault or of a window in which the entry was
        held. No record says which freeze a thaw has ended, so each may have held to the last thaw.
        """
        spans = [*self.spans]
        for window in (*entry.paused, *entry.removed):
            spans.append((window.maybe_since, window.maybe_until))
        for window in self.frozen(entry):
            spans.append((window.maybe_since, max(window.maybe_until, self._last_thaw)))
        return end_of_quiet(sorted(spans), since, length)

    # -- messages ----------------------------------------------------------------------------------

    @cached_property
    def arrivals(self) -> list[int]:
        """When the messages of all entries arrived, in order."""
        return sorted(message["at"] for message in self.records("sent"))

    def earliest(self, message: Record) -> int:
        """Return the first instant at which a message may have been sent."""
        return int(message.get("since", message["at"] - self.setup.slack))


def end_of_quiet(spans: Iterable[tuple[int, int]], since: int, length: int) -> int:
    """Return the end of the first time of this length, from an instant on, beside these spans."""
    for began, ended in spans:
        if began <= since + length:
            since = max(since, ended)
    return since + length


# -- windows that calls open and close -------------------------------------------------------------


def windows(
    calls: Sequence[Line],
    begins: str,
    ends: Sequence[str],
) -> Iterator[tuple[Record, Window]]:
    """Yield the windows that calls of one act open and that later calls close."""
    for line, call in calls:
        if call["act"] != begins or call.get("ok") is False:
            continue
        later = [other for _, other in calls if other["act"] in ends and closes(other, call)]
        # A call that began before this one had returned may have come before it, and then ends nothing. A thaw that
        # names its freeze comes after it.
        since = returned(call) if call.get("ok") else call["began"]
        certain = [other for other in later if other.get("ok") and (other.get("freeze") or other["began"] >= since)]
        window = Window(
            maybe_since=call["began"],
            since=returned(call) if call.get("ok") else FOREVER,
            until=min((other["began"] for other in later), default=FOREVER),
            maybe_until=min((returned(other) for other in certain), default=FOREVER),
            line=line,
        )
        yield call, window


def closes(later: Record, earlier: Record) -> bool:
    """Return whether a call may end what another one has begun."""
    if later is earlier or later.get("ok") is False:
        return False
    may_be_later = returned(later) >= earlier["began"]
    return may_be_later and later.get("freeze") in (None, earlier.get("freeze"))


def returned(call: Record) -> int:
    return FOREVER if call["returned"] is None else int(call["returned"])


def until_removed(window: Window, calls: Sequence[Line]) -> Window:
    """Return the same window, closed by the first removal in it."""
    for _, call in calls:
        if call["act"] != "remove" or call.get("ok") is False:
            continue
        if window.maybe_since <= returned(call) and call["began"] < window.until:
            window = window._replace(until=max(call["began"], window.maybe_since))
        if call.get("ok") and window.since <= returned(call) < window.maybe_until:
            window = window._replace(maybe_until=returned(call))
    return window
