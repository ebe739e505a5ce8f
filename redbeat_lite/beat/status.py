"""Status of the beats of a schedule: the leader, the stand-bys, and how late entries are."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import msgspec
from celery import Celery

from .._base.fields import length
from .._base.ids import random_hex
from .._base.json_values import loads_as
from .._base.public import public_in
from .._base.times import EPOCH, Duration, from_ms
from ..entries.freeze import Freeze, freeze_of
from ..once.lock_store import OnceKeys
from ..once.worker_reports import recent_reports
from ..pipeline.pipeline_keys import index_key
from ..settings import Settings
from ..store.records import Refused
from ..store.redis_values import text_of_hash
from ..store.store import Store

#: Milliseconds after its due time at which an entry counts as overdue. A healthy beat is faster.
OVERDUE_MS = 1000

#: Seconds by which the sign of life of a running stand-by may be late.
_GRACE = 5.0

#: Form of a token: ``host:pid:random:owner``. A host has no colon, an owner may have colons.
_TOKEN = re.compile(rb"(.+?):([0-9]{1,18}):[0-9a-f]+:(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Beat:
    """A beat, as the token of its lease names it: by host, process id and owner.

    Parameters:
        owner: the beat's setting ``owner``; empty if it is not known.
    """

    host: str
    pid: int
    owner: str

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


def token_of(owner: str) -> str:
    """Return a new token for a beat of this process and this owner."""
    return f"{socket.gethostname()}:{os.getpid()}:{random_hex(8)}:{owner}"


def beat_of(token: bytes) -> Beat | None:
    """Return the beat that a token names; ``None`` if it does not look like a token."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    host, pid, owner = (part.decode(errors="backslashreplace") for part in match.groups())
    return Beat(host, int(pid), owner)


@public_in("redbeat_lite.operate")
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderStatus(Beat):
    """The beat that leads.

    ``sent``, ``failed`` and ``skipped`` count from when its process first led.

    Parameters:
        since: when it began to lead, to the second.
        dispatch: text that says how messages are sent; empty before the first message.
        failing_for: seconds for which it has been unable to use the server or the broker; ``None``
            if it can use both.
        why: the failure in words.
    """

    since: datetime
    term: int
    sent: int = 0
    failed: int = 0
    skipped: int = 0
    dispatch: str = ""
    failing_for: float | None = None
    why: str = ""


@public_in("redbeat_lite.operate")
@dataclass(frozen=True, slots=True)
class StandBy(Beat):
    """A beat that does not lead.

    Parameters:
        silent_for: seconds by which its next sign of life is overdue; 0 if it is not overdue.
    """

    silent_for: float

    @property
    def well(self) -> bool:
        """Whether the beat seems to run, because its next sign of life is not long overdue."""
        return self.silent_for <= _GRACE


@public_in("redbeat_lite.operate")
@dataclass(frozen=True, slots=True)
class Status:
    """All beats of a schedule at one moment, by the clock of the server.

    ``clocks`` and ``queues`` are those of the workers that have called ``install()`` and have
    reported within the last minute.

    Parameters:
        now: when the status was read.
        leader: the beat that leads; ``None``: no beat leads.
        standbys: the other beats, also those whose last sign of life is up to an hour old.
        last_tick: when the main loop of a leader last gave a sign of life; ``None`` if no beat has
            ever led.
        lag: seconds by which the first due entry is late; 0 while all entries are frozen.
        overdue: count of the entries that are late by more than a second; 0 while all are frozen.
        entries: count of the stored entries.
        quarantined: count of the entries in quarantine.
        clocks: node name of a worker -> seconds by which its clock is ahead of the server's;
            negative if it is behind.
        refused: config entries that the present or the last leader has refused.
        freeze: freeze that holds; ``None``: there is none.
        queues: queues that these workers consume.
        pipelines: count of the pipeline runs that have not ended.
    """

    now: datetime
    leader: LeaderStatus | None
    standbys: tuple[StandBy, ...]
    last_tick: datetime | None
    lag: float
    overdue: int
    entries: int
    quarantined: int
    clocks: Mapping[str, float]
    refused: Refused
    freeze: Freeze | None = None
    queues: tuple[str, ...] = ()
    pipelines: int = 0

    @property
    def silence(self) -> float | None:
        """Seconds since :attr:`last_tick`; ``None`` if no beat has ever led."""
        if self.last_tick is None:
            return None
        return max((self.now - self.last_tick).total_seconds(), 0.0)

    def owners(self, within: float = _GRACE) -> set[str]:
        """Return the owners of the leader and of running stand-bys.

        Parameters:
            within: seconds by which the sign of life of a running stand-by may be overdue.
        """
        owners = {standby.owner for standby in self.standbys if standby.silent_for <= within}
        if self.leader is not None:
            owners.add(self.leader.owner)
        return owners


