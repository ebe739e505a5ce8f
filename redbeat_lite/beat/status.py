"""How the beats of a schedule fare, as they left it in Redis: who leads, who stands by, what is late."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from celery import Celery

from ..broker import TWICE, publish_timeouts
from ..durations import Duration
from ..entries.freezes import Freeze, Freezes
from ..instants import EPOCH, from_ms
from ..once.keys import OnceKeys
from ..once.policy import check_seconds
from ..once.worker_reports import WorkerReport, heard_of
from ..pipeline.keys import index_key
from ..public import public_in
from ..settings import Settings
from ..storage.json_values import loads_as
from ..storage.keys import Keys
from ..storage.refused import Refused
from ..storage.scripts import Call
from ..storage.store import Store
from .tokens import beat_of

#: Milliseconds after its due time from which an entry counts as overdue: more than any healthy beat needs.
OVERDUE_MS = 1000

#: Milliseconds by which a stand-by may be late with its sign of life.
_GRACE_MS = 5000


@public_in("redbeat_lite.operate")
@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """The beat that leads. ``sent``, ``failed`` and ``skipped`` count from when its process first led.

    Parameters:
        since: when it began to lead, to the second.
        dispatch: how messages go out, in words; empty before the first one.
        failing_for: seconds for which it has not been able to use the server or the broker; ``None`` if it can.
        why: what it could not do.
        backfill_left: occurrences that backfills have still to send.
        owner: whose configuration it knows; empty if it does not say.
    """

    host: str
    pid: int
    since: datetime
    term: int
    sent: int = 0
    failed: int = 0
    skipped: int = 0
    dispatch: str = ""
    failing_for: float | None = None
    why: str = ""
    owner: str = ""
    backfill_left: int = 0


@public_in("redbeat_lite.operate")
@dataclass(frozen=True, slots=True)
class StandBy:
    """A beat that does not lead.

    Parameters:
        silent_for: for how many seconds a sign of life is overdue, 0 if none is.
        owner: whose configuration it knows.
    """

    host: str
    pid: int
    silent_for: float
    owner: str

    @property
    def well(self) -> bool:
        """Whether it is there."""
        return self.silent_for * 1000 <= _GRACE_MS


@public_in("redbeat_lite.operate")
@dataclass(frozen=True, slots=True)
class Status:
    """All beats of a schedule at one moment, by the clock of the server.

    Parameters:
        now: that moment.
        leader: who leads; ``None`` while nobody does.
        standbys: who does not lead, those included that fell silent within the last hour.
        last_tick: the last sign of life of the loop of any leader; ``None`` if there never was one.
        lag: seconds by which the first entry in line is late; 0 while all is frozen, and so is ``overdue``.
        overdue: entries that are late by more than a second.
        entries: how many are stored.
        quarantined: how many are set aside.
        clocks: by how many seconds the clock of each worker with ``install()`` is ahead of the server's, negative where
            it is behind. Those heard of within the last minute, by their node names.
        refused: what the leader has refused of its configuration, or the last one to lead.
        freezes: those that hold.
        queues: that the workers with ``install()`` take from, of which was heard within the last minute.
        pipelines: how many runs of pipelines go on.
        messages: while a freeze holds, how many wait in these queues and the default one; ``None`` where that is not
            known: the broker is not the server of the schedule, or does not answer.
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
    freezes: tuple[Freeze, ...] = ()
    queues: tuple[str, ...] = ()
    pipelines: int = 0
    messages: int | None = None

    @property
    def silence(self) -> float | None:
        """Seconds since :attr:`last_tick`."""
        return None if self.last_tick is None else max((self.now - self.last_tick).total_seconds(), 0.0)

    def owners(self, within: float = _GRACE_MS / 1000) -> set[str]:
        """The owners of whom a beat is there: it leads, or its sign of life is overdue by these seconds at most."""
        leading = {self.leader.owner} if self.leader is not None else set()
        return leading | {each.owner for each in self.standbys if each.silent_for <= within}


@public_in("redbeat_lite.operate")
def status(app: Celery, *, timeout: Duration | None = None) -> Status:
    """Ask Redis how the beats of an app fare.

    Parameters:
        timeout: length of time until a server that does not answer is given up.

    Raises:
        ConfigurationError: the app's settings are wrong.
        redis.exceptions.RedisError: the server does not answer.
    """
    settings = Settings.from_app(app)
    found = status_of(settings, timeout=None if timeout is None else check_seconds("timeout", timeout, 0))
    is_here = settings.url == (app.conf.broker_read_url or app.conf.broker_url)
    return replace(found, messages=_waiting(app, settings, found.queues)) if found.freezes and is_here else found


