"""Real workers of one scenario: killed, frozen, stopped, and replaced as a supervisor would."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.faults.beats import Herd
from tests.harness.history import HistoryLog, now_ms
from tests.harness.workers import Worker
from tests.support.nursery import ROOT
from tests.support.waiting import eventually

APP = "tests.faults.tasks"

#: Seconds after SIGTERM within which a worker that lost its broker ends, or it hangs.
HANGS = 10.0

#: Seconds for which a child of Celery's prefork pool waits, before it ends, until its main process
#: has read its result. On a stop, the main process no longer reads the result of a task if it has
#: not read before that a child began the task.
UNREAD = 30.0

#: A worker prints this when it has lost its broker.
LOST = "Connection to broker lost"

#: A worker prints this when it ends because it cannot connect again.
DOOMED = "CRITICAL.*[Uu]nrecoverable"

#: Line of a traceback that goes through code of the package. Celery prints tracebacks of lost
#: connections and children, but none of them may go through the package. The stacks that
#: `Process.wait` asks for do not match: they have no comma after the number of a line.
BAD_WORDS = rf'File "{re.escape(str(ROOT))}/redbeat_lite/[^"]*", line \d+(,|$)'


class FaultWorkers(Herd[Worker]):
    """All workers of a scenario. ``chance`` draws the worker that a fault hits."""

    #: The queue that workers consume. The collector reads the queue of the load.
    queue = "work"

    def __init__(
        self,
        log: HistoryLog,
        url: str,
        conf: dict[str, Any],
        chance: random.Random,
    ) -> None:
        super().__init__()
        #: Workers that ran to the end of the scenario and never lost their broker.
        self.stayed: list[Worker] = []
        conf = {name: value for name, value in conf.items() if name != "beat_schedule"}
        self._env: dict[str, Any] = {"PROJ_URL": url, "PROJ_CONF": json.dumps(conf)}
        self._env |= log.environment
        self._log = log
        self._chance = chance

    def start(self, **env: Any) -> Worker:
        """Start one more worker with two children; ``env`` adds to its environment."""
        worker = Worker(APP, queues=self.queue, ready=False, **self._env, **env)
        self.running.append(worker)
        return worker

    def pick(self) -> Worker:
        """Wait until a worker has run a task, and return one that has, drawn at random."""
        return self._chance.choice(eventually(self._busy, what="a worker"))

    def _busy(self) -> list[Worker]:
        # A worker may have been about to end at the last look.
        self.revive()
        alive = [worker for worker in self.running if worker.alive]
        return [worker for worker in alive if worker.lines("succeeded in")]

    def revive(self) -> None:
        """Replace workers that ended by themselves or are about to, as a supervisor does.

        The main process of a Celery worker may end when its broker restarts. It prints why.
        """
        for worker in list(self.running):
            if worker.alive and not worker.lines(DOOMED):
                continue
            assert worker.lines(f"{DOOMED}|{LOST}")
            self._kill(worker.pid, *worker.children())
            worker.wait()
            self.leaves(worker)
            self.start()

    @contextmanager
    def loss_of_their_broker(self) -> Iterator[None]:
        """Let each worker lose its broker in the block.

        Return when each of them is connected again, or is replaced.
        """
        ready = [worker for worker in self.running if worker.lines(r" ready\.$")]
        before = {worker: len(worker.lines(LOST)) for worker in ready}
        yield

        def are_decided() -> bool:
            for worker in ready:
                lost = len(worker.lines(LOST))
                is_back = before[worker] < lost < len(worker.lines("Connected to "))
                if not is_back and worker.alive and not worker.lines(DOOMED):
                    return False
            return True

        eventually(are_decided, what="a broker for each worker, or its end")
        self.revive()

    def kill(self, worker: Worker, *, whole: bool = False) -> None:
        """Kill the main process of a worker by SIGKILL, and its children too if ``whole``."""
        assert worker.alive
        children = worker.children()
        self._kill(worker.pid)
        if whole:
            self._kill(*children)
        # Children without their main process end too.
        self._note_deaths(children)
        assert worker.wait() == -signal.SIGKILL
        self.leaves(worker)

    def kill_child(self) -> None:
        """Kill one of the processes in which workers run their tasks."""
        children = eventually(lambda: self.pick().children(), what="a child of a worker")
        self._kill(self._chance.choice(children))

    def _kill(self, *pids: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self._note_deaths([pid])

    def _note_deaths(self, pids: Iterable[int]) -> None:
        self._log.append(*({"kind": "death", "pid": pid, "at": now_ms()} for pid in pids))

    def stop(self, worker: Worker) -> None:
        """Stop a worker by SIGTERM. It finishes its tasks first, and exits with 0.

        A worker that lost its broker may fail instead, or hang, because Celery 5.7 tries to
        acknowledge messages over the connection that is gone.
        """
        worker.ready()
        worker.terminate()
        has_ended = worker.ends(HANGS)
        if worker.lines(LOST):
            if not has_ended:
                self._kill(worker.pid, *worker.children())
            worker.wait()
            self.leaves(worker)
            return
        # The main process may wait for a child, for `UNREAD` seconds.
        assert worker.wait() == 0
        self.leaves(worker)

    def stop_all(self) -> None:
        """Stop all workers; none of them may have printed bad words."""
        self.stayed = [worker for worker in self.running if not worker.lines(LOST)]
        for worker in list(self.running):
            self.stop(worker)
        for worker in self.ended:
            assert not worker.lines(BAD_WORDS)
