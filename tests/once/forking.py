"""Forks while another thread holds a lock: ``main(CASE)``, in a process of its own.

It ends with 0 if the child got through, and tells what happened if it did not. Those of pytest would not do: its
threads hold locks too. ``python -m tests.once.forking`` has no other thread, and plays the case of each line that it
reads in a fork of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery import Celery
from kombu.utils.objects import cached_property

from redbeat_lite import Schedules, forks
from redbeat_lite.api import reader as api
from redbeat_lite.once.hold import Hold
from redbeat_lite.once.renewal import Renewer
from redbeat_lite.once.store import Held
from redbeat_lite.once.worker import dead_children
from redbeat_lite.pipeline import sweeper
from redbeat_lite.settings import Settings
from redbeat_lite.storage.connections import Backend
from redbeat_lite.threads import Ticker
from tests.support.waiting import eventually

#: Seconds after which a child that has not ended hangs. Nothing that it does takes any time.
HANGS = 10.0

#: Seconds for which a lock is held: long enough for a fork, and less than what the gate waits.
HELD = 0.5

#: What nobody listens to: no case comes as far as a connection.
URL = "redis://127.0.0.1:1/0"

_Work = Callable[[], object]


def fork(in_child: _Work) -> None:
    """Fork, and fail unless the child does this and ends."""
    heard, told = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            in_child()
            os.write(told, b".")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(told)
    os.set_blocking(heard, False)
    said, deadline = None, time.monotonic() + HANGS
    while said is None:  # and not for its exit code, which gevent's loop may take away
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise SystemExit("the child hangs")
        with suppress(BlockingIOError):
            said = os.read(heard, 1)
        time.sleep(0.01)
    os.close(heard)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
    assert said, "the child has failed"


def in_thread(work: _Work) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# -- work that holds a lock: which one, and what a child does that needs it --------------------------------------------


class Holding:
    """A piece of work in the middle of which a lock is held, of a kind that the child needs as well."""

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
    """The lock of a module that is being imported."""

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
    """The lock of one of kombu's cached properties, which is that of all objects of a class."""

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


# -- who of ours does such work ----------------------------------------------------------------------------------------


def beat(work: _Work) -> None:
    Ticker("test", lambda: 0.0, _once(work)).start()


def departure(work: _Work) -> None:
    app = Celery("forking", broker=URL)
    app.set_current()
    dead_children.is_gone = lambda pid: True  # type: ignore[assignment]
    dead_children.has_succeeded = lambda task, task_id: work()  # type: ignore[assignment]
    dead_children.Runtime.of(app).end = lambda *args, **kwargs: None  # type: ignore[method-assign]
    request: Any = type("Request", (), {"app": app, "worker_pid": 1, "task": None, "id": "t"})
    in_thread(lambda: dead_children._follow(request, hold(), True))


def renewal(work: _Work) -> None:
    def connect(timeout: float) -> Any:
        work()
        raise ConnectionError

    Renewer(connect).add(hold())


def sweep(work: _Work) -> None:
    sweeper.PERIOD = 0.0
    done = _once(work)
    sweeper.sweep = lambda app: done()  # type: ignore[assignment,return-value]
    sweeper.sweeper(Celery("forking"), lambda: True).start()


def hold() -> Hold:
    """What a run holds that has to be renewed at once."""
    renewed = time.monotonic() - 60
    return Hold(Held("token", "t", 0, 60_000, key="k", holder="h", life_ms=1), None, begun=renewed, renewed=renewed)


def _once(work: _Work) -> Callable[[], None]:
    def call() -> None:
        if not done:
            done.append(1)
            work()

    done: list[int] = []
    return call


# -- the cases ---------------------------------------------------------------------------------------------------------


def held_by(who: Callable[[_Work], object], holding: Holding) -> None:
    """Somebody of ours is in the middle of such work when the process forks."""
    who(holding.work)
    assert holding.begun.wait(HANGS)
    fork(holding.in_child)


def client() -> None:
    """Another thread makes a client."""
    asked = threading.Event()

    class Slow(Backend):
        def open(self, *, timeout: float | None = None) -> Any:
            asked.set()
            time.sleep(60)

    in_thread(lambda: Slow(Settings(url=URL)).client)
    assert asked.wait(HANGS)
    fork(lambda: Backend(Settings(url=URL)).scripts)


