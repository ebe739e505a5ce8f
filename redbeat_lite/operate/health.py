"""Health of one beat, and of all beats of a schedule, read from Redis or from a heartbeat file.

A beat is healthy if its loop gives signs of life, as leader or as stand-by, and if it has not
failed to reach the server or the broker for too long.

``limit`` is in seconds. By default it is the longer of lease and stall timeout. A limit that is
infinite, or shorter than the time between two reports of a beat, raises InvalidEntry. If the server
does not answer within two seconds, redis-py raises its error.
"""

from __future__ import annotations

import math
import socket

from .._base.fields import length
from ..beat.heartbeat import Health, judge, verdict
from ..beat.status import LeaderStatus, StandBy, Status, status_of
from ..runs.incident_store import IncidentStore
from ..settings import RENEWALS_PER_LEASE, Settings
from ..store.connections import Backend

#: Shortest useful limit in seconds: a waiting loop gives two signs of life per second.
_SHORTEST_LIMIT = 1.0

#: Seconds to wait for a server that does not answer. A probe must answer before it is killed.
_TIMEOUT = 2.0


def health(
    settings: Settings,
    *,
    limit: float | None = None,
    pid: int | None = None,
) -> Health:
    """Judge the beats of this host: by the heartbeat file if one is set, else by Redis.

    With ``pid``, Redis is read in any case.

    Parameters:
        limit: longest time without a sign of life, or without reaching the server or the broker.
        pid: process to judge, by its report in Redis. By default one healthy beat of the host is
            enough.
    """
    limit = _checked_limit(settings, limit)
    if settings.heartbeat_file is not None and pid is None:
        return judge(settings.heartbeat_file, limit)
    return _judge_host(status_of(settings, timeout=_TIMEOUT), socket.gethostname(), pid, limit)


def cluster_health(settings: Settings, *, limit: float | None = None) -> Health:
    """Judge all beats together.

    Within the limit, a leader must have ticked (given a sign of life), and must have reached the
    broker.
    """
    limit = _checked_limit(settings, limit)
    status = status_of(settings, timeout=_TIMEOUT)
    if status.silence is None:
        return Health(False, "no beat has ever led")
    if status.silence > limit:
        return Health(False, f"no leader has ticked for {status.silence:.1f} s")
    if status.leader is None:
        # The change from one leader to the next takes a moment, and is no failure yet.
        ticked = f"a leader ticked {status.silence:.1f} s ago"
        return Health(True, f"nobody leads at the moment; {ticked}")
    return _judge_leader(status.leader, status.silence, limit)


def incident_health(settings: Settings) -> Health:
    """Judge a schedule by its incidents: none may be open. The verdict names the first open one."""
    backend = Backend(settings, timeout=_TIMEOUT)
    incidents = IncidentStore(backend.client, settings.key_prefix).open()
    backend.close()
    if not incidents:
        return Health(True, "no incident is open")
    first = incidents[0]
    text = f"incident {first.id} is open, {first.field}: {first.text}"
    if len(incidents) > 1:
        text += f", and {len(incidents) - 1} more"
    return Health(False, text)


def _checked_limit(settings: Settings, limit: float | None) -> float:
    """Return the limit, or the default if it is ``None``.

    Raises:
        InvalidEntry: the limit is not finite, or is too short.
    """
    if limit is None:
        # After this silence, a leader gives up its lease.
        return max(settings.stall_timeout, settings.lease)
    # A leader reports at each renewal of its lease, about every second. A renewal may take a
    # quarter of the lease. Twice that time allows one late report.
    least = max(_SHORTEST_LIMIT, 2 * settings.lease / RENEWALS_PER_LEASE)
    # No silence is longer than an infinite limit, so that is no length of time.
    expected = f"seconds, at least {least:g}, the interval at which a beat reports"
    kind = length(least, math.inf)._replace(expected=expected)
    return kind.read("limit", limit)  # type: ignore[no-any-return]


def _judge_host(status: Status, host: str, pid: int | None, limit: float) -> Health:
    """Judge the beats of a host, or the beat of one process. One healthy beat is enough.

    The verdict names the healthy beat: the leader if it is healthy, else the healthy stand-by that
    reported last.
    """
    verdicts = []
    leader = status.leader
    # Without a ``pid``, all beats of the host count.
    if leader is not None and leader.host == host and pid in (None, leader.pid):
        verdicts.append(_judge_leader(leader, status.silence or 0.0, limit))
    for standby in sorted(status.standbys, key=lambda standby: standby.silent_for):
        if standby.host == host and pid in (None, standby.pid):
            verdicts.append(_judge_standby(standby, limit))
    if verdicts:
        # max() prefers a healthy verdict, because True exceeds False. Of several verdicts that are
        # equally healthy, it returns the first.
        return max(verdicts, key=lambda verdict: verdict.healthy)
    which = host if pid is None else f"{host} with pid {pid}"
    return Health(
        False,
        f"no beat of {which} is known "
        "(a beat that ends is forgotten at once; a beat that dies is forgotten an hour later)",
    )


def _judge_leader(leader: LeaderStatus, silence: float, limit: float) -> Health:
    """Judge the leading beat by the seconds since its last tick, and by its failures."""
    return verdict(f"leader ({leader})", silence, leader.failing_for, leader.why, limit)


def _judge_standby(standby: StandBy, limit: float) -> Health:
    """Judge a beat that stands by."""
    who = f"stand-by ({standby})"
    overdue = f"{who}: a sign of life has been overdue for {standby.silent_for:.1f} s"
    if standby.silent_for > limit:
        return Health(False, overdue)
    if standby.well:
        return Health(True, f"{who}: alive")
    # The stand-by may have been killed. Until the limit it counts as healthy, but the reason does
    # not say that it is alive.
    return Health(True, f"{overdue}, of {limit:g} s allowed")
