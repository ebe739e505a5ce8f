"""Checks a history of a schedule against its laws. It knows nothing of the package.

A history is a list of records, one JSON object a line. All instants are epoch milliseconds of one
clock. The fields of a record depend on its ``kind``:

``setup``
    ``late``: ms after its nominal time by which a run has to arrive where nothing is wrong.
    ``slack``: ms between the moment of sending and the moment at which a reader of the queue
    sees it.
    ``delivery``: ``"exactly"``, or ``"at least"`` where a fault may send a run twice.
    ``strays``: how many messages may come from beats that do not lead any more; 0 by default.
    ``ordered``: whether each entry's messages are noted in the order in which they were sent, so
    that their nominal times may not go back.
``call``
    What somebody asked for: ``act``, ``entry``, ``began``, ``returned`` (``null``: never), ``ok``
    (``null``: unknown, as the reply was lost). ``add`` and ``edit`` have a ``rule``, and may have
    ``misfire`` (``coalesce``, ``skip`` or ``all``), ``grace`` (ms; of ``skip`` 5000 or a quarter of
    the interval by default), ``limit`` and ``max_runs``: an edit has to say them again. An edit may
    have ``if_version``, and ``version`` as returned. ``pause``, ``resume`` and ``remove`` have no more
    fields. A freeze has no entry and is for all, or it has a list ``entries``. A freeze and the thaw that
    ends it may have the same ``freeze``; any other thaw ends all of them.
    Adds and edits may have ``punctual``: ms after its nominal time by which a run comes that is
    not due in a fault; and ``silent``: ms from one message of the entry to the next, at most.
``fault``
    From ``began`` to ``ended`` something was broken, so that runs may be late. With ``recovered``
    and ``back``, some message has to come within ``back`` ms of the instant ``recovered``.
``sent``
    A message arrived in a queue: ``entry``, ``nominal``, ``id``, ``at``, and ``by``: ``"rule"``,
    ``"hand"`` or ``"backfill"``, then with its name ``backfill``. With ``sender``, the process that
    sent it; and with ``since``, the instant before which it was not in the queue, in place of ``slack``.
``backfill``
    What the product said of one at the end: its name ``backfill``, ``entry``, first and last nominal time
    ``start`` and ``end``, how many runs it has ``sent``, and ``ended``: ``"done"`` if it has sent them all.
``term``
    The process ``sender`` ``began`` to lead. Where terms are noted, only leaders may send.
``body``, ``task``, ``clear``, ``run``, ``success``
    Task bodies and pipelines, with laws of their own: see `tests.support.audit_bodies`.
``due``, ``received``, ``refused``, ``lock``, ``death``, ``outcome``
    What became of runs, and what the product recorded: see `tests.support.audit_outcomes`.
``end``
    The watching ended ``at`` this instant.

A rule is ``{"every": ms}`` with an optional ``"phase"``, or ``{"at": [ms, …]}``.

Where two calls overlap, or the reply to one was lost, either order is accepted. So the checker never
complains of a sound history. It may miss a fault that no outsider could prove.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.support.audit_bodies import WORK_LAWS, Record, Violation, Work
from tests.support.audit_outcomes import OUTCOME_LAWS, Outcomes

__all__ = ["History", "Record", "Violation", "check", "violations"]

FOREVER = 10**15


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
        """Whether it may have held at some instant between these two."""
        return self.maybe_since <= until and since <= self.maybe_until


@dataclass
class Definition:
    """A rule of an entry, and the window in which it was in force."""

    rule: Record
    call: Record
    window: Window
    phase: int | None = None
    #: The first run of an interval whose phase nobody has said; earlier ones cannot be known.
    first: int = 0

    def nominal_times(self, since: int, until: int) -> list[int]:
        """The nominal times in this span; none where the phase of an interval is unknown."""
        if "at" in self.rule:
            return [at for at in self.rule["at"] if since <= at < until]
        if self.phase is None:
            return []
        every = self.rule["every"]
        since = max(since, self.first)
        first = since + (self.phase - since) % every
        return list(range(first, until, every))

    def has(self, nominal: int) -> bool:
        if "at" in self.rule:
            return nominal in self.rule["at"]
        return self.phase is None or (nominal - self.phase) % self.rule["every"] == 0


@dataclass
class Entry:
    """All that the history says of one entry."""

    name: str
    calls: list[tuple[int, Record]] = field(default_factory=list)
    sent: list[tuple[int, Record]] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    removed: list[Window] = field(default_factory=list)
    paused: list[Window] = field(default_factory=list)

    def by_rule(self) -> list[tuple[int, Record]]:
        return [(line, record) for line, record in self.sent if record.get("by", "rule") == "rule"]


class History:
    """A history, sorted by entry. Lines are counted from 1."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.entries: dict[str, Entry] = {}
        self.work = Work()
        self.faults = self.work.faults
        self.outcomes = Outcomes(self.work)
        self.terms: list[Record] = []
        self.backfills: list[tuple[int, Record]] = []
        self.frozen: list[tuple[Window, frozenset[str] | None]] = []
        self.late, self.slack, self.exactly = 1000, 0, True
        self.strays = 0
        self.ordered = False
        self.end = 0
        #: The end of the last thaw.
        self.thawed = 0
        freezes: list[tuple[int, Record]] = []
        for line, record in enumerate(records, 1):
            self._take(line, record, freezes)
        self._read_freezes(freezes)
        for entry in self.entries.values():
            self._read_entry(entry)

    @classmethod
    def of_file(cls, path: Path) -> History:
        return cls(json.loads(line) for line in path.read_text().splitlines())

    def _take(self, line: int, record: Record, freezes: list[tuple[int, Record]]) -> None:
        kind = record["kind"]
        if kind == "setup":
            self.late = record.get("late", self.late)
            self.slack = record.get("slack", self.slack)
            if "delivery" in record:
                self.exactly = record["delivery"] == "exactly"
            self.strays = record.get("strays", self.strays)
            self.ordered = record.get("ordered", self.ordered)
            self.outcomes.set_up(record)
        elif kind == "call" and record["act"] in ("freeze", "thaw"):
            freezes.append((line, record))
        elif kind == "call":
            self._entry(record["entry"]).calls.append((line, record))
        elif kind == "sent":
            self._entry(record["entry"]).sent.append((line, record))
        elif kind in Work.KINDS:
            self.work.take(line, record)
        elif kind in Outcomes.KINDS:
            self.outcomes.take(line, record)
        elif kind == "death":
            self.work.deaths[record["pid"]] = record["at"]
        elif kind == "fault":
            self.faults.append(record)
        elif kind == "backfill":
            self.backfills.append((line, record))
        elif kind == "term":
            self.terms.append(record)
        elif kind == "end":
            self.end = record["at"]
        else:
            raise ValueError(f"line {line}: {kind!r} is no kind of record")

    def _entry(self, name: str) -> Entry:
        return self.entries.setdefault(name, Entry(name))

    def _read_freezes(self, calls: Sequence[tuple[int, Record]]) -> None:
        for freeze, window in windows(calls, "freeze", ("thaw",)):
            names = freeze.get("entries")
            self.frozen.append((window, None if names is None else frozenset(names)))
        self.thawed = max((returned(call) for _, call in calls if call["act"] == "thaw"), default=0)

    def _read_entry(self, entry: Entry) -> None:
        entry.removed = [window for _, window in windows(entry.calls, "remove", ("add",))]
        entry.paused = [window for _, window in windows(entry.calls, "pause", ("resume", "remove"))]
        defining = [(line, call) for line, call in entry.calls if "rule" in call]
        for act in ("add", "edit"):
            for call, window in windows(defining, act, ("add", "edit")):
                window = until_removed(window, entry.calls)
                definition = Definition(call["rule"], call, window, call["rule"].get("phase"))
                entry.definitions.append(definition)
        entry.definitions.sort(key=lambda definition: definition.window.maybe_since)
        for definition in entry.definitions:
            learn_phase(definition, entry)

    def held(self, entry: Entry) -> list[Window]:
        """The windows in which an entry was kept from running."""
        frozen = [window for window, names in self.frozen if names is None or entry.name in names]
        return [*entry.paused, *frozen, *entry.removed]

    def earliest(self, message: Record) -> int:
        """The first instant at which a message may have been sent."""
        return int(message.get("since", message["at"] - self.slack))

    def messages(self) -> list[tuple[int, Record]]:
        """All messages, in the order in which they were noted."""
        messages = [item for entry in self.entries.values() for item in entry.sent]
        return sorted(messages, key=lambda item: item[0])

    def kept_back(self, nominal: int) -> int:
        """The latest instant at which a run may arrive, because of faults that follow each other."""
        until = nominal + self.late
        for fault in sorted(self.faults, key=lambda fault: int(fault["began"])):
            if fault["began"] <= until and nominal - self.late <= fault["ended"]:
                until = max(until, fault["ended"] + self.late)
        return until

    def is_faulty(self, since: int, until: int) -> bool:
        """Whether something was broken at some instant between these two."""
        index = bisect_right(self.spans, (until, FOREVER)) - 1
        return index >= 0 and since <= self.spans[index][1]

    def undisturbed(self, entry: Entry, since: int, length: int) -> int:
        """The end of the first time of this length, from an instant on or from the end of something
        that may have kept the entry from running. Nobody says which freeze a thaw has ended, so each
        may have held to the last one."""
        held = [(window.maybe_since, window.maybe_until) for window in (*entry.paused, *entry.removed)]
        frozen = [window for window, names in self.frozen if names is None or entry.name in names]
        held += [(window.maybe_since, max(window.maybe_until, self.thawed)) for window in frozen]
        for began, ended in sorted([*self.spans, *held]):
            if began <= since + length:
                since = max(since, ended)
        return since + length

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


