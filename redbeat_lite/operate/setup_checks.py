"""Checks of the doctor for the setup: the server, settings, the broker, and workers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from celery import Celery
from redis.exceptions import ResponseError

from .._base.celery_app import broker_connection, default_queue
from .._base.clock import CLOCK_OFF
from .._base.json_values import loads_as
from ..beat.dispatch.publisher import unconfirmed
from ..entries.entry import Entry
from ..entries.message import lock_life_ms, may_lose_retries, queue_of
from ..entries.words import listed
from ..once.worker_reports import read_clock
from ..rules import shortest_gap_ms
from ..settings import PREFIX, RENEWALS_PER_LEASE
from ..store.redis_values import text
from ..store.server_check import failover_faults, server_faults, server_of
from ..store.store import Store
from .examination import Finding, Subject

#: Difference of two clocks, in seconds, that is an error and not only a warning.
_GRAVE_SKEW = 30.0

#: Count of measured round trips. The quickest shows the clock best, the slowest the latency.
_ROUND_TRIPS = 5

#: Maximum number of SCAN commands that search for other schedules. Together they take the server
#: some 10 ms.
_SCANS = 20

#: Keys per SCAN command.
_KEYS_PER_SCAN = 1000

#: Kombu's default visibility timeout for Redis, in seconds.
_VISIBILITY_TIMEOUT = 3600.0

#: Celery's own daily entry. Its messages live long, but a second run of it does no harm.
_CLEANUP = "celery.backend_cleanup"

#: Remedy if no worker reports. Only workers with ``install()`` report.
_INSTALL = (
    "Call redbeat_lite.install(app) where the app is made, and restart the workers; start one if "
    "none runs"
)


def clock_and_latency(subject: Subject) -> Iterator[Finding]:
    """Find a clock that differs from the server's, and a server that is too slow for the lease."""
    client = subject.store.backend.client
    read_clock(client)  # The first answer takes longer, because it opens the connection.
    # Readings are compared by the seconds that they took. The quickest one shows the clock best.
    readings = sorted(read_clock(client) for _ in range(_ROUND_TRIPS))
    skew = readings[0].ahead
    if abs(skew) >= CLOCK_OFF:
        ahead = "ahead of" if skew > 0 else "behind"
        severity = "error" if abs(skew) >= _GRAVE_SKEW else "warning"
        yield Finding(
            "clock",
            severity,
            f"the clock of this machine is {abs(skew):.1f} s {ahead} the server's",
            "Beats go by the server's clock. But a message may expire by the clock of the beat's "
            "machine, and a worker judges by its own.",
            "Run NTP on every machine. If a beat runs here, mend this one first.",
        )
    # A renewal must take at most half of the time between two renewals.
    slowest = readings[-1].took
    lease = subject.settings.lease
    may_take = lease / RENEWALS_PER_LEASE
    if slowest > may_take / 2:
        enough = int(slowest * RENEWALS_PER_LEASE * 2) + 1
        yield Finding(
            "lease",
            "error",
            f"the server took {slowest:.2f} s to answer, and a renewal of the lease of "
            f"{lease:g} s may take {may_take:g} s",
            "A leader whose renewals come late stands down, so the lead wanders from beat to beat.",
            f"Find out why the server is slow, or set redbeat_lite_lease to {enough} or more.",
        )


def server(subject: Subject) -> Iterator[Finding]:
    """Find trouble in the version, the eviction policy and the persistence of the server.

    If the Redis user may not ask for these facts, that is a finding, too.
    """
    facts = server_of(subject.store.backend.client)
    if facts is None:
        yield Finding(
            "permission",
            "note",
            "this user may not ask the server about itself (INFO)",
            "Whether it is too old, evicts keys or keeps nothing on disk was not looked at.",
            "Run it as a user with +info.",
        )
        return
    for fault in server_faults(facts):
        yield Finding(*fault)  # A fault has the first five fields of a finding.
    if facts.persistent is None:
        yield Finding(
            "permission",
            "note",
            "this user may not ask the server whether it takes snapshots (CONFIG GET)",
            "It has no append-only file, so it is not known whether it keeps anything on disk.",
            "Ask it yourself (CONFIG GET save), as an administrator: the right to ask reads the "
            "passwords, too.",
        )


def shared_queue(subject: Subject) -> Iterator[Finding]:
    """Find schedules of other prefixes in this database whose leader sends to the same queue."""
    own_queue = default_queue(subject.app)
    if not own_queue:
        return
    prefixes = sorted(
        prefix for prefix, queue in _other_leaders(subject.store) if queue == own_queue
    )
    if prefixes:
        yield Finding(
            "shared-queue",
            "warning",
            f"messages of the schedules under {', '.join(prefixes)} go to the same queue: "
            f"{own_queue}",
            "Workers of one environment run the tasks of the other.",
            "Give each environment another database of the server, or broker_transport_options = "
            "{'global_keyprefix': 'NAME:'}. Nothing, if the same workers serve both.",
        )


