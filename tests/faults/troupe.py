"""The beats and workers of a scenario: started, killed, stopped, frozen, and held to their manners."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import Any

from tests.faults.collector import Term
from tests.support.beats import KEYS
from tests.support.process_table import descendants
from tests.support.processes import ROOT, Process, celery
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

#: The queue that workers consume; that of the load is left for the collector.
QUEUE = "work"

#: Seconds in which a beat has ended that is told to stop, and a worker whose tasks take less than one. A beat promises
#: two, to which its own tests hold it.
STOP = 10.0

#: Seconds for which a child of Celery's prefork pool stays when its main process does not read that it is done: on a
#: stop, that forgets each task of which it has not yet read that a child has begun it, whether one has or not.
UNREAD = 30.0

#: What a worker says when its broker is gone, and when it cannot go on without it.
_LOST = "Connection to broker lost"
_DOOMED = "CRITICAL.*[Uu]nrecoverable"

_WORKER = f"worker -P prefork -c 2 -Q {QUEUE} -l INFO --without-gossip --without-mingle -n".split()


class Troupe:
    """Every process that a scenario runs.

    Parameters:
        schedule: opens a client of the server that holds the schedule.
        url: of the broker, with a password, which no process may show.
        conf: the settings of their app.
        chance: draws whom it hits.
    """

    def __init__(self, schedule: Callable[[], Any], url: str, conf: dict[str, Any], chance: random.Random) -> None:
        assert "@" in url, "without a password in the URL none could be shown"
        self.url = url
        self.chance = chance
        self.beats: list[Process] = []
        self.workers: list[Process] = []
        self.ended: list[Process] = []
        self.stayed: list[Process] = []
        self._schedule = schedule
        self._conf = conf
        self._env: dict[Process, Any] = {}
        self._numbers = itertools.count()
        #: What the machine kept from the beats and from the suite itself.
        self.watch = Stopwatch(often=0.05)
        #: Which processes were killed, or lost the main process of their worker, and when; on the monotonic clock.
        self.killed: dict[int, float] = {}
        #: What no line of a process may say.
        self._unheard: dict[Process, str] = {}

    def beat(self, *, url: str | None = None, app: str = "tests.faults.faultproj", **env: Any) -> Process:
        """Start a beat; ``conf=`` adds to its settings, anything else to its environment."""
        conf = {**self._conf, **env.pop("conf", {})}
        words = ("beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO")
        process = celery(app, *words, PROJ_URL=url or self.url, PROJ_CONF=json.dumps(conf), **env)
        self.beats.append(process)
        self.watch.add(process)
        self._unheard[process] = "CRITICAL|Traceback"
        return process

    def worker(self, **env: Any) -> Process:
        """Start a worker with two children; keyword arguments go to its environment."""
        conf = {name: value for name, value in self._conf.items() if name != "beat_schedule"}
        words = (*_WORKER, f"w{next(self._numbers)}@faults")
        process = celery("tests.faults.workproj", *words, PROJ_URL=self.url, PROJ_CONF=json.dumps(conf), **env)
        self.workers.append(process)
        self._env[process] = env
        # Celery prints a traceback for each lost connection and each lost child. Our code may be in none of them. In
        # the stacks that `Process.wait` asks for it may: those have no comma after the number of a line.
        self._unheard[process] = rf'File "{re.escape(str(ROOT))}/redbeat_lite/[^"]*", line \d+(,|$)'
        return process

    def leader(self) -> Process:
        """The beat that holds the lease; waits until there is one."""
        return eventually(self._leader, within=20, what="a leader among the beats")

    def _leader(self) -> Process | None:
        try:
            with self._schedule() as client:
                pid = client.hget(KEYS.leader, "pid")
        except Exception:
            return None
        return next((each for each in self.beats if pid and each.pid == int(pid)), None)

    def any_worker(self) -> Process:
        """One of the workers that have run something, drawn by lot; waits until there is one."""
        return self.chance.choice(eventually(self._ready, within=30, what="a worker"))

    def _ready(self) -> list[Process]:
        self.revive()  # the last one may have been about to end when it was looked at before
        return [each for each in self.workers if each.alive and each.lines("succeeded in")]

    def revive(self) -> None:
        """Start workers anew that ended by themselves or are about to, as whatever supervises them does.

        The main process of a Celery worker may, when its broker restarts; it says so, and may take as long as UNREAD.
        """
        for each in [each for each in self.workers if not each.alive or each.lines(_DOOMED)]:
            assert each.lines(f"{_DOOMED}|{_LOST}"), each.output
            self._kill(each.pid, *descendants(each.pid))
            each.wait()
            self._leave(each)
            self.worker(**self._env[each])

    @contextmanager
    def loss_of_their_broker(self) -> Iterator[None]:
        """Each worker that is connected before loses its broker meanwhile; at the end it has another one, or is
        replaced. Which of the two happens to it is chance."""
        before = {each: len(each.lines(_LOST)) for each in self.workers if each.lines(r" ready\.$")}
        yield

        def decided(worker: Process) -> bool:
            lost = len(worker.lines(_LOST))
            back = before[worker] < lost < len(worker.lines("Connected to "))
            return back or not worker.alive or bool(worker.lines(_DOOMED))

        eventually(lambda: all(map(decided, before)), within=30, what="a broker for each worker, or its end")
        self.revive()

    def kill(self, process: Process, *, whole: bool = False) -> None:
        """SIGKILL a beat, or the main process of a worker; ``whole``: its children too, as when a machine is lost."""
        assert process.alive, process.output
        children = descendants(process.pid)
        self._kill(process.pid, *(children if whole else ()))
        self.killed.update(dict.fromkeys(children, time.monotonic()))
        code = process.wait()
        assert code == -signal.SIGKILL, f"exit code {code}\n{process.output}"
        self._leave(process)

    def kill_child(self) -> None:
        """SIGKILL one of the processes in which workers run their tasks."""
        children = eventually(lambda: sorted(descendants(self.any_worker().pid)), what="a child of a worker")
        self._kill(self.chance.choice(children))

    def _kill(self, *pids: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed[pid] = time.monotonic()

    def stop(self, process: Process) -> None:
        """SIGTERM a beat, or a worker, which first ends what it runs; either exits with 0 in time."""
        # Before that, a signal may find Python without a handler.
        process.says("beat: (leading|standing by)" if process in self.beats else r" ready\.$")
        process.terminate()
        if process in self.workers and process.lines(_LOST):
            # With something to acknowledge over a connection that is gone, Celery 5.7 fails on its way out, or takes as
            # long as UNREAD.
            with suppress(AssertionError):
                eventually(lambda: not process.alive, within=STOP)
            if process.alive:
                self._kill(process.pid, *descendants(process.pid))
            process.wait()
        else:
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP)
            if process.alive and process in self.workers and descendants(process.pid):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(UNREAD)  # It waits for that child. What never ends is no longer excused than that.
            assert not process.alive, f"it has not ended within {STOP:g} s\n{process.output}"
            code = process.wait()
            assert code == 0, f"exit code {code}\n{process.output}"
        self._leave(process)

    def _leave(self, process: Process) -> None:
        (self.beats if process in self.beats else self.workers).remove(process)
        self.ended.append(process)

    @contextmanager
    def frozen(self, process: Process) -> Iterator[None]:
        """A process that is stopped for a while."""
        process.signal(signal.SIGSTOP)
        yield
        process.signal(signal.SIGCONT)

    def dismiss_beats(self) -> None:
        """Stop every beat; none may have ended by itself."""
        leader = self.leader()
        # The leader last: else another one would lead for the moment until it is stopped, too.
        for each in sorted(self.beats, key=lambda each: each is leader):
            assert each.alive, each.output
            self.stop(each)

    def dismiss_workers(self) -> None:
        """Stop every worker; those that never lost their broker have :attr:`stayed`."""
        self.stayed = [each for each in self.workers if not each.lines(_LOST)]
        for each in list(self.workers):
            self.stop(each)

    def terms(self) -> list[Term]:
        """Who began to lead when, by the clocks of the beats that have ended."""
        found = []
        for each in self.ended:
            for line in each.lines("beat: leading"):
                [text] = re.findall(r"^\[([-0-9]+ [:0-9]+,[0-9]+)", line)
                began = datetime.fromisoformat(text).timestamp()
                found.append(Term(round(1000 * began), each.pid))
        return sorted(found)

    def check_words(self) -> None:
        """Look at what every process has said that ended."""
        for each in self.ended:
            assert not each.lines(self._unheard[each]), each.output

    def close(self) -> None:
        """End every process; none of them may have shown a password."""
        for each in self.workers:
            self._kill(*descendants(each.pid))  # those of a main process that is killed alone may stay for ever
        with ExitStack() as stack:
            for each in (*self.beats, *self.workers, *self.ended):
                stack.callback(each.destroy)