def windows(calls: Sequence[tuple[int, Record]], begins: str, ends: Sequence[str]) -> Iterator[tuple[Record, Window]]:
    """The windows that calls of one act open and that later calls close."""
    for line, call in calls:
        if call["act"] != begins or call.get("ok") is False:
            continue
        later = [other for _, other in calls if other["act"] in ends and closes(other, call)]
        certain = [other for other in later if other.get("ok")]
        is_certain = call.get("ok") and call["returned"] is not None
        yield (
            call,
            Window(
                call["began"],
                call["returned"] if is_certain else FOREVER,
                min((other["began"] for other in later), default=FOREVER),
                min((returned(other) for other in certain), default=FOREVER),
                line,
            ),
        )


def closes(later: Record, earlier: Record) -> bool:
    """Whether a call may end what another one has begun."""
    is_its_own = later.get("freeze") in (None, earlier.get("freeze"))
    return later is not earlier and is_its_own and after(later, earlier)


def after(later: Record, earlier: Record) -> bool:
    """Whether a call may have taken effect after another one."""
    return later.get("ok") is not False and returned(later) >= earlier["began"]


def returned(call: Record) -> int:
    return FOREVER if call["returned"] is None else int(call["returned"])


def until_removed(window: Window, calls: Sequence[tuple[int, Record]]) -> Window:
    """The same window, closed by the first removal in it."""
    for _, call in calls:
        if call["act"] == "remove" and call.get("ok") is not False:
            if window.maybe_since <= returned(call) and call["began"] < window.until:
                until = max(call["began"], window.maybe_since)
                window = window._replace(until=until)
            if call.get("ok") and window.since <= returned(call) < window.maybe_until:
                window = window._replace(maybe_until=returned(call))
    return window