def _other_leaders(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the key prefix of each other schedule of this database, and its leader's default queue.

    Only a part of a large database is searched. Keys that the Redis user may not read are left out.
    """
    client: Any = store.backend.client
    if hasattr(client, "nodes_manager"):
        return  # This is a cluster, which cannot be the broker.
    cursor = 0
    for _ in range(_SCANS):
        try:
            cursor, keys = client.scan(cursor, match="*}:leader", count=_KEYS_PER_SCAN)
        except ResponseError:
            return  # The Redis user may not search for keys.
        for key in keys:
            prefix = text(key).removesuffix(":leader")
            if prefix == store.keys.prefix:
                continue
            with suppress(ResponseError):  # The Redis user may not read this key.
                yield prefix, str(loads_as(dict, client.hget(key, "report")).get("queue", ""))
        if cursor == 0:
            return  # The server has scanned all keys.


def lease_and_failover(subject: Subject) -> Iterator[Finding]:
    """Find a lease that is longer than it need be, and a broker that fails over without the store.

    The lease is how long a leader leads without renewing it. celery-redbeat needs a long lease,
    because its loop renews the lease. Here a thread renews it.
    """
    for fault in failover_faults(subject.app):
        yield Finding(*fault)  # A fault has the first five fields of a finding.
    loop = subject.app.conf.beat_max_loop_interval
    settings = subject.settings
    if settings.lease > settings.stall_timeout:
        yield Finding(
            "lease",
            "warning",
            f"redbeat_lite_lease is {settings.lease:g} s",
            "When a leader crashes, nobody leads for up to that long. It need not fit "
            f"beat_max_loop_interval ({loop or 300:g} s): a thread renews it, whatever the loop "
            "does.",
            "Leave it at 4 s, unless the line to the server is bad.",
        )


def foreign_settings(subject: Subject) -> Iterator[Finding]:
    """Find settings of celery-redbeat, which this package does not read."""
    app = subject.app
    # The names of settings may begin with the namespace of the app.
    namespace = (app.conf.prefix or "CELERY_").lower()
    names = []
    for name in map(str, app.conf):
        setting = name.lower().removeprefix(namespace)
        # Settings of this package begin with ``redbeat_``, too, but with a longer prefix.
        if setting.startswith("redbeat_") and not setting.startswith(PREFIX):
            names.append(name)
    if names:
        yield Finding(
            "left-over",
            "note",
            f"redbeat_lite does not use these settings of celery-redbeat: "
            f"{', '.join(sorted(names))}",
            "If a beat of celery-redbeat still runs, it uses them, and every entry is sent twice.",
            f"Stop such a beat, and remove the settings. The counterpart of one that you need "
            f"begins with {PREFIX}.",
        )


def misspelt(subject: Subject) -> Iterator[Finding]:
    """Find a schedule under a name that Celery does not read, if ``beat_schedule`` is empty."""
    app = subject.app
    if app.conf.beat_schedule:
        return
    for name in map(str, app.conf):
        if _is_schedule(app.conf.get(name)):
            yield Finding(
                "misspelt",
                "note",
                f"{name} holds entries of a schedule, and beat_schedule is empty",
                "Celery does not read a setting of this name, so none of these entries runs.",
                "Correct the name: beat_schedule; with a namespace such as CELERY it is "
                "CELERY_BEAT_SCHEDULE.",
            )


def _is_schedule(value: Any) -> bool:
    """Return whether the value of a setting looks like a ``beat_schedule``."""
    if not isinstance(value, Mapping) or not value:
        return False
    entries = value.values()
    return all(
        isinstance(entry, Mapping) and {"task", "schedule"} <= entry.keys() for entry in entries
    )


def confirms(subject: Subject) -> Iterator[Finding]:
    """Find a broker that could confirm that it has a message, but is not asked to do so."""
    if unconfirmed(broker_connection(subject.app)):
        yield Finding(
            "confirm",
            "warning",
            "the broker is not asked to confirm messages (confirm_publish is not in "
            "broker_transport_options)",
            "A message in flight when the connection or the broker fails, or while the broker is "
            "short of memory, is lost and counts as sent: delivery is not at least once.",
            'Set broker_transport_options = {"confirm_publish": True}. A publish then waits for '
            "the broker's answer.",
        )


def recording(subject: Subject) -> Iterator[Finding]:
    """Find entries that have run although no worker with ``install()`` reports.

    Only such a worker records runs.
    """
    if subject.status.clocks:
        return  # ``clocks`` has each worker that reports, so there is one.
    names = tuple(entry.name for entry in subject.entries if entry.state.count)
    if names:
        yield Finding(
            "workers",
            "warning",
            "no worker that records runs has reported within the last minute; these entries have "
            f"run: {listed(names)}",
            "Their outcomes are not recorded, so runs and why cannot tell a run that failed from "
            "one that no worker took.",
            f"{_INSTALL}.",
            names,
        )


def worker_clocks(subject: Subject) -> Iterator[Finding]:
    """Find workers whose clocks differ from the server's.

    Messages live longer by ``redbeat_lite_clock_slack``, because clocks may differ. If a clock is
    ahead by that much or more, the finding is an error.
    """
    skews = {name: skew for name, skew in subject.status.clocks.items() if abs(skew) >= CLOCK_OFF}
    slack = subject.settings.clock_slack
    if not skews:
        return
    workers = []
    for name, skew in sorted(skews.items()):
        direction = "ahead" if skew > 0 else "behind"
        workers.append(f"{name} ({abs(skew):.1f} s {direction})")
    # Skews of clocks that are behind are negative. Such clocks let no message expire too early.
    severity = "error" if max(skews.values()) >= slack else "warning"
    yield Finding(
        "worker-clock",
        severity,
        f"clocks of workers differ from the server's: {listed(workers)}",
        "A worker judges by its own clock whether a message has expired. One that is ahead by more "
        f"than redbeat_lite_clock_slack ({slack:g} s) throws away messages of short intervals that "
        "came in time.",
        "Run NTP on the machines of these workers.",
    )


def queues(subject: Subject) -> Iterator[Finding]:
    """Find queues of entries that no worker with ``install()`` reads, and what follows from that.

    Only workers that have reported within the last minute count. If no worker reports at all, the
    app may not use ``install()``. Then only queues are reported whose entries need ``install()``.
    """
    entries_by_queue = defaultdict[str, list[Entry]](list)
    for entry in subject.entries:
        queue = queue_of(entry)
        # An entry that is never due sends no message to its queue.
        if entry.due is not None and queue not in subject.status.queues:
            entries_by_queue[queue].append(entry)
    for queue, entries in entries_by_queue.items():
        harms = [*_harms_without_install(subject.app, entries)]
        if not harms and not subject.status.queues:
            continue  # No worker reports, and these entries do not need install().
        severity = "note"
        why = "Their messages wait there and expire, unless another worker reads them."
        if harms:
            severity = "warning"
            why = " ".join(harms)
        names = tuple(entry.name for entry in entries)
        yield Finding(
            "queue",
            severity,
            f"no worker with install() reads queue {queue!r}, which these entries use: "
            f"{listed(names)}",
            why,
            f"{_INSTALL}. If none reads this queue, start one with -Q {queue}, or correct the "
            "queue of these entries.",
            names,
        )


def _harms_without_install(app: Celery, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield sentences about the harm to entries whose workers have not called ``install()``."""
    locked = [entry.name for entry in entries if entry.once is not None]
    if locked:
        yield (
            f"Once-locks of {listed(locked)} expire with the message, or with the lease if that is "
            "longer, and until then runs are left out. Only tasks of the class redbeat_lite.Task "
            "release their lock when they end."
        )
    retried = [
        entry.name for entry in entries if may_lose_retries(entry, app.tasks.get(entry.task))
    ]
    if retried:
        yield (
            f"Celery gives a retry of {listed(retried)} the expires of its message, which is the "
            "time of the next run, and discards a retry that is due later. With expires=None of "
            "the entry it does not."
        )
    long_lived = _redelivered(app, entries)
    if long_lived:
        yield (
            f"Messages of {listed(long_lived)} live as long as the broker's visibility timeout, or "
            "longer. If the task runs for so long, its message is delivered to another worker, "
            "because of acks_late. Raise visibility_timeout in broker_transport_options."
        )


def _redelivered(app: Celery, entries: Sequence[Entry]) -> list[str]:
    """Return the names of entries whose message a Redis broker may deliver to a second worker.

    The broker delivers it again while the task runs, after the visibility timeout, if the task
    acknowledges late and the message has not expired.
    """
    connection = broker_connection(app)
    if connection.transport.driver_type != "redis":
        return []
    timeout = float(connection.transport_options.get("visibility_timeout", _VISIBILITY_TIMEOUT))
    names = []
    for entry in entries:
        acks_late = getattr(app.tasks.get(entry.task), "acks_late", app.conf.task_acks_late)
        is_long = _lifetime(entry) >= timeout
        if acks_late and is_long and entry.task != _CLEANUP:
            names.append(entry.name)
    return names


def _lifetime(entry: Entry) -> float:
    """Return the seconds until the next message of an entry expires; infinite if it never does."""
    gap = None
    nominal = entry.state.nominal
    if nominal is not None:
        # Milliseconds between the next occurrence, which is at ``nominal``, and the one after it.
        gap = shortest_gap_ms(entry.rule, nominal - 1, among=2)
    # lock_life_ms() returns 0 for a message that never expires.
    life_ms = lock_life_ms(entry, life=gap, now=entry.due or 0)
    return life_ms / 1000 if life_ms else math.inf


#: The checks of this module, in the order in which findings of equal severity are listed.
CHECKS = (
    clock_and_latency,
    server,
    lease_and_failover,
    shared_queue,
    foreign_settings,
    misspelt,
    confirms,
    recording,
    worker_clocks,
    queues,
)
