"""The doctor's look at what becomes of messages: how long they live, and which workers take them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from itertools import chain

from celery import Celery

from ...beat.dispatch.publisher import unconfirmed
from ...beat.status import Status
from ...broker import broker_connection
from ...clock import CLOCK_OFF, wall_ms
from ...entries.entry import Entry
from ...entries.message import may_lose_retries
from ...entries.sendable import queue_of
from ...entries.words import counted, listed
from ...once.worker_reports import WorkerReport
from ...runs.store import RunStore
from ...schedules import Question, next_ms
from ...storage.store import Store
from ...storage.stored import PAGE, chunks
from .finding import Finding

#: Kombu's default for the Redis transport, in seconds.
_VISIBILITY_TIMEOUT = 3600.0

#: Celery's own daily entry. Its messages live for half a day, and a second run finds nothing left to do.
_CLEANUP = "celery.backend_cleanup"

#: What to do if no worker reports. Only workers with ``install()`` report.
_INSTALL = (
    "Start a worker if there is none; "
    "else call redbeat_lite.install(app) where the app is made, and restart the workers"
)


def confirms(app: Celery) -> Iterator[Finding]:
    """A broker that is not asked whether it has taken what it was sent."""
    if unconfirmed(broker_connection(app)):
        yield Finding(
            "confirm",
            "warning",
            "the broker is not asked to confirm messages (confirm_publish is not in broker_transport_options)",
            "What is on its way when the line or the broker fails, or while the broker is short of memory, is lost "
            "and counts as sent: delivery is not at least once.",
            'Set broker_transport_options = {"confirm_publish": True}. A publish then waits for the broker\'s answer.',
        )


def recording(entries: Sequence[Entry], heard: Collection[WorkerReport]) -> Iterator[Finding]:
    """Runs of which nobody tells what became of them: there is no worker, or none that records."""
    sent = tuple(entry.name for entry in entries if entry.known_state.count)
    if sent and not any(said.records for said in heard):
        yield Finding(
            "workers",
            "note",
            f"no worker that records runs was heard of within the last minute; sent were those of {listed(sent)}",
            "Nobody records what becomes of them, so runs and why know only what was sent.",
            f"{_INSTALL}.",
            sent,
        )


def retries(app: Celery, entries: Sequence[Entry], served: Collection[str]) -> Iterator[Finding]:
    """Entries whose retries may expire, because no worker with ``install()`` takes from their queue.

    Parameters:
        served: the queues from which such workers take.
    """
    names = tuple(
        entry.name
        for entry in entries
        if entry.due is not None
        and may_lose_retries(entry, app.tasks.get(entry.task))
        and queue_of(app, entry) not in served
    )
    if names:
        yield Finding(
            "retries",
            "warning",
            f"the tasks of {counted(len(names), 'entry', 'entries')} may retry, and no worker with install() reads "
            f"their queue: {listed(names)}",
            "Celery gives a retry the expires of its message, which is the time of the next run. A worker without "
            "install() discards a retry that is due later, without an error.",
            f"{_INSTALL}; or set expires=None for these entries.",
            names,
        )


def outcomes(store: Store, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Entries that have failed since they last succeeded, as ``list --failed`` has them."""
    sent = [entry.name for entry in entries if entry.known_state.count]
    runs = RunStore(store.backend.client, store.keys.prefix)
    pages = map(runs.failed, chunks(sent, PAGE))
    failed = tuple(chain.from_iterable(pages))
    if failed:
        yield Finding(
            "outcomes",
            "note",
            f"{counted(len(failed), 'entry has', 'entries have')} failed since the last success: {listed(failed)}",
            "They are sent, and come to nothing: runs failed, expired or were lost.",
            "celery -A ... redbeat runs NAME tells with what. To be told at once, have them expect something.",
            failed,
        )


def worker_clocks(status: Status, slack: float) -> Iterator[Finding]:
    """Workers whose clocks are wrong."""
    off = {name: ahead for name, ahead in status.clocks.items() if abs(ahead) >= CLOCK_OFF}
    if off:
        said = [f"{name} ({abs(by):.1f} s {'ahead' if by > 0 else 'behind'})" for name, by in sorted(off.items())]
        yield Finding(
            "worker-clock",
            "error" if max(off.values()) >= slack else "warning",
            f"the {'clock of a worker differs' if len(off) == 1 else 'clocks of workers differ'} from the server's: "
            f"{listed(said)}",
            "A worker judges by its own clock whether a message has expired. One that is ahead by more than "
            f"redbeat_lite_clock_slack ({slack:g} s) throws away messages of short intervals that came in time.",
            "Run NTP on the machines of these workers.",
        )