def learn_phase(definition: Definition, entry: Entry) -> None:
    """Take the phase of an interval from its first run, where nobody has said it."""
    if "every" not in definition.rule or definition.phase is not None:
        return
    window = definition.window
    for _, message in entry.by_rule():
        # A beat whose clock is ahead may have sent it by the rule before this one.
        if window.surely(message["nominal"]) and window.surely(message["at"]):
            definition.phase = definition.first = message["nominal"]
            return


# -- the laws --------------------------------------------------------------------------------------


def sent_once(history: History, entry: Entry) -> Iterator[Violation]:
    """Each nominal time is sent at most once, and at least once unless something excuses it. If it
    may be sent again, then under the same id."""
    law = "sent once"
    lines: dict[int, list[int]] = defaultdict(list)
    ids: dict[int, str] = {}
    for line, message in entry.by_rule():
        lines[message["nominal"]].append(line)
        if ids.setdefault(message["nominal"], message["id"]) != message["id"]:
            what = f"{message['nominal']} has more than one id"
            yield Violation("one id", entry.name, tuple(lines[message["nominal"]]), what)
        if message["at"] < message["nominal"] - history.slack:
            yield Violation(law, entry.name, (line,), f"{message['nominal']} was sent early")
    if history.exactly:
        for nominal, doubles in lines.items():
            if len(doubles) > 1:
                what = f"{nominal} was sent {len(doubles)} times"
                yield Violation(law, entry.name, tuple(doubles), what)
    for definition in entry.definitions:
        for nominal in required(history, definition):
            if nominal not in lines and not is_excused(history, entry, definition, nominal):
                yield Violation(law, entry.name, (definition.window.line,), f"{nominal} was never sent")