def _waiting(app: Celery, settings: Settings, queues: Sequence[str]) -> int | None:
    """How many messages wait in these queues and the default one; ``None`` where the broker does not say."""
    count = 0
    with suppress(Exception), app.connection_for_read() as connection:  # each kind of trouble is its driver's own
        connection.transport_options |= publish_timeouts(connection, settings.publish_timeout) | TWICE
        for queue in {app.conf.task_default_queue, *queues}:
            with suppress(*connection.channel_errors):  # where nothing waits, there is no such queue
                count += connection.default_channel.queue_declare(queue, passive=True).message_count
        return count
    return None


def status_of(settings: Settings, *, timeout: float | None = None) -> Status:
    """As :func:`status`, from the settings."""
    # A connection is tried twice.
    store = Store.of(settings, timeout=None if timeout is None else timeout / 2)
    try:
        return read(store)
    finally:
        store.backend.close()


def read(store: Store) -> Status:
    """As :func:`status`, over a connection that is there; one round trip."""
    return status_in(store.backend.scripts.run(*asking(store.keys)))


def present(store: Store, settings: Settings) -> set[str]:
    """The owners of whom a beat is there.

    A leader that died has been silent for a whole lease when another leads; one that gave its lease back is in no list.
    """
    return read(store).owners(within=settings.lease / 2)


def asking(keys: Keys) -> Call:
    """What :func:`read` asks, to be read with other things, and by :func:`status_in` and :func:`reports_in`."""
    workers = OnceKeys(keys.prefix).workers
    where = (keys.leader, keys.beats, keys.meta, keys.due, keys.entries, keys.quarantine, workers)
    return Call("schedule/status", (*where, index_key(keys.prefix)), (OVERDUE_MS,))


def reports_in(reply: Sequence[Any]) -> dict[str, WorkerReport]:
    """What the workers with ``install()`` say that were heard of within the last minute, by their node names."""
    return heard_of(_pairs(reply[8]), reply[0] / 1000)


def status_in(reply: Sequence[Any]) -> Status:
    """The status that the reply tells."""
    now, leader, beats, ticked, entries, overdue, head, quarantined, workers, refused, freezes, pipelines = reply
    fields, known = _pairs(leader), Freezes.of(freezes)
    late, heard = head and known.until(now) is None, heard_of(_pairs(workers), now / 1000)
    return Status(
        now=from_ms(now),
        leader=_leader(fields),
        standbys=tuple(_standbys(_pairs(beats), fields.get(b"token"), now)),
        last_tick=_instant(ticked),
        lag=max(now - float(head[1]), 0.0) / 1000 if late else 0.0,
        overdue=overdue if late else 0,
        entries=entries,
        quarantined=quarantined,
        clocks={name: said.ahead for name, said in heard.items()},
        refused=Refused.decode(refused),
        freezes=tuple(each for each in known.all if each.holds(now)),
        queues=tuple(sorted({queue for said in heard.values() for queue in said.queues})),
        pipelines=pipelines,
    )


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


# What lies there may be anything: whoever asks is told what can be told.


def _leader(fields: dict[bytes, bytes]) -> LeaderStatus | None:
    if not fields:
        return None
    report = loads_as(dict, fields.get(b"report"))
    failing = report.get("failing_ms")
    return LeaderStatus(
        host=fields.get(b"host", b"?").decode(errors="backslashreplace"),
        pid=_number(fields.get(b"pid")),
        since=_instant(fields.get(b"since", b"") + b"000") or EPOCH,
        term=_number(fields.get(b"term")),
        dispatch=str(report.get("dispatch", "")),
        failing_for=None if failing is None else _count(failing) / 1000,
        why=str(report.get("why", "")),
        owner=beat.owner if (beat := beat_of(fields.get(b"token", b""))) is not None else "",
        **{name: _count(report.get(name)) for name in ("sent", "failed", "skipped", "backfill_left")},
    )


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and re.fullmatch(rb"[0-9]{1,18}", text) else 0


def _instant(ms: bytes) -> datetime | None:
    with suppress(OverflowError):
        return from_ms(_number(ms)) if _number(ms) else None
    return None


def _count(value: object) -> int:
    return value if isinstance(value, int) and abs(value) < 10**18 else 0


def _standbys(beats: dict[bytes, bytes], leading: bytes | None, now: int) -> Iterator[StandBy]:
    """The beats but for the one that leads, from their tokens and when their signs of life are due."""
    for token, due in beats.items():
        beat = beat_of(token)
        if beat is not None and token != leading:
            yield StandBy(beat.host, beat.pid, max(now - float(due), 0.0) / 1000, beat.owner)
