"""The doctor's look at the server: its clock, the line to it, the lease, and whether it keeps what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import starmap
from typing import Any

from celery import Celery
from redis.exceptions import ResponseError

from ...broker import default_queue
from ...clock import CLOCK_OFF
from ...once.worker.visibility import look_at_the_clock
from ...settings import RENEWALS_PER_LEASE, Settings
from ...storage.connections import Backend
from ...storage.json_values import loads_as
from ...storage.replies import text
from ...storage.server_check import failover, faults, server_of
from ...storage.store import Store
from .finding import Finding

#: Seconds of difference between two clocks that are grave.
_GRAVE_SKEW = 30.0

#: Questions put to the server; the slowest answer counts.
_QUESTIONS = 5

#: Most scans for other schedules in the database. Together they take the server some 10 ms.
_SCANS = 20

#: Keys that each of these scans passes.
_KEYS_A_SCAN = 1000

#: Lowest ``beat_max_loop_interval`` that nobody sets because he hopes for something from it.
_SHORT_LOOP = 10.0


def clock_and_line(store: Store, settings: Settings) -> Iterator[Finding]:
    """The difference between the clocks, and how long the server takes to answer."""
    client = store.backend.client
    look_at_the_clock(client)  # opens the connection
    answers = [look_at_the_clock(client) for _ in range(_QUESTIONS)]
    _, skew, _ = min(answers)
    if abs(skew) >= CLOCK_OFF:
        ahead = "ahead of" if skew > 0 else "behind"
        yield Finding(
            "clock",
            "error" if abs(skew) >= _GRAVE_SKEW else "warning",
            f"the clock of this machine is {abs(skew):.1f} s {ahead} the server's",
            "An entry fires when the clock of the leading beat says so, and its message expires by the clock of the "
            "worker. Who leads does not depend on clocks.",
            "Run NTP on every machine. If a beat runs here, mend this one first.",
        )
    slowest, *_ = max(answers)
    bound = settings.lease / RENEWALS_PER_LEASE / 2
    if slowest > bound:
        enough = int(slowest * RENEWALS_PER_LEASE * 2) + 1
        yield Finding(
            "lease",
            "error",
            f"the server took {slowest:.2f} s to answer, and the lease of {settings.lease:g} s is renewed every "
            f"{settings.lease / RENEWALS_PER_LEASE:g} s",
            "A leader whose renewals come late stands down, so the lead wanders from beat to beat.",
            f"Find out why the server is slow, or set redbeat_lite_lease to {enough} or more.",
        )


def server(backend: Backend) -> Iterator[Finding]:
    """Version, eviction and persistence."""
    found = server_of(backend.client)
    if found is None:
        yield Finding(
            "permission",
            "note",
            "this user may not ask the server about itself (INFO)",
            "Whether it is too old, evicts keys or keeps nothing on disk was not looked at.",
            "Run it as a user with +info.",
        )
        return
    yield from starmap(Finding, faults(found))
    if found.persistent is None:
        yield Finding(
            "permission",
            "note",
            "this user may not ask the server whether it takes snapshots (CONFIG GET)",
            "It has no append-only file, so it is not known whether it keeps anything on disk.",
            "Ask it yourself (CONFIG GET save), as an administrator: the right to ask reads the passwords, too.",
        )


def shared_queue(app: Celery, store: Store) -> Iterator[Finding]:
    """Beats of other prefixes in this database whose messages go to the same default queue."""
    ours = default_queue(app)
    if not ours:
        return
    sharing = sorted(root for root, queue in _other_leaders(store) if queue == ours)
    if sharing:
        yield Finding(
            "shared-queue",
            "warning",
            f"messages of the schedules under {', '.join(sharing)} go to the same queue: {ours}",
            "Workers of one environment run the tasks of the other.",
            "Give each environment another database of the server, or broker_transport_options = "
            "{'global_keyprefix': 'NAME:'}. Nothing, if the same workers serve both.",
        )


def _other_leaders(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the beginning of the keys of each other schedule, and the default queue of its leader.

    Yields nothing to a user without the right to scan or to read these keys.
    """
    client: Any = store.backend.client
    if hasattr(client, "nodes_manager"):  # a cluster, which holds no queues
        return
    cursor = 0
    for _ in range(_SCANS):
        try:
            cursor, keys = client.scan(cursor, match="*}:leader", count=_KEYS_A_SCAN)
        except ResponseError:
            return
        for key in keys:
            with suppress(ResponseError):
                root = text(key).removesuffix(":leader")
                if root != store.keys.prefix:
                    report = loads_as(dict, client.hget(key, "report"))
                    yield root, str(report.get("queue", ""))
        if cursor == 0:
            return


def lease_and_loop(settings: Settings, app: Celery) -> Iterator[Finding]:
    """A lease or a loop interval for another scheduler, and a failover without the schedule."""
    yield from starmap(Finding, failover(app))
    if settings.lease > settings.stall_timeout:
        yield Finding(
            "lease",
            "warning",
            f"redbeat_lite_lease is {settings.lease:g} s",
            f"When a leader crashes, nobody leads for up to that long. It need not fit beat_max_loop_interval "
            f"({app.conf.beat_max_loop_interval or 300:g} s): a thread renews it, whatever the loop does.",
            "Leave it at 4 s, unless the line to the server is bad.",
        )
    loop = app.conf.beat_max_loop_interval
    if loop and loop < _SHORT_LOOP:
        yield Finding(
            "loop",
            "note",
            f"beat_max_loop_interval is {loop:g} s",
            "A change wakes the beat at once, so it notices nothing sooner; it only asks the server more often.",
            "Remove the setting.",
        )