def required(history: History, definition: Definition) -> list[int]:
    """Nominal times that surely came while the definition was in force, and are old enough."""
    until = min(definition.window.until, history.end) - history.late
    return definition.nominal_times(definition.window.since, until)


def is_excused(history: History, entry: Entry, definition: Definition, nominal: int) -> bool:
    """Whether a nominal time may have been left out: the entry was held, it had had all of its runs,
    or the run was late and its misfire policy lets it go."""
    deadline = nominal + history.late
    # A fault may have kept the run back until the entry was held.
    kept_back = history.kept_back(nominal)
    if any(window.perhaps(nominal, kept_back) for window in history.held(entry)):
        return True
    if is_used_up(entry, definition):
        return True
    policy = definition.call.get("misfire", "coalesce")
    bounds = definition.call.get("grace"), definition.call.get("limit")
    if policy == "all" and bounds == (None, None):
        # A fault that had not ended in time may still keep the run back, or may have done so until
        # the entry was edited or removed.
        until = min(definition.window.until, history.end)
        return history.is_faulty(until - history.late, until)
    if not history.is_faulty(nominal - history.late, deadline):
        return False
    if policy == "coalesce" and definition.call.get("grace") is None:
        return has_substitute(history, entry, definition, nominal)
    return True


def is_used_up(entry: Entry, definition: Definition) -> bool:
    """Whether an entry has had all of its runs since it was added."""
    limit = definition.call.get("max_runs")
    if limit is None:
        return False
    began = [call["began"] for _, call in entry.calls if call["act"] == "add" and call.get("ok") is not False]
    since = max((each for each in began if each <= definition.window.maybe_since), default=0)
    return len({message["nominal"] for _, message in entry.by_rule() if message["at"] >= since}) >= limit


def has_substitute(history: History, entry: Entry, definition: Definition, nominal: int) -> bool:
    """Whether a later run stands for one that a fault kept back; or whether there was no time for it."""
    until = history.undisturbed(entry, nominal, history.late)
    if until > min(definition.window.until, history.end):
        return True
    return any(nominal < message["nominal"] <= until for _, message in entry.by_rule())


def first_run(history: History, entry: Entry) -> Iterator[Violation]:
    """An interval without a phase has its first run within one interval, or that long after a fault
    or a pause in it."""
    for definition in entry.definitions:
        if "every" not in definition.rule or "phase" in definition.rule or is_used_up(entry, definition):
            continue
        since = definition.window.since
        until = history.undisturbed(entry, since, definition.rule["every"] + history.late)
        if until > min(definition.window.until, history.end):
            continue
        if not any(since <= message["at"] <= until for _, message in entry.by_rule()):
            what = f"no run between {since} and {until}"
            yield Violation("first run", entry.name, (definition.window.line,), what)


