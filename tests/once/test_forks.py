"""A process that forks while one of its threads holds a lock: the child gets through."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.utils.objects import cached_property

from redbeat_lite import Schedules
from redbeat_lite._base import forks
from redbeat_lite._base.clock import elapsed
from redbeat_lite._base.lazy import lazy, of_process
from redbeat_lite._base.threads import Ticker
from redbeat_lite.api import reader as api
from redbeat_lite.once.claims import Hold
from redbeat_lite.once.lock_client import Renewer
from redbeat_lite.once.worker import request as worker_request
from redbeat_lite.pipeline import sweeper
from redbeat_lite.settings import Settings
from redbeat_lite.store.connections import Backend
from tests.once.alone import HANGS, Work, alone, fork, in_thread
from tests.support.nursery import ROOT
from tests.support.waiting import eventually

#: Seconds for which a lock is held: long enough for a fork, and less than a fork waits for work.
HELD = 0.5

#: Nobody listens here. No test comes as far as a connection.
URL = "redis://127.0.0.1:1/0"


# -- work that holds a lock which a child needs, too -----------------------------------------------


class Holding:
    """A piece of work in the middle of which a lock is held."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def work(self) -> None:
        raise NotImplementedError

    def in_child(self) -> None:
        raise NotImplementedError

    def hold(self) -> None:
        self.begun.set()
        time.sleep(HELD)


class Importing(Holding):
    """Holds the lock of a module that is being imported."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        Path(self._directory.name, "slow_to_import.py").write_text("import builtins\nbuiltins.hold()\n")
        sys.path.insert(0, self._directory.name)
        setattr(sys.modules["builtins"], "hold", self.hold)  # noqa: B010 - mypy knows what is there

    def work(self) -> None:
        importlib.import_module("slow_to_import")

    in_child = work


class Kombu(Holding):
    """Holds the lock of one of kombu's cached properties, which all objects of a class share."""

    class Connection:
        @cached_property
        def channel(self) -> int:
            slow, Kombu.slow = Kombu.slow, None
            if slow is not None:
                slow.hold()
            return 1

    slow: Kombu | None = None

    def work(self) -> None:
        Kombu.slow = self
        assert self.Connection().channel

    def in_child(self) -> None:
        assert self.Connection().channel


# -- threads of the package that do such work ------------------------------------------------------


def beat(work: Work) -> None:
    Ticker("test", lambda: 0.0, only_once(work)).start()


def departure(work: Work) -> None:
    app = Celery("forking", broker=URL)
    app.set_current()
    worker_request.is_gone = lambda pid: True  # type: ignore[assignment]
    worker_request.has_succeeded = lambda task, task_id: work()  # type: ignore[assignment]
    worker_request.LockClient.of(app).end = lambda *args, **kwargs: None  # type: ignore[method-assign]
    request: Any = type("Request", (), {"app": app, "worker_pid": 1, "task": None, "id": "t", "hold": None})
    request.request_dict, request.time_start = {}, None
    in_thread(lambda: worker_request._end_when_gone(request, None))


def renewal(work: Work) -> None:
    def connect() -> Any:
        work()
        raise ConnectionError

    Renewer(connect).add(due_hold())


def sweep(work: Work) -> None:
    sweeper.PERIOD = 0.0
    once = only_once(work)
    sweeper.sweep = lambda app: once()  # type: ignore[assignment,return-value]
    sweeper.sweeper(Celery("forking"), lambda: True).start()


def due_hold() -> Hold:
    """Return what a run holds that has to be renewed at once."""
    renewed = elapsed() - 60
    return Hold("token", "t", 0, 60_000, key="k", holder="h", life_ms=1, renewed=renewed)


def only_once(work: Work) -> Callable[[], None]:
    """Return a call that does the work the first time."""
    done: list[int] = []

    def call() -> None:
        if not done:
            done.append(1)
            work()

    return call


WORKERS = {worker.__name__: worker for worker in (beat, departure, renewal, sweep)}
HOLDINGS: dict[str, type[Holding]] = {"Importing": Importing, "Kombu": Kombu}


