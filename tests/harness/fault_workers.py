"""Real workers of one scenario: killed, frozen, stopped, and replaced as a supervisor would."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from tests.harness.beats import STOP
from tests.harness.history import HistoryLog, now_ms
from tests.support.process_table import descendants
from tests.support.processes import ROOT, Process, celery
from tests.support.waiting import eventually

#: Seconds for which a child of Celery's prefork pool stays when its main process does not read that
#: it is done. On a stop, Celery forgets tasks of which it has not read yet that a child began them.
UNREAD = 30.0

#: A worker says this when its broker is gone, …
LOST = "Connection to broker lost"

#: … and this when it cannot go on without it.
DOOMED = "CRITICAL.*[Uu]nrecoverable"

#: Celery prints tracebacks of lost connections and children. Code of the package may be in none of
#: them. The stacks that `Process.wait` asks for have no comma after the number of a line.
BAD_WORDS = rf'File "{re.escape(str(ROOT))}/redbeat_lite/[^"]*", line \d+(,|$)'


class FaultWorkers:
    """All workers of a scenario.

    Parameters:
        log: the history.
        url: of the broker, with a password, which no worker may print.
        conf: settings of their app.
        chance: draws the worker that a fault hits.
    """

    #: The queue that workers consume. The collector reads the queue of the load.
    queue = "work"

    def __init__(
        self,
        log: HistoryLog,
        url: str,
        conf: dict[str, Any],
        chance: random.Random,
    ) -> None:
        self.running: list[Process] = []
        self.ended: list[Process] = []
        #: Those that were there to the end, and never lost their broker.
        self.stayed: list[Process] = []
        self._log = log
        self._url = url
        self._conf = {name: value for name, value in conf.items() if name != "beat_schedule"}
        self._chance = chance
        self._numbers = itertools.count()
        self._env: dict[Process, dict[str, Any]] = {}

    def start(self, **env: Any) -> Process:
        """Start one more worker with two children.

        Parameters:
            env: more of its environment.
        """
        words = f"worker -P prefork -c 2 -Q {self.queue} -l INFO --without-gossip --without-mingle"
        name = f"w{next(self._numbers)}@faults"
        own = {"PROJ_URL": self._url, "PROJ_CONF": json.dumps(self._conf)}
        environment = {**own, **self._log.environment, **env}
        worker = celery("tests.harness.fault_tasks", *words.split(), "-n", name, **environment)
        self.running.append(worker)
        self._env[worker] = env
        return worker

    def any(self) -> Process:
        """Wait until a worker has run something, and return one that has, drawn at random."""
        return self._chance.choice(eventually(self._busy, within=30, what="a worker"))

    def _busy(self) -> list[Process]:
        self.revive()  # A worker may have been about to end when this looked before.
        return [worker for worker in self.running if worker.alive and worker.lines("succeeded in")]

    def revive(self) -> None:
        """Replace workers that ended by themselves or are about to, as a supervisor does.

        The main process of a Celery worker may end when its broker restarts. It says so.
        """
        for worker in list(self.running):
            if worker.alive and not worker.lines(DOOMED):
                continue
            assert worker.lines(f"{DOOMED}|{LOST}"), worker.output
            self._kill(worker.pid, *descendants(worker.pid))
            worker.wait()
            self._leave(worker)
            self.start(**self._env[worker])

    @contextmanager
    def loss_of_their_broker(self) -> Iterator[None]:
        """Each worker loses its broker in the block. At the end it has one, or is replaced."""
        ready = [worker for worker in self.running if worker.lines(r" ready\.$")]
        before = {worker: len(worker.lines(LOST)) for worker in ready}
        yield

        def is_decided(worker: Process) -> bool:
            lost = len(worker.lines(LOST))
            is_back = before[worker] < lost < len(worker.lines("Connected to "))
            return is_back or not worker.alive or bool(worker.lines(DOOMED))

        def are_decided() -> bool:
            return all(is_decided(worker) for worker in ready)

        eventually(are_decided, within=30, what="a broker for each worker, or its end")
        self.revive()

    def kill(self, worker: Process, *, whole: bool = False) -> None:
        """Kill the main process of a worker by SIGKILL.

        Parameters:
            whole: kill its children too, as when a machine is lost.
        """
        assert worker.alive, worker.output
        children = descendants(worker.pid)
        self._kill(worker.pid, *(children if whole else ()))
        # Children without their main process end too.
        self._note_deaths(children)
        code = worker.wait()
        assert code == -signal.SIGKILL, f"exit code {code}\n{worker.output}"
        self._leave(worker)

    def kill_child(self) -> None:
        """Kill one of the processes in which workers run their tasks."""

        def children() -> list[int]:
            return sorted(descendants(self.any().pid))

        self._kill(self._chance.choice(eventually(children, what="a child of a worker")))

    def _kill(self, *pids: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self._note_deaths([pid])

    def _note_deaths(self, pids: Any) -> None:
        self._log.append(*({"kind": "death", "pid": pid, "at": now_ms()} for pid in pids))

    def stop(self, worker: Process) -> None:
        """Stop a worker by SIGTERM. It ends its tasks first, and exits with 0 in time."""
        worker.says(r" ready\.$")
        worker.terminate()
        if worker.lines(LOST):
            self._await_failing_end(worker)
        else:
            self._await_end(worker)
        self._leave(worker)

    def _await_failing_end(self, worker: Process) -> None:
        """Wait for the end of a worker that lost its broker. With messages to acknowledge over a
        connection that is gone, Celery 5.7 fails on its way out, or takes as long as UNREAD."""
        with suppress(subprocess.TimeoutExpired):
            worker.wait(STOP)
        if worker.alive:
            self._kill(worker.pid, *descendants(worker.pid))
        worker.wait()

    def _await_end(self, worker: Process) -> None:
        with suppress(subprocess.TimeoutExpired):
            worker.wait(STOP)
        if worker.alive and descendants(worker.pid):
            with suppress(subprocess.TimeoutExpired):
                worker.wait(UNREAD)  # It waits for that child.
        assert not worker.alive, f"it has not ended within {STOP:g} s\n{worker.output}"
        code = worker.wait()
        assert code == 0, f"exit code {code}\n{worker.output}"

    def dismiss(self) -> None:
        """Stop all workers; none of them may have printed bad words."""
        self.stayed = [worker for worker in self.running if not worker.lines(LOST)]
        for worker in list(self.running):
            self.stop(worker)
        for worker in self.ended:
            assert not worker.lines(BAD_WORDS), worker.output

    def close(self) -> None:
        """End all workers; none of them may have printed a password."""
        for worker in self.running:
            self._kill(*descendants(worker.pid))  # They may outlive their main process.
        with ExitStack() as stack:
            for worker in (*self.running, *self.ended):
                stack.callback(worker.destroy)

    def _leave(self, worker: Process) -> None:
        self.running.remove(worker)
        self.ended.append(worker)