def punctual(history: History, entry: Entry) -> Iterator[Violation]:
    """A run that is not due in a fault comes in time, where the definition says what that is."""
    for line, message in entry.by_rule():
        nominal = message["nominal"]
        definition = definition_at(entry, nominal)
        bound = None if definition is None else definition.call.get("punctual")
        if bound is None or history.is_faulty(nominal, nominal):
            continue
        delay = message["at"] - nominal
        if delay > bound:
            what = f"{nominal} came {delay} ms late, and {bound} ms are allowed"
            yield Violation("punctual", entry.name, (line,), what)


def silent(history: History, entry: Entry) -> Iterator[Violation]:
    """No entry is silent for longer than its definition says."""
    bounds = [definition.call["silent"] for definition in entry.definitions if "silent" in definition.call]
    if not bounds:
        return
    arrivals = sorted((message["at"], line) for line, message in entry.sent)
    arrivals.append((history.end, 0))
    for (before, line), (next_arrival, _) in pairwise(arrivals):
        pause = next_arrival - before
        if pause > max(bounds):
            what = f"nothing came for {pause} ms, and {max(bounds)} ms are allowed"
            yield Violation("silent", entry.name, (line,), what)


def in_order(history: History, entry: Entry) -> Iterator[Violation]:
    """An entry's runs are sent in the order of their nominal times, where the history shows it."""
    for (last_line, last), (line, message) in pairwise(entry.by_rule()):
        if history.ordered and message["nominal"] < last["nominal"]:
            what = f"{message['nominal']} was sent after {last['nominal']}"
            yield Violation("in order", entry.name, (last_line, line), what)


def old_rule(history: History, entry: Entry) -> Iterator[Violation]:
    """No run by an old rule after an edit has returned, and none of an entry whose adding was refused."""
    for line, message in entry.by_rule():
        began = history.earliest(message)
        possible = [each for each in entry.definitions if each.window.perhaps(began, message["at"])]
        is_refused = not entry.definitions and any(call["act"] == "add" for _, call in entry.calls)
        if is_refused and not any(window.surely(began) for window in entry.removed):
            what = f"{message['nominal']} was sent, and there was no such entry"
            yield Violation("old rule", entry.name, (line,), what)
        if possible and not any(each.has(message["nominal"]) for each in possible):
            last = possible[-1]
            what = f"{message['nominal']} is no time of its rule at {message['at']}"
            yield Violation("old rule", entry.name, (last.window.line, line), what)


def held_entries(history: History, entry: Entry) -> Iterator[Violation]:
    """No run while an entry is paused or frozen, or after its removal."""
    for window in history.held(entry):
        for line, message in entry.by_rule():
            if window.surely(history.earliest(message)) and window.surely(message["at"]):
                what = f"{message['nominal']} was sent at {message['at']}"
                yield Violation("held entries", entry.name, (window.line, line), what)


def lost_updates(history: History, entry: Entry) -> Iterator[Violation]:
    """``if_version`` loses no update: of two edits of one version, one is refused."""
    law = "lost updates"
    edits: dict[int, list[int]] = defaultdict(list)
    newest: tuple[int, int] = (0, 0)
    for line, call in sorted(entry.calls, key=lambda item: returned(item[1])):
        if call["act"] in ("add", "remove"):
            edits.clear()
            newest = (0, 0)
        if not call.get("ok") or "if_version" not in call:
            continue
        if call["version"] == call["if_version"]:
            continue  # It changed nothing.
        edits[call["if_version"]].append(line)
        if call["if_version"] < newest[0] and call["began"] > newest[1]:
            what = f"an edit of version {call['if_version']} overwrote version {newest[0]}"
            yield Violation(law, entry.name, (line,), what)
        newest = max(newest, (call["version"], returned(call)))
    for version, lines in edits.items():
        if len(lines) > 1:
            what = f"{len(lines)} edits of version {version} succeeded"
            yield Violation(law, entry.name, tuple(lines), what)


