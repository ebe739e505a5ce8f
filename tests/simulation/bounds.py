"""How much the server may hold at the end of a seed: what the package promises of each kind of key.

A kind holds items: entries, lines, rows, ids. Their number follows from what has happened, so a seed with
many runs may hold more than one with few. Messages that wait for a worker belong to the broker. Their
number depends on the workers, and other checks look at them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.simulation.values import Database, SortedSet, Stream, Value


@dataclass(frozen=True)
class Amounts:
    """What has happened in a seed.

    Parameters:
        names: names that entries may have.
        pipelines: entries that start pipelines, whose definitions have those of the pipelines.
        history: records of runs that are kept of each entry.
        calls: calls of the user, of whoever starts jobs, and of the clearer.
        backfills: backfills that the user has asked for.
        beats: beats that were started.
        terms: terms that have begun.
        sent: messages that were sent.
        deliveries: how often workers have taken a message.
        jobs: jobs that may have been started.
        locks: how often somebody has asked for a lock for a piece of code.
        processes: processes of all kinds.
    """

    names: int
    pipelines: int
    history: int
    calls: int
    backfills: int
    beats: int
    terms: int
    sent: int
    deliveries: int
    jobs: int
    locks: int
    processes: int


class Bound(NamedTuple):
    """How many items all keys of a kind may hold together, and how many bytes each may take, names included."""

    items: Callable[[Amounts], int]
    bytes_per_item: int


#: Kinds of incidents that an entry may have open at the same time.
_INCIDENTS = 4

#: Runs of an entry of which something may be expected at the same time.
_EXPECTED = 10

#: What the beat writes at the beginning of a term, each under an id of its own.
_WRITES_PER_TERM = 3

#: Looks for incidents whose writes have kept replies: the leader looks every two seconds, and a reply is kept
#: for a minute.
_LOOKS = 30

PREFIX = b"{redbeat-lite}:"

#: By the beginning of a name after the prefix. The longest beginning counts.
BOUNDS = {
    b"due": Bound(lambda amounts: amounts.names, 40),
    b"entries": Bound(lambda amounts: amounts.names + 12 * amounts.pipelines, 250),
    b"state": Bound(lambda amounts: amounts.names, 250),
    b"quarantine": Bound(lambda amounts: amounts.names, 1000),
    b"backfills:": Bound(lambda amounts: amounts.backfills, 800),
    b"leader": Bound(lambda _: 1, 600),
    b"meta": Bound(lambda _: 1, 2000),
    # A beat that gives up the lead has another token later. If it cannot reach the server, the old one stays an hour.
    b"beats": Bound(lambda amounts: amounts.beats + amounts.terms, 80),
    b"changes": Bound(lambda amounts: amounts.calls + amounts.terms, 200),
    # An entry that was added may be removed by its last run, whose last change is forgotten then.
    b"reply:": Bound(lambda amounts: 2 * amounts.calls + _WRITES_PER_TERM * amounts.terms + _LOOKS, 100),
    b"runs:of:": Bound(lambda amounts: amounts.names * amounts.history, 120),
    b"runs:feed": Bound(lambda amounts: amounts.deliveries, 300),
    b"runs:incidents": Bound(lambda amounts: _INCIDENTS * amounts.names, 300),
    b"runs:news": Bound(lambda amounts: 2 * _INCIDENTS * amounts.names, 300),
    b"runs:deadlines": Bound(lambda amounts: _EXPECTED * amounts.names, 80),
    b"runs:failures": Bound(lambda amounts: amounts.names, 80),
    b"runs:alive": Bound(lambda amounts: amounts.deliveries, 80),
    b"once:lock:": Bound(lambda amounts: amounts.deliveries + amounts.processes + amounts.names, 400),
    b"once:wait:": Bound(lambda amounts: amounts.deliveries + amounts.processes, 120),
    b"once:parked:": Bound(lambda amounts: amounts.deliveries, 1500),
    b"once:index": Bound(lambda amounts: amounts.deliveries + amounts.processes + amounts.names, 120),
    b"once:fence": Bound(lambda _: 1, 60),
    b"once:workers": Bound(lambda amounts: amounts.processes, 200),
    # Each id takes 220 bytes, as the documentation says: that of a task, or of a lock for a piece of code.
    b"guard:": Bound(lambda amounts: amounts.sent + amounts.calls + amounts.locks, 220),
    b"turns:": Bound(lambda amounts: amounts.jobs, 100),
    b"pipelines": Bound(lambda amounts: amounts.jobs, 80),
    b"ended-runs": Bound(lambda amounts: amounts.jobs, 80),
}

#: Beginning of the keys of jobs, and the bound of all that belongs to a job of nine steps.
JOBS_PREFIX = b"{redbeat-lite:"
JOBS = Bound(lambda amounts: amounts.jobs, 5000)

#: Keys of the broker: kombu's, and the messages that wait or have been taken.
BROKER_KEYS = (b"_kombu.binding.", b"_kombu.binding_permanent.", b"celery", b"unacked", b"unacked_index")


def excesses(database: Database, amounts: Amounts) -> Iterator[str]:
    """Say of each kind of key that holds too much how much it holds, and name keys of no known kind."""
    sizes: Counter[bytes] = Counter()
    for key in database.all_keys():
        if key.startswith(BROKER_KEYS):
            continue
        value = database.find(key)
        assert value is not None
        sizes[_kind(key)] += len(key) + sum(map(len, texts_of(value)))
    for kind, size in sorted(sizes.items()):
        bound = JOBS if kind == JOBS_PREFIX else BOUNDS.get(kind)
        if bound is None:
            yield f"{kind.decode()} is a key of no known kind"
            continue
        most = bound.items(amounts) * bound.bytes_per_item
        if size > most:
            yield f"keys of {kind.decode()} hold {size} bytes, more than {most}"


def _kind(key: bytes) -> bytes:
    """The beginning in BOUNDS that counts for a key, or the key itself."""
    if key.startswith(JOBS_PREFIX):
        return JOBS_PREFIX
    if not key.startswith(PREFIX):
        return key
    name = key.removeprefix(PREFIX)
    return max((kind for kind in BOUNDS if name.startswith(kind)), key=len, default=key)


def texts_of(value: Value) -> Iterator[bytes]:
    """All texts that a value holds."""
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, Stream):
        for _, fields in value.lines:
            yield from fields
    elif isinstance(value, SortedSet):
        yield from value.scores
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for text in pair if text)
    else:
        yield from value