@pytest.mark.parametrize(("who", "holding"), [*((who, "Importing") for who in WORKERS), ("beat", "Kombu")])
@alone
def test_a_thread_of_ours_that_works_holds_no_lock_at_a_fork(who: str, holding: str) -> None:
    held = HOLDINGS[holding]()
    WORKERS[who](held.work)
    assert held.begun.wait(HANGS)
    fork(held.in_child)


# -- clients and waiting threads -------------------------------------------------------------------


@alone
def test_whoever_makes_a_client_holds_no_lock() -> None:
    opening = threading.Event()

    class Slow(Backend):
        def open(self, *, timeout: float | None = None) -> Any:
            opening.set()
            time.sleep(60)

    in_thread(lambda: Slow(Settings(url=URL)).client)
    assert opening.wait(HANGS)
    fork(lambda: Backend(Settings(url=URL)).scripts)


@alone
def test_whoever_reads_the_settings_holds_no_lock() -> None:
    reading = threading.Event()

    class Slow(Settings):
        @classmethod
        def from_app(cls, app: Any) -> Any:
            reading.set()
            time.sleep(60)

    app = Celery("forking", broker=URL)
    true, api.Settings = api.Settings, Slow  # type: ignore[misc]
    in_thread(lambda: repr(Schedules(app)))
    assert reading.wait(HANGS)
    api.Settings = true  # type: ignore[misc]
    fork(lambda: repr(Schedules(app)))


@alone
def test_a_thread_of_ours_that_waits_holds_no_lock() -> None:
    """Other threads wake it all the time, so its lock would often be held if it had one."""
    sys.setswitchinterval(1e-5)
    ticker = Ticker("test", lambda: 60.0, lambda: None)
    ticker.start()
    over = False

    def wake() -> None:
        while not over:
            ticker.soon()

    def in_child() -> None:
        ticker.soon()
        ticker.stop()

    wakers = [in_thread(wake) for _ in range(2)]
    for _ in range(12):
        fork(in_child)
    over = True
    for waker in wakers:
        waker.join()


@alone
def test_a_child_has_clients_of_its_own() -> None:
    """A thread of somebody else takes a connection of a client that the child inherits."""
    backend = Backend(Settings(url=URL))
    client, scripts = backend.client, backend.scripts
    taken = threading.Event()

    def take() -> None:
        with client.connection_pool._lock:
            taken.set()
            time.sleep(60)

    def in_child() -> None:
        assert backend.scripts is not scripts
        backend.client.connection_pool.disconnect()
        backend.close()

    in_thread(take)
    assert taken.wait(HANGS)
    fork(in_child)
    assert backend.client is client
    assert backend.scripts is scripts


# -- work and forks --------------------------------------------------------------------------------


@alone
def test_work_that_hangs_delays_a_fork_for_two_seconds_and_no_other_work() -> None:
    beats: list[float] = []
    begun = threading.Event()

    def hang() -> None:
        begun.set()
        time.sleep(60)

    Ticker("hangs", lambda: 0.0, hang).start()
    assert begun.wait(HANGS)
    Ticker("works", lambda: 0.01, lambda: beats.append(time.monotonic())).start()
    eventually(lambda: beats)

    def in_child() -> None:
        began = time.monotonic()
        fork(lambda: None)
        assert time.monotonic() - began < forks.PATIENCE

    before = time.monotonic()
    fork(in_child)
    after = time.monotonic()
    assert forks.PATIENCE <= after - before < forks.PATIENCE + 5, after - before
    assert len([beat for beat in beats if before < beat < before + forks.PATIENCE]) > 10
    # The child has been forked, and nobody waits any more.
    eventually(lambda: beats[-1] > after)


@alone
def test_work_goes_on_side_by_side_and_begins_after_the_fork() -> None:
    met = threading.Barrier(3)

    def work() -> None:
        with forks.no_forks():
            met.wait(HANGS)

    threads = [in_thread(work) for _ in range(2)]
    met.wait(HANGS)
    for thread in threads:
        thread.join()
    assert not forks._working
    done: list[int] = []

    def count() -> None:
        with forks.no_forks():
            done.append(1)

    forks._before_fork()
    late = in_thread(count)
    time.sleep(HELD)
    assert not done
    forks._after_fork_in_parent()
    late.join(HANGS)
    assert done