def max_runs(history: History, entry: Entry) -> Iterator[Violation]:
    """``max_runs`` is exact: never one run more, and none fewer if there was time for all."""
    for definition in entry.definitions:
        limit = definition.call.get("max_runs")
        is_certain = definition.call.get("ok") is True
        if limit is None or definition.call["act"] != "add" or not is_certain:
            continue
        window = definition.window
        runs = {
            message["nominal"]: line
            for line, message in entry.by_rule()
            if window.perhaps(history.earliest(message), message["at"])
        }
        counted = {
            message["nominal"]
            for _, message in entry.by_rule()
            if message["nominal"] in runs and surely_counts(history, entry, message)
        }
        if len(counted) > limit:
            what = f"{len(runs)} runs, and the limit is {limit}"
            yield Violation("max_runs", entry.name, (window.line, *runs.values()), what)
        due = [
            nominal
            for nominal in required(history, definition)
            if not any(held.perhaps(nominal, nominal) for held in history.held(entry))
        ]
        has_time = not history.is_faulty(window.since, history.end) and len(due) >= limit
        if has_time and len(runs) < limit:
            what = f"{len(runs)} runs, {len(due)} were due, and the limit is {limit}"
            yield Violation("max_runs", entry.name, (window.line,), what)


def surely_counts(history: History, entry: Entry, message: Record) -> bool:
    """Whether a run surely counts. Where a message is sent before the schedule notes it, a fault or an edit
    between the two leaves it out."""
    if history.exactly:
        return True
    since, until = message["at"] - history.slack, message["at"] + history.slack
    was_edited = any(call["began"] <= until and since <= returned(call) for _, call in entry.calls)
    return not was_edited and not history.is_faulty(since, until)


def misfires(history: History, entry: Entry) -> Iterator[Violation]:
    """Missed runs follow the declared misfire policy."""
    law = "misfires"
    for line, message in entry.by_rule():
        definition = definition_at(entry, message["nominal"])
        if definition is None:
            continue
        policy = definition.call.get("misfire", "coalesce")
        sent_at, nominal = history.earliest(message), message["nominal"]
        grace = definition.call.get("grace")
        if grace is None and policy == "skip":
            grace = default_grace(definition)
        if grace is not None and sent_at > nominal + grace + history.late:
            what = f"{nominal} was sent {sent_at - nominal} ms late, and the grace is {grace} ms"
            yield Violation(law, entry.name, (line,), what)
        if policy == "coalesce":
            times = definition.nominal_times(nominal + 1, sent_at - history.late)
            if len(times) > 1 and definition.window.surely(sent_at):
                what = f"{nominal} was sent at {sent_at}, though {times[-1]} was due by then"
                yield Violation(law, entry.name, (line,), what)
    yield from beyond_limit(history, entry)


def beyond_limit(history: History, entry: Entry) -> Iterator[Violation]:
    """Of the runs that an outage has made late, no more than the limit are sent, all at one moment."""
    late: dict[int, list[tuple[int, Definition | None]]] = defaultdict(list)
    for line, message in entry.by_rule():
        if message["at"] > message["nominal"] + history.slack + history.late:
            late[message["at"]].append((line, definition_at(entry, message["nominal"])))
    for at, messages in late.items():
        definition = messages[0][1]
        is_one = definition is not None and all(other is definition for _, other in messages)
        limit = definition.call.get("limit") if is_one and definition is not None else None
        if limit is not None and len(messages) > limit:
            what = f"{len(messages)} late runs were sent at {at}, and the limit is {limit}"
            yield Violation("misfires", entry.name, tuple(line for line, _ in messages), what)


