"""What arrives in a queue: every message by entry, nominal time, id and arrival; and the judgement on all of it."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import redis

from tests.faults.journal import Work

#: Messages read at once.
_CHUNK = 2000

#: Messages that were read and are left in the queue, where the others are taken out of it.
_KEPT = 5000


class Record(NamedTuple):
    """One message; times in epoch milliseconds."""

    entry: str
    nominal: int
    id: str
    arrival: int
    sender: int


class Term(NamedTuple):
    """A beat began to lead, in epoch milliseconds."""

    began: int
    sender: int


class Collector:
    """Reads a queue while it grows.

    Parameters:
        connect: opens a client of the broker; asked again after each loss of the connection.
        trim: take out of it what was read long ago; else it is left as it is.
    """

    def __init__(self, connect: Callable[[], redis.Redis], *, trim: bool = False) -> None:
        self.records: list[Record] = []
        #: The latest nominal time of each entry.
        self.latest: dict[str, int] = {}
        #: The longest time in seconds that this process was kept from running: what the machine adds to any lateness.
        self.stall = 0.0
        self._trim = trim
        self._trimmed = 0
        self._connect = connect
        self._known: Counter[tuple[str, int, str]] = Counter()
        self._again = 0
        self._moves = 0
        #: How many places of the queue have been read.
        self.places = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        followed = 0
        while not self._stopped.is_set():
            with suppress(Exception), self._connect() as client:  # servers are killed here all the time
                if followed != (moves := self._moves):
                    self._look_again(client.llen("celery"))
                    followed = moves
                while not self._stopped.is_set() and moves == self._moves:
                    self._wait(0.01)
                    self.places = self._read(client, self.places)
                    self.places = self._shortened(client, self.places)

    def move(self) -> None:
        """Connect anew: the queue is on another server by now, while the old one still takes messages."""
        self._moves += 1

    def _read(self, client: redis.Redis, seen: int) -> int:
        if not self._trimmed and client.llen("celery") == seen:
            return seen
        pipe = client.pipeline(transaction=True)
        pipe.llen("celery")
        # From the oldest end: these places stay the same, however many messages come.
        pipe.lrange("celery", -(seen + _CHUNK), -(seen + 1))
        length, found = pipe.execute()
        if length == seen - self._trimmed:
            seen -= self._trimmed  # the last trim was made, and its reply lost
        self._trimmed = 0
        if length < seen:
            self._look_again(length)  # The server lost some, or somebody flushed it, or this is another server.
            return 0
        arrival = round(time.time() * 1000)
        for raw in reversed(found):
            self._add(_record(raw, arrival))
        return seen + len(found)

    def _look_again(self, length: int) -> None:
        """What lies there now and was seen before did not come again, but for what is there more often than seen."""
        self.places, self._again = 0, length
        self._known = Counter(record[:3] for record in self.records)

    def _add(self, record: Record) -> None:
        again, self._again = self._again > 0, max(self._again - 1, 0)
        if again and self._known[record[:3]]:
            self._known[record[:3]] -= 1
            return
        self.records.append(record)
        self.latest[record.entry] = max(record.nominal, self.latest.get(record.entry, 0))

    def _wait(self, seconds: float) -> None:
        start = time.monotonic()
        time.sleep(seconds)
        self.stall = max(self.stall, time.monotonic() - start - seconds)

    def _shortened(self, client: redis.Redis, seen: int) -> int:
        if not self._trim or seen < 2 * _KEPT:
            return seen
        self._trimmed = seen - _KEPT
        client.ltrim("celery", 0, -(self._trimmed + 1))
        self._trimmed = 0
        return _KEPT

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(5)


def queue_of(client: redis.Redis) -> list[Record]:
    """What lies in the queue now, oldest first, without the times of arrival."""
    return [_record(raw, 0) for raw in reversed(client.lrange("celery", 0, -1))]


def _record(raw: bytes, arrival: int) -> Record:
    headers = json.loads(raw)["headers"]
    nominal = round(datetime.fromisoformat(headers["scheduled_at"]).timestamp() * 1000)
    sender = int(headers["origin"].removeprefix("gen").split("@")[0])
    return Record(headers["periodic_task_name"], nominal, headers["id"], arrival, sender)


@dataclass
class Verdict:
    """What became of the occurrences. Times are in seconds.

    Parameters:
        occurrences: different ones that arrived.
        lost: those between the first and the last of an entry that did not; ``None`` where that says nothing.
        doubled: those that arrived more than once …
        renamed: … and of these, those with more than one task id.
        early: messages that came before their nominal time.
        late: how much after its nominal time the latest came, outages left out.
        wait: the longest time for which nothing came of an entry, outages or not.
        extra: messages at times that are no nominal times of their entry.
        redone: messages that came again although one after them, of the same beat, did not: its batch was committed.
        tail: how many messages that a beat had sent last came again, at most.
        back: how long after a fault the first message came, at most.
        stall: the longest time that the machine kept the suite itself from running.
        withheld: the most that the machine kept from the beats and the suite within the time that a recovery may take.
        handovers: how often messages of one beat are followed by those of another.
        strays: messages of beats that did not lead.
        work: what workers made of them, where there are some.
    """

    occurrences: int = 0
    lost: int | None = 0
    doubled: int = 0
    renamed: int = 0
    early: int = 0
    late: float = 0.0
    wait: float = 0.0
    back: float = 0.0
    extra: int = 0
    redone: int = 0
    tail: int = 0
    handovers: int = 0
    strays: int = 0
    stall: float = 0.0
    withheld: float = 0.0
    faults: int = 0
    missing: list[str] = field(default_factory=list)
    work: Work | None = None

    def as_dict(self) -> dict[str, Any]:
        """What is published of it."""
        names = ("occurrences", "faults", "lost", "doubled")
        figures = {name: getattr(self, name) for name in names}
        times = {name: round(getattr(self, name), 2) for name in ("late", "wait", "back")}
        return {**figures, **times, **({"work": self.work.as_dict()} if self.work else {})}


def judge(
    records: Sequence[Record],
    period: int | None,
    outages: Iterable[tuple[float, float]] = (),
    recoveries: Sequence[float] = (),
) -> Verdict:
    """Judge a stream of entries that fire every ``period`` milliseconds; with ``None`` nothing counts as lost or extra.

    Parameters:
        outages: from and to, in epoch seconds; lateness does not count where a nominal time lies in one of them.
        recoveries: instants from which on things ought to go on.
    """
    verdict = Verdict(faults=len(recoveries), lost=None if period is None else 0)
    seen: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    excused = [(round(start * 1000), round(end * 1000)) for start, end in outages]
    for record in records:
        ids = seen[record.entry][record.nominal]
        if ids:
            verdict.doubled += 1
            verdict.renamed += record.id not in ids
        ids.add(record.id)
        after = (record.arrival - record.nominal) / 1000
        verdict.early += bool(record.arrival) and after < -0.002
        if record.arrival and not any(start <= record.nominal <= end for start, end in excused):
            verdict.late = max(verdict.late, after)
    for entry, nominals in seen.items():
        verdict.occurrences += len(nominals)
        if period is None:
            continue
        expected = set(range(min(nominals), max(nominals) + 1, period))
        verdict.extra += len(set(nominals) - expected)
        missing = expected - set(nominals)
        verdict.lost = (verdict.lost or 0) + len(missing)
        verdict.missing += [f"{entry} at {nominal}" for nominal in sorted(missing)][:5]
    verdict.wait = _longest_wait(records)
    verdict.redone, verdict.tail = _repeats(records)
    verdict.back = max((_back(records, round(at * 1000)) for at in recoveries), default=0.0)
    senders = [record.sender for record in records]
    verdict.handovers = sum(before != after for before, after in itertools.pairwise(senders))
    return verdict


def strays(records: Iterable[Record], terms: Sequence[Term]) -> int:
    """How many messages came of beats that did not lead: behind those of another one, without a term that followed."""
    found, term = 0, -1
    for record in records:
        if term >= 0 and terms[term].sender == record.sender:
            continue
        following = next((n for n in range(term + 1, len(terms)) if terms[n].sender == record.sender), None)
        if following is None or (record.arrival and record.arrival < terms[following].began):
            found += 1
        else:
            term = following
    return found


def _longest_wait(records: Iterable[Record]) -> float:
    """Seconds for which nothing came of an entry, at most: between two messages, or until the last one of all."""
    latest: dict[str, int] = {}
    longest = end = 0
    for record in records:
        longest = max(longest, record.arrival - latest.get(record.entry, record.arrival))
        latest[record.entry] = end = record.arrival
    return max((longest, *(end - last for last in latest.values()))) / 1000


def _repeats(records: Sequence[Record]) -> tuple[int, int]:
    """Of what one beat sent in a row and came again: how much lies before something that did not, and most behind it.

    What is sent again is what was not committed, so it can only be what a beat sent last.
    """
    last = {record[:2]: index for index, record in enumerate(records)}
    redone = tail = 0
    for _, group in itertools.groupby(enumerate(records), key=lambda each: each[1].sender):
        again = [last[record[:2]] > index for index, record in group]
        behind = next((n for n, each in enumerate(reversed(again)) if not each), len(again))
        redone += sum(again) - behind
        tail = max(tail, behind)
    return redone, tail


def _back(records: Sequence[Record], at: int) -> float:
    return min((record.arrival - at for record in records if record.arrival >= at), default=10**9) / 1000