@alone
def test_work_that_forks_waits_for_nobody() -> None:
    """It forks in a thread and in a signal handler. Its child and grandchild do not wait either."""

    def grandchild() -> None:
        with forks.no_forks():
            fork(lambda: None)

    def fork_at_work(*args: object) -> None:
        with forks.no_forks(), forks.no_forks():
            fork(grandchild)

    before = time.monotonic()
    errors: list[BaseException] = []

    def note_error() -> None:
        try:
            fork_at_work()
        except BaseException as exc:
            errors.append(exc)

    in_thread(note_error).join()
    assert not errors, errors
    signal.signal(signal.SIGUSR1, fork_at_work)
    with forks.no_forks():
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0)
    assert time.monotonic() - before < forks.PATIENCE
    assert not forks._working
    assert not forks._forking


@alone
def test_work_that_sleeps_lets_a_fork_through() -> None:
    """It waits for a server to come back. Once it works again, a fork waits for it."""
    begun, over, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with forks.no_forks(), forks.no_forks():
            with forks.forks_allowed():
                begun.set()
                over.wait(HANGS)
            ended.set()
            time.sleep(HELD)

    in_thread(work)
    assert begun.wait(HANGS)
    before = time.monotonic()
    fork(lambda: None)
    assert time.monotonic() - before < forks.PATIENCE
    over.set()
    assert ended.wait(HANGS)
    before = time.monotonic()
    fork(lambda: None)
    assert time.monotonic() - before > HELD / 2


@alone
def test_a_fork_that_a_signal_interrupts_holds_nobody_up() -> None:
    """The handler raises while the fork waits. Python prints that, and goes on."""

    def handler(*args: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGUSR1, handler)
    begun = threading.Event()

    def work() -> None:
        with forks.no_forks():
            begun.set()
            time.sleep(HELD)

    thread = in_thread(work)
    assert begun.wait(HANGS)
    threading.Timer(HELD / 4, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    with suppress(KeyboardInterrupt):
        fork(lambda: None)
    thread.join()
    in_thread(work).join(HANGS)
    assert not forks._forking


def fork_beside_a_greenlet() -> None:
    """Fork in one greenlet while another one works, in a process that gevent has changed."""
    import gevent

    begun: list[int] = []

    def work() -> None:
        with forks.no_forks(), forks.forks_allowed(), forks.no_forks():
            begun.append(1)
            gevent.sleep(60)

    other = gevent.spawn(work)
    gevent.sleep(0)
    assert begun
    before = time.monotonic()
    fork(lambda: None)
    assert time.monotonic() - before < forks.PATIENCE
    other.kill()


def test_greenlets_are_not_waited_for() -> None:
    """The greenlet that forks stops all others meanwhile."""
    # Gevent's own fork and waitpid are left out, because they may lose the end of a child that is quick.
    patch = "from gevent import monkey; monkey.patch_all(os=False)"
    call = "from tests.once.test_forks import fork_beside_a_greenlet; fork_beside_a_greenlet()"
    command = [sys.executable, "-c", f"{patch}; {call}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr


# -- lazy values -----------------------------------------------------------------------------------


def test_a_lazy_value_is_made_once_and_kept_by_its_object() -> None:
    class Thing:
        made = 0

        @lazy
        def value(self) -> list[int]:
            """What it holds."""
            self.made += 1
            return [self.made]

    one, other = Thing(), Thing()
    assert one.value is one.value
    assert (one.made, other.made) == (1, 0)
    assert other.value == [1]
    assert Thing.value.__doc__ == "What it holds."
    del one.__dict__["value"]
    assert one.value == [2]


def test_a_lazy_value_that_somebody_else_has_made_meanwhile_wins() -> None:
    class Thing:
        @lazy
        def value(self) -> str:
            self.__dict__["value"] = "theirs"
            return "ours"

    assert Thing().value == "theirs"


def test_threads_that_meet_share_what_is_made_of_an_app() -> None:
    meeting, app = Barrier(2, timeout=5), SimpleNamespace()

    def made(app: Any) -> object:
        meeting.wait()
        return object()

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda each: of_process(each, made), [app, app])
    assert one is other is of_process(app, made)