def default_grace(definition: Definition) -> int:
    """How late in ms a run may be under ``skip``, where the definition does not say it."""
    every = definition.rule.get("every", FOREVER)
    return min(5000, int(every) // 4)


def definition_at(entry: Entry, nominal: int) -> Definition | None:
    return next((each for each in entry.definitions if each.window.surely(nominal)), None)


def goes_on(history: History) -> Iterator[Violation]:
    """After a fault with a bound ``back``, some message comes within that time."""
    arrivals = sorted(message["at"] for _, message in history.messages())
    for fault in history.faults:
        if "back" not in fault:
            continue
        recovered = fault["recovered"]
        index = bisect_left(arrivals, recovered)
        took = arrivals[index] - recovered if index < len(arrivals) else FOREVER
        if took > fault["back"]:
            what = f"the next message came after {took} ms, and {fault['back']} ms are allowed"
            yield Violation("goes on", str(fault.get("what", "a fault")), (), what)


def one_sender(history: History) -> Iterator[Violation]:
    """No message comes from a process that does not lead."""
    strays = stray_lines(history)
    if len(strays) > history.strays:
        what = f"{len(strays)} messages of a process that did not lead"
        yield Violation("one sender", "all entries", tuple(strays[:20]), what)


def stray_lines(history: History) -> list[int]:
    """Return the lines of messages from processes that did not lead any more.

    Such a message comes after one of a later leader, and its sender has begun no new term since.
    Where no terms are noted, there are no such messages.
    """
    if not history.terms:
        return []
    terms = sorted(history.terms, key=lambda term: int(term["began"]))
    strays = []
    term = -1
    for line, message in history.messages():
        sender = message["sender"]
        is_by_leader = term >= 0 and terms[term]["sender"] == sender
        if is_by_leader or message.get("by", "rule") != "rule":
            continue
        later = range(term + 1, len(terms))
        following = next((number for number in later if terms[number]["sender"] == sender), None)
        if following is None or message["at"] < terms[following]["began"]:
            strays.append(line)
        else:
            term = following
    return strays


def backfills(history: History) -> Iterator[Violation]:
    """A backfill sends each of its runs once, and says that it is done when all are sent."""
    law = "backfills"
    sent: dict[str, list[tuple[int, Record]]] = defaultdict(list)
    for line, message in history.messages():
        if "backfill" in message:
            sent[message["backfill"]].append((line, message))
    for line, backfill in history.backfills:
        messages = sent[backfill["backfill"]]
        about = f"{backfill['backfill']} of {backfill['entry']}"
        nominals = [message["nominal"] for _, message in messages]
        lines = (line, *(message_line for message_line, _ in messages))
        if history.exactly and len(nominals) > len(set(nominals)):
            yield Violation(law, about, lines, f"sent {len(nominals)} messages for {len(set(nominals))} runs")
        is_inside = [backfill["start"] <= nominal <= backfill["end"] for nominal in nominals]
        if history.exactly and not all(is_inside):
            yield Violation(law, about, lines, "sent runs outside of its span")
        is_done = backfill["ended"] == "done"
        if history.exactly and is_done and len(set(nominals)) != backfill["sent"]:
            what = f"says that it has sent {backfill['sent']} runs, and {len(set(nominals))} arrived"
            yield Violation(law, about, lines, what)


ENTRY_LAWS: tuple[Callable[[History, Entry], Iterator[Violation]], ...] = (
    sent_once,
    first_run,
    punctual,
    silent,
    in_order,
    old_rule,
    held_entries,
    lost_updates,
    max_runs,
    misfires,
)


BEAT_LAWS: tuple[Callable[[History], Iterator[Violation]], ...] = (
    goes_on,
    one_sender,
    backfills,
)


def violations(history: History) -> list[Violation]:
    """Everything that breaks a law, in the order of the laws."""
    by_entry = [
        violation for law in ENTRY_LAWS for entry in history.entries.values() for violation in law(history, entry)
    ]
    of_beats = [violation for law in BEAT_LAWS for violation in law(history)]
    of_work = [violation for law in WORK_LAWS for violation in law(history.work)]
    of_runs = [violation for law in OUTCOME_LAWS for violation in law(history.outcomes)]
    return [*by_entry, *of_beats, *of_work, *of_runs]


def check(records: Iterable[Record]) -> None:
    """Raise AssertionError with every violation of these records: at most 20 of them in words, and
    the lines that show them."""
    records = list(records)
    broken = violations(History(records))
    shown = broken[:20]
    lines = sorted({line for violation in shown for line in violation.lines})
    words = [str(violation) for violation in shown]
    words += [f"line {line}: {json.dumps(records[line - 1])}" for line in lines[:40]]
    assert not broken, "\n".join([f"{len(broken)} violations:", *words])
