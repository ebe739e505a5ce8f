"""Whether a beat is well, or whether any beat leads: asked of Redis, or of the beat's heartbeat file.

A beat is well if its loop lives, be it the leader or a stand-by, and if it has not failed for too long to reach the
server and the broker.

``limit`` is in seconds, by default :func:`default_limit`; a RedbeatError says that it is too short to tell, or has no
end. ``timeout`` is how many seconds a server that does not answer is waited for, before redis-py's error says so.
"""

from __future__ import annotations

import math
import socket

from ..beat.heartbeat import Health, judge
from ..beat.status import LeaderStatus, StandBy, Status, status_of
from ..errors import RedbeatError
from ..runs.incident_store import IncidentStore
from ..settings import RENEWALS_PER_LEASE, Settings
from ..storage.connections import Backend

#: Shortest limit in seconds that makes sense: a waiting loop gives two signs of life a second.
_LEAST = 1.0


def default_limit(settings: Settings) -> float:
    """Seconds that a beat may be silent where nobody says: until a leader gives up its lease for it."""
    return max(settings.stall_timeout, settings.lease)


def health(
    settings: Settings, *, limit: float | None = None, pid: int | None = None, timeout: float | None = None
) -> Health:
    """Judge a beat of this host: by its heartbeat file where the settings name one, else by what it left in Redis.

    Parameters:
        limit: for how long its loop may be silent, and it may fail to reach the server or the broker.
        pid: its process, asked of Redis. Without it, it is enough that one beat of this host is well.
    """
    limit = default_limit(settings) if limit is None else limit
    if settings.heartbeat_file is not None and pid is None:
        return judge(settings.heartbeat_file, _checked(limit, _LEAST))
    limit = _checked(limit, _shortest(settings))
    return _one(status_of(settings, timeout=timeout), socket.gethostname(), pid, limit)


def cluster_health(settings: Settings, *, limit: float | None = None, timeout: float | None = None) -> Health:
    """Judge all beats of a schedule together: within the limit, one must lead and tick, and reach the broker."""
    limit = _checked(default_limit(settings) if limit is None else limit, _shortest(settings))
    found = status_of(settings, timeout=timeout)
    if found.silence is None:
        return Health(False, "no beat has ever led")
    if found.silence > limit:
        return Health(False, f"no leader has ticked for {found.silence:.1f} s")
    if found.leader is None:
        return Health(True, f"nobody leads at the moment; a leader ticked {found.silence:.1f} s ago")
    return _of_leader(found.leader, found.silence, limit)


def incident_health(settings: Settings, *, timeout: float | None = None) -> Health:
    """Judge a schedule by its incidents: none may be open."""
    backend = Backend(settings, timeout=timeout)
    found = IncidentStore(backend.client, settings.key_prefix).open()
    backend.close()
    if not found:
        return Health(True, "no incident is open")
    first, more = found[0], f", and {len(found) - 1} more" if len(found) > 1 else ""
    return Health(False, f"incident {first.id} is open, {first.field}: {first.text}{more}")


def _shortest(settings: Settings) -> float:
    # A leader reports when it renews its lease. Twice that leaves room for one report to be late.
    return max(_LEAST, 2 * settings.lease / RENEWALS_PER_LEASE)


def _checked(limit: float, least: float) -> float:
    if not math.isfinite(limit):  # more than any silence, which would then never be red
        raise RedbeatError(f"limit: expected a number of seconds; got {limit:g}")
    if limit < least:
        raise RedbeatError(f"limit: expected at least {least:g} seconds, as often as a beat reports; got {limit:g}")
    return limit


def _one(found: Status, host: str, pid: int | None, limit: float) -> Health:
    verdicts = []
    leader = found.leader
    if leader is not None and leader.host == host and pid in (None, leader.pid):
        verdicts.append(_of_leader(leader, found.silence or 0.0, limit))
    for standby in sorted(found.standbys, key=lambda each: each.silent_for):
        if standby.host == host and pid in (None, standby.pid):
            verdicts.append(_of_standby(standby, limit))
    if not verdicts:
        which = host if pid is None else f"{host} with pid {pid}"
        forgotten = "one that has ended is forgotten at once, one that died after an hour"
        return Health(False, f"no beat of {which} is known ({forgotten})")
    # A healthy one, if there is one: the leader, or else the stand-by that was heard of last.
    return max(verdicts, key=lambda verdict: verdict.healthy)


def _of_leader(leader: LeaderStatus, silence: float, limit: float) -> Health:
    who = f"leader (pid {leader.pid} on {leader.host})"
    if silence > limit:
        return Health(False, f"{who}: no sign of life for {silence:.1f} s")
    if leader.failing_for is not None and leader.failing_for > limit:
        return Health(False, f"{who}: {leader.why}, for {leader.failing_for:.1f} s")
    return Health(True, f"{who}: alive {silence:.1f} s ago")


def _of_standby(standby: StandBy, limit: float) -> Health:
    who = f"stand-by (pid {standby.pid} on {standby.host})"
    overdue = f"{who}: a sign of life has been overdue for {standby.silent_for:.1f} s"
    if standby.silent_for > limit:
        return Health(False, overdue)
    # One that was killed is not red before the limit, but nobody calls it alive: `status` lists it no more.
    return Health(True, f"{who}: alive" if standby.well else f"{overdue}, of {limit:g} s allowed")