def schedules() -> None:
    """Another thread finds out what ``Schedules`` are about."""
    asked = threading.Event()

    class Slow(Settings):
        @classmethod
        def from_app(cls, app: Any) -> Any:
            asked.set()
            time.sleep(60)

    app = Celery("forking", broker=URL)
    true, api.Settings = api.Settings, Slow  # type: ignore[misc]
    in_thread(lambda: repr(Schedules(app)))
    assert asked.wait(HANGS)
    api.Settings = true  # type: ignore[misc]
    fork(lambda: repr(Schedules(app)))


def inherited() -> None:
    """A thread of somebody else takes a connection of a client that the child has, too."""
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


def waking() -> None:
    """A thread of ours waits, and others wake it all the time: the lock of what it waits with would often be held."""
    sys.setswitchinterval(1e-5)
    one = Ticker("test", lambda: 60.0, lambda: None)
    one.start()
    over = False

    def wake() -> None:
        while not over:
            one.soon()

    def in_child() -> None:
        one.soon()
        one.stop()

    wakers = [in_thread(wake) for _ in range(2)]
    for _ in range(25):
        fork(in_child)
    over = True
    for each in wakers:
        each.join()


def bounded() -> None:
    """Work that does not end delays a fork by so much, and meanwhile others go on."""
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
    assert len([each for each in beats if before < each < before + forks.PATIENCE]) > 10
    # The child has been forked, and nobody waits any more.
    eventually(lambda: beats[-1] > after)


def at_once() -> None:
    """Several work at once, and new work does not begin during the fork itself."""
    met = threading.Barrier(3)

    def work() -> None:
        with forks.held_off():
            met.wait(HANGS)

    threads = [in_thread(work) for _ in range(2)]
    met.wait(HANGS)
    for each in threads:
        each.join()
    assert not forks._at_work
    done: list[int] = []

    def count() -> None:
        with forks.held_off():
            done.append(1)

    forks._before_fork()
    late = in_thread(count)
    time.sleep(HELD)
    assert not done
    forks._after_fork_in_parent()
    late.join(HANGS)
    assert done


def itself() -> None:
    """Work that forks, in a thread and from a signal handler, waits for nobody; nor do its child and grandchild."""

    def grandchild() -> None:
        with forks.held_off():
            fork(lambda: None)

    def forks_itself(*args: object) -> None:
        with forks.held_off(), forks.held_off():
            fork(grandchild)

    before = time.monotonic()
    errors: list[BaseException] = []

    def noted() -> None:
        try:
            forks_itself()
        except BaseException as exc:
            errors.append(exc)

    in_thread(noted).join()
    assert not errors, errors
    signal.signal(signal.SIGUSR1, forks_itself)
    with forks.held_off():
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0)
    assert time.monotonic() - before < forks.PATIENCE
    assert not forks._at_work
    assert not forks._forking


def asleep() -> None:
    """Work that waits for a server to come back lets a fork through meanwhile, and none afterwards."""
    begun, over, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with forks.held_off(), forks.held_off():
            with forks.let_through():
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


def interrupted() -> None:
    """A signal handler raises while a fork waits, which Python turns into a line: the next work begins all the same."""

    def handler(*args: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGUSR1, handler)
    begun = threading.Event()

    def work() -> None:
        with forks.held_off():
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


def green() -> None:
    """Greenlets in the place of threads wait for nobody: the one that forks stops all of them."""
    import gevent

    begun: list[int] = []

    def work() -> None:
        with forks.held_off(), forks.let_through(), forks.held_off():
            begun.append(1)
            gevent.sleep(60)

    other = gevent.spawn(work)
    gevent.sleep(0)
    assert begun
    before = time.monotonic()
    fork(lambda: None)
    assert time.monotonic() - before < forks.PATIENCE
    other.kill()


WHO = {each.__name__: each for each in (beat, departure, renewal, sweep)}
HOLDING = {each.__name__: each for each in (Importing, Kombu)}
CASES = {
    each.__name__: each
    for each in (client, schedules, inherited, waking, bounded, at_once, itself, asleep, interrupted, green)
}


def main(name: str, *more: str) -> None:
    if name in WHO:
        held_by(WHO[name], HOLDING[more[0]]())
    else:
        CASES[name]()


def play(words: list[str]) -> tuple[int, str]:
    """Play a case in a fork; returns how that ended and what it said."""
    with tempfile.TemporaryFile("w+") as said:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.dup2(said.fileno(), 2)
                signal.alarm(50)
                main(*words)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        said.seek(0)
        return status, said.read()


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(play(line.split())), flush=True)
