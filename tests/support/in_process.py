"""A beat and the Schedules API in one process, a frozen wall clock, and a look at what a test left behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Scheduler, Schedules
from redbeat_lite.beat import leader
from redbeat_lite.store import records
from tests.support.frozen import Clock, frozen_clock
from tests.support.server import Server

MakeApp = Callable[..., Celery]
MakeBeat = Callable[[Celery], Scheduler]

#: Long enough that no renewal falls into a test.
LEASE = 600

#: What the keys of the schedule begin with.
KEY = "{redbeat-lite}:"

#: The keys of the schedule, and those that once-locks and the record of runs keep for all of them.
OURS = tuple(
    KEY + part
    for part in (
        *("due", "entries", "state", "leader", "meta", "quarantine", "calendars", "changes"),
        *("backfills:due", "backfills:entries", "backfills:state"),
        *("once:fence", "once:index", "once:workers"),
        *("runs:incidents", "runs:news", "runs:deadlines", "runs:feed"),
    )
)

_OURS = {each.encode() for each in OURS}


@pytest.fixture
def clock() -> Iterator[Clock]:
    """The wall clock, frozen at a Monday noon."""
    with frozen_clock() as clock:
        yield clock


@pytest.fixture
def no_leaks(server: Server) -> Iterator[None]:
    """After the test, every key in the schedule's database is one of those, a queue's, or has an end."""
    yield
    client = server.own_client
    left = [key.decode("utf-8", "backslashreplace") for key in client.keys("*") if _leaked(client, key)]
    assert not left, f"left in Redis: {left}"


def _leaked(client: redis.Redis, key: bytes) -> bool:
    if key in _OURS or client.pttl(key) != -1:  # -2: it has ended since it was listed
        return False
    is_queue = client.type(key) == b"list" and not key.startswith(b"{")
    return not (is_queue or key.startswith(b"_kombu.binding"))


@pytest.fixture
def make_app(make_app: MakeApp, no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> MakeApp:
    """Makes Celery apps whose beat keeps its lease without renewing it."""
    monkeypatch.setattr(leader, "_LONGEST_PAUSE", LEASE)

    def make(name: str = "proj", **conf: Any) -> Celery:
        # Without the daily entry that Celery adds for result backends which do not expire by themselves.
        return make_app(name, **{"redbeat_lite_lease": LEASE, "result_expires": None, **conf})

    return make


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of what is read and written at once, so that a tenth of the entries shows how it goes on after that."""
    assert records.PAGE == 1000
    for name, module in [*sys.modules.items()]:
        if name.startswith("redbeat_lite.") and getattr(module, "PAGE", 0) == 1000:
            monkeypatch.setattr(module, "PAGE", 100)


@pytest.fixture
def make_beat() -> Iterator[MakeBeat]:
    """Makes schedulers that run in this process: ``run_due()`` is one turn of their loop."""
    beats: list[Scheduler] = []

    def make(app: Celery) -> Scheduler:
        beats.append(Scheduler(app))
        return beats[-1]

    yield make
    for each in beats:
        each.close()


@pytest.fixture
def inner_beat(app: Celery, make_beat: MakeBeat) -> Scheduler:
    """A scheduler of the shared app, in this process."""
    return make_beat(app)


@pytest.fixture
def schedules(app: Celery) -> Schedules:
    """The schedules of the shared app."""
    return Schedules(app)


def tell_set_back(beat: Scheduler) -> None:
    """Tell a beat that its server's clock was set back, as a renewal does."""
    beat.leader.clock_set_back = f"{time.monotonic_ns()}".encode()


def one_turn(app: Celery, make_beat: MakeBeat) -> Schedules:
    """Run a beat of this app for one turn, and end it; returns the app's schedules."""
    beat, schedules = make_beat(app), Schedules(app)
    beat.run_due()
    led = beat.leader.holds_lease
    beat.close()
    if led:  # on a busy machine it may have had too little time to give its lease back, and the next one would stand by
        schedules._store.backend.client.delete(schedules._store.keys.leader)
    return schedules