def lifetimes(
    app: Celery, entries: Sequence[Entry], slack: float, heard: Collection[WorkerReport]
) -> Iterator[Finding]:
    """Messages that outlive the visibility timeout where no worker keeps them from being delivered again.

    Clocks may differ by ``slack`` seconds.
    """
    connection = broker_connection(app)
    if connection.transport.driver_type != "redis":
        return
    timeout = float(connection.transport_options.get("visibility_timeout", _VISIBILITY_TIMEOUT))
    kept = {queue for said in heard if said.visibility_timeout is not None for queue in said.queues}
    long_lived = [
        entry
        for entry in entries
        if entry.due is not None
        and entry.task != _CLEANUP
        and _lifetime(entry, app.timezone, slack) >= timeout
        and queue_of(app, entry) not in kept
    ]
    if long_lived:
        names = [entry.name for entry in long_lived]
        # Without acks_late only what a worker has fetched ahead comes again, and only if it waits there for so long.
        late = any(getattr(app.tasks.get(entry.task), "acks_late", app.conf.task_acks_late) for entry in long_lived)
        yield Finding(
            "expires",
            "warning" if late else "note",
            f"messages of {counted(len(long_lived), 'entry', 'entries')} live as long as the broker's visibility "
            f"timeout ({timeout:g} s) or longer, and no worker with install() reads their queue: {listed(names)}",
            "A message that a worker has had for that long, fetched ahead or running with acks_late, is delivered to "
            "another one while it is still valid. The task then runs twice.",
            f"{_INSTALL}; or let the messages expire sooner; or raise visibility_timeout in broker_transport_options.",
            tuple(names),
        )


def queues(app: Celery, entries: Sequence[Entry], served: Collection[str]) -> Iterator[Finding]:
    """Entries whose queue is not ``served`` by a worker that reports, where any does; and those with a once-lock among
    them, which nobody could look after."""
    found, alone = defaultdict[str, list[str]](list), list[str]()
    for entry in entries:
        if entry.due is not None and (queue := queue_of(app, entry)) not in served:
            found[queue].append(entry.name)
            alone += [entry.name] if entry.once is not None else []
    for queue, names in found.items() if served else ():
        yield Finding(
            "queue",
            "note",
            f"no worker that reports takes from queue {queue!r}, to which go: {listed(names)}",
            "Their messages wait there and expire, unless a worker without install() takes them.",
            f"Nothing, if there is one; else start a worker with -Q {queue}, or correct the queue of these.",
            tuple(names),
        )
    if alone:
        yield Finding(
            "once",
            "warning",
            f"{counted(len(alone), 'entry has', 'entries have')} a once-lock, and no worker with install() that reads "
            f"the queue was heard of within the last minute: {listed(alone)}",
            "Only tasks of the class redbeat_lite.Task then give their lock back when they end; and none is given back "
            "when a worker dies or a message expires. Runs less than a minute apart are left out until the lock "
            "has run out.",
            f"{_INSTALL}.",
            tuple(alone),
        )


def _lifetime(entry: Entry, zone: tzinfo, slack: float) -> float:
    """Seconds until the next message of an entry expires."""
    expires = entry.options.get("expires", entry.expires)
    if isinstance(expires, datetime):
        # One without a zone is Celery's to read: in the zone of the app.
        ends = expires if expires.tzinfo is not None else expires.replace(tzinfo=zone)
        return max(ends.timestamp() - (entry.due or wall_ms()) / 1000, 0.0)
    if isinstance(expires, (int, float)):
        return expires
    if isinstance(expires, timedelta):
        return expires.total_seconds()
    if expires != "interval" or entry.known_state.nominal is None:
        return float("inf") if expires is None else 0.0
    nominal = entry.known_state.nominal
    following = next_ms(entry.rule(zone), nominal)
    return (
        float("inf") if following is None or isinstance(following, Question) else (following - nominal) / 1000 + slack
    )
