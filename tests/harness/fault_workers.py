"""Real workers of one scenario: killed, frozen, stopped, and replaced as a supervisor would."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from tests.harness.beats import STOP
from tests.harness.history import HistoryLog, now_ms
from tests.harness.workers import Worker
from tests.support.nursery import ROOT
from tests.support.waiting import eventually

APP = "tests.harness.fault_tasks"

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
        self.running: list[Worker] = []
        self.ended: list[Worker] = []
        #: Those that were there to the end, and never lost their broker.
        self.stayed: list[Worker] = []
        own = {name: value for name, value in conf.items() if name != "beat_schedule"}
        self._env: dict[str, Any] = {"PROJ_URL": url, "PROJ_CONF": json.dumps(own)}
        self._env |= log.environment
        self._log = log
        self._chance = chance

    def start(self, **env: Any) -> Worker:
        """Start one more worker with two children.

        Parameters:
            env: more of its environment.
        """
        worker = Worker(APP, queues=self.queue, ready=False, **self._env, **env)
        self.running.append(worker)
        return worker

    def any(self) -> Worker:
        """Wait until a worker has run something, and return one that has, drawn at random."""
        return self._chance.choice(eventually(self._busy, within=30, what="a worker"))

    def _busy(self) -> list[Worker]:
        self.revive()  # A worker may have been about to end when this looked before.
        alive = [worker for worker in self.running if worker.alive]
        return [worker for worker in alive if worker.process.lines("succeeded in")]

    def revive(self) -> None:
        """Replace workers that ended by themselves or are about to, as a supervisor does.

        The main process of a Celery worker may end when its broker restarts. It says so.
        """
        for worker in list(self.running):
            if worker.alive and not worker.process.lines(DOOMED):
                continue
            assert worker.process.lines(f"{DOOMED}|{LOST}"), worker.text()
            self._kill(worker.process.pid, *worker.children())
            worker.wait()
            self._leave(worker)
            self.start()

    @contextmanager
    def loss_of_their_broker(self) -> Iterator[None]:
        """Each worker loses its broker in the block. At the end it has one, or is replaced."""
        processes = [worker.process for worker in self.running]
        ready = [process for process in processes if process.lines(r" ready\.$")]
        before = {process: len(process.lines(LOST)) for process in ready}
        yield

        def are_decided() -> bool:
            for process in ready:
                lost = len(process.lines(LOST))
                is_back = before[process] < lost < len(process.lines("Connected to "))
                if not is_back and process.alive and not process.lines(DOOMED):
                    return False
            return True

        eventually(are_decided, within=30, what="a broker for each worker, or its end")
        self.revive()

    def kill(self, worker: Worker, *, whole: bool = False) -> None:
        """Kill the main process of a worker by SIGKILL.

        Parameters:
            whole: kill its children too, as when a machine is lost.
        """
        assert worker.alive, worker.text()
        children = worker.children()
        self._kill(worker.process.pid, *(children if whole else ()))
        # Children without their main process end too.
        self._note_deaths(children)
        code = worker.wait()
        assert code == -signal.SIGKILL, f"exit code {code}\n{worker.text()}"
        self._leave(worker)

    def kill_child(self) -> None:
        """Kill one of the processes in which workers run their tasks."""
        children = eventually(lambda: self.any().children(), what="a child of a worker")
        self._kill(self._chance.choice(children))

    def _kill(self, *pids: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self._note_deaths([pid])

    def _note_deaths(self, pids: Iterable[int]) -> None:
        self._log.append(*({"kind": "death", "pid": pid, "at": now_ms()} for pid in pids))

    def stop(self, worker: Worker) -> None:
        """Stop a worker by SIGTERM. It ends its tasks first, and exits with 0 in time.

        A worker that lost its broker may fail instead, or take as long as UNREAD: Celery 5.7 tries
        to acknowledge messages over the connection that is gone.
        """
        worker.ready()
        worker.process.terminate()
        self._wait(worker, STOP)
        if worker.process.lines(LOST):
            if worker.alive:
                self._kill(worker.process.pid, *worker.children())
            worker.wait()
        else:
            if worker.alive and worker.children():
                self._wait(worker, UNREAD)  # It waits for that child.
            assert not worker.alive, f"it has not ended within {STOP:g} s\n{worker.text()}"
            code = worker.wait()
            assert code == 0, f"exit code {code}\n{worker.text()}"
        self._leave(worker)

    def _wait(self, worker: Worker, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            worker.wait(seconds)

    def dismiss(self) -> None:
        """Stop all workers; none of them may have printed bad words."""
        self.stayed = [worker for worker in self.running if not worker.process.lines(LOST)]
        for worker in list(self.running):
            self.stop(worker)
        for worker in self.ended:
            assert not worker.process.lines(BAD_WORDS), worker.text()

    def close(self) -> None:
        """End all workers; none of them may have printed a password."""
        with ExitStack() as stack:
            for worker in (*self.running, *self.ended):
                stack.callback(worker.close)

    def _leave(self, worker: Worker) -> None:
        self.running.remove(worker)
        self.ended.append(worker)