@public_in("redbeat_lite.operate")
def status(app: Celery, *, timeout: Duration | None = None) -> Status:
    """Read the status of the beats of an app.

    Parameters:
        timeout: length of time to wait for a server that does not answer.

    Raises:
        ConfigurationError: the app's settings are wrong.
        redis.exceptions.RedisError: the server does not answer.
    """
    settings = Settings.from_app(app)
    return status_of(settings, timeout=length().read("timeout", timeout, optional=True))


def status_of(settings: Settings, *, timeout: float | None = None) -> Status:
    """Read the status of the beats.

    Parameters:
        timeout: seconds to wait for a server that does not answer.
    """
    if timeout is not None:
        timeout /= 2  # The client tries to connect twice.
    store = Store.of(settings, timeout=timeout)
    try:
        return read_status(store)
    finally:
        store.backend.close()


class _Reply(NamedTuple):
    """Reply of ``schedule/status.lua``, which describes these values."""

    now: int
    leader: Sequence[bytes]
    beats: Sequence[bytes]
    last_tick: bytes
    entries: int
    overdue: int
    first_due: Sequence[bytes]
    quarantined: int
    workers: Sequence[bytes]
    refused: bytes
    freeze: bytes
    pipelines: int


def read_status(store: Store) -> Status:
    """Read the status over the connection of a store, in one round trip."""
    keys = store.keys
    values = store.backend.scripts.run(
        "schedule/status",
        keys,
        # The reports of the workers are stored beside the once-locks.
        workers=OnceKeys(keys.prefix).workers,
        pipelines=index_key(keys.prefix),
        overdue_ms=OVERDUE_MS,
    )
    reply = _Reply(*values)
    now = reply.now
    lease = _pairs(reply.leader)
    freeze = freeze_of(reply.freeze, now)
    reports = recent_reports(_pairs(reply.workers), now / 1000)
    queues = {queue for report in reports.values() for queue in report.queues}
    lag = 0.0
    # While all entries are frozen, they are late on purpose.
    if freeze is None and reply.first_due:
        _, due = reply.first_due
        lag = max(now - float(due), 0.0) / 1000
    return Status(
        now=from_ms(now),
        leader=_leader(lease),
        standbys=tuple(_standbys(_pairs(reply.beats), lease.get(b"token"), now)),
        last_tick=_instant(reply.last_tick),
        lag=lag,
        overdue=reply.overdue if freeze is None else 0,
        entries=reply.entries,
        quarantined=reply.quarantined,
        clocks={name: report.ahead for name, report in reports.items()},
        refused=Refused.decode(reply.refused),
        freeze=freeze,
        queues=tuple(sorted(queues)),
        pipelines=reply.pipelines,
    )


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return a flat reply, which has the form key, value, key, value …, as a dictionary."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _leader(lease: dict[bytes, bytes]) -> LeaderStatus | None:
    """Return the leader that the fields of the lease describe; ``None`` if nobody leads."""
    if not lease:
        return None
    beat = beat_of(lease.get(b"token", b""))
    owner = "" if beat is None else beat.owner
    fields = text_of_hash(lease)
    # One field is the report of the leader, which is JSON of further fields.
    report = loads_as(dict, fields.get("report"))
    with suppress(msgspec.ValidationError):
        # All fields of a lease are texts. With ``strict=False``, msgspec reads numbers from texts.
        return msgspec.convert({**report, **fields, "owner": owner}, LeaderStatus, strict=False)
    # Somebody leads, but the lease cannot be read.
    return LeaderStatus("?", 0, "", since=EPOCH, term=0)


def _instant(ms: bytes) -> datetime | None:
    """Return the instant of epoch ms; ``None`` for any other text."""
    with suppress(ValueError, OverflowError):
        return from_ms(int(ms))
    return None


def _standbys(beats: dict[bytes, bytes], leading: bytes | None, now: int) -> Iterator[StandBy]:
    """Yield the beats that do not lead, and skip texts that are not tokens of beats.

    Parameters:
        beats: token of a beat -> when its next sign of life is due, in epoch ms. A stand-by gives
            the next one when it asks for the lease again.
        leading: token of the leader.
        now: epoch ms.
    """
    for token, due in beats.items():
        beat = beat_of(token)
        if beat is not None and token != leading:
            overdue = max(now - float(due), 0.0) / 1000
            yield StandBy(beat.host, beat.pid, beat.owner, overdue)
