"""The pool of a worker: runs tasks in child processes or in threads, with the callbacks of Celery's pools."""

from __future__ import annotations

import os
import pickle
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError

from tests.simulation.bodies import Bodies
from tests.simulation.thread import Thread
from tests.simulation.world import Process, World


@dataclass(eq=False)
class Job:
    """One run that the worker asked for."""

    target: Callable[..., Any]
    args: bytes
    on_accepted: Callable[..., Any]
    on_result: Callable[..., Any]
    on_error: Callable[..., Any]
    on_timeout: Callable[..., Any]
    soft_limit: float | None
    limit: float | None
    thread: Thread | None = None
    is_over: bool = False
    #: Whether its task was revoked, and its child killed.
    is_terminated: bool = False

    @property
    def request(self) -> Any:
        """Celery's request of the worker, whose methods the job calls."""
        return self.on_accepted.__self__  # type: ignore[attr-defined]


class Child:
    """A process of the pool with an app of its own, or the worker itself where tasks run in threads."""

    def __init__(self, process: Process, app: Celery) -> None:
        self.process = process
        self.app = app
        self.job: Job | None = None


class Pool:
    """Runs so many tasks at a time.

    Parameters:
        make_child: starts one more child.
    """

    def __init__(
        self, world: World, main: Process, bodies: Bodies, slots: int, make_child: Callable[[], Child]
    ) -> None:
        self._world = world
        self._main = main
        self._bodies = bodies
        self._make_child = make_child
        self._waiting: deque[Job] = deque()
        self.children = [make_child() for _ in range(slots)]
        #: Id of the task that is being terminated. Its child may have ended it, and have begun another one already.
        self.meant = ""
        #: Tags of messages whose jobs a thread has dropped.
        self.dropped_tags: set[str] = set()

    def apply_async(
        self,
        target: Callable[..., Any],
        args: Any,
        *,
        accept_callback: Callable[..., Any],
        timeout_callback: Callable[..., Any],
        callback: Callable[..., Any],
        error_callback: Callable[..., Any],
        soft_timeout: float | None,
        timeout: float | None,
        correlation_id: str,
    ) -> None:
        """Run a function in a child, as soon as one is free."""
        del correlation_id
        job = Job(
            target,
            pickle.dumps(args),
            accept_callback,
            callback,
            error_callback,
            timeout_callback,
            soft_timeout,
            timeout,
        )
        self._waiting.append(job)
        self._go_on()

    def kill_child(self, process: Process) -> None:
        """Kill a child process; the pool notices some seconds later."""
        child = next(child for child in self.children if child.process is process)
        self._end_child(child)
        self._world.after(process.random.uniform(0.0, 5.0), lambda: self._notice(child))

    def runs_another(self, request: Any) -> bool:
        """Whether a child runs the task of this request for another message."""
        running = [child.job.request for child in self.children if child.job is not None]
        return any(other.id == request.id and other is not request for other in running)

    def terminate_job(self, pid: int, _signal: int) -> None:
        """Kill the child process of this number, whatever it runs; the pool notices soon. Threads cannot be killed."""
        if pid == self._main.pid:
            raise NotImplementedError("a pool of threads kills nothing")
        child = next((child for child in self.children if child.process.pid == pid), None)
        if child is None or child.process.is_dead:
            return
        if child.job is not None:
            child.job.is_terminated = True
            if child.job.request.id == self.meant:
                self._bodies.kill(child.process)
        self._end_child(child)
        self._world.after(0.5, lambda: self._notice(child))

    def kill(self) -> None:
        """Kill all child processes without a word."""
        for child in self.children:
            self._end_child(child)

    def _end_child(self, child: Child) -> None:
        child.process.kill()
        self._bodies.died(child.process)

    def _notice(self, child: Child) -> None:
        """Replace a child that is dead, and tell of its job."""
        if child not in self.children:
            return
        job = child.job
        self.children[self.children.index(child)] = self._make_child()
        if job is not None and not job.is_over:
            job.is_over = True
            lost = Terminated(15) if job.is_terminated else WorkerLostError("Worker exited prematurely")
            self._tell(lambda: job.on_error(error_info(lost)))
        self._tell(self._go_on)

    def _go_on(self) -> None:
        """Start what waits in children that are free."""
        for child in self.children:
            if self._waiting and child.job is None and not child.process.is_dead:
                self._start(child, self._waiting.popleft())

    def _start(self, child: Child, job: Job) -> None:
        child.job = job

        def run() -> None:
            began, pid = time.monotonic(), os.getpid()
            if not self._accept(child, job, pid, began):
                return
            self._set_limits(child, job)
            reply = job.on_result
            try:
                result = job.target(*pickle.loads(job.args), app=child.app)
            except Exception as exc:
                reply, result = job.on_error, error_info(exc)
            self._bodies.settle(was_limited=job.is_over)
            child.job = None
            if self._main.is_dead:
                child.process.kill()
            if not job.is_over:
                job.is_over = True
                self._tell(lambda: reply(result))
            self._tell(self._go_on)

        job.thread = child.process.start(run)

    def _accept(self, child: Child, job: Job, pid: int, began: float) -> bool:
        """Tell that a job begins; return whether it does.

        A thread tells this itself. If the job is to be terminated, that raises an error in Celery, and the thread drops
        the job without another word: its message stays with the worker.
        """

        def accept() -> None:
            self.meant = job.request.id  # If it was revoked meanwhile, it is terminated now.
            job.on_accepted(pid, began)

        if child.process is not self._main:
            self._tell(accept)
            return True
        try:
            accept()
        except NotImplementedError:
            self.dropped_tags.add(job.request.message.delivery_tag)
            child.job = None
            job.is_over = True
            self._tell(self._go_on)
            return False
        return True

    def _tell(self, call: Callable[[], object]) -> None:
        """Call something in the worker's main process."""
        self._world.after(0.001, lambda: self._main.start(call))

    def _set_limits(self, child: Child, job: Job) -> None:
        if job.soft_limit:
            self._world.after(job.soft_limit, lambda: self._interrupt(child, job))
        if job.limit:
            self._world.after(job.limit, lambda: self._time_out(child, job))

    def _interrupt(self, child: Child, job: Job) -> None:
        """Raise an exception in a run that meets its soft time limit."""
        if self._main.is_dead or child.process.is_dead or job.is_over:
            return
        assert job.thread is not None
        child.process.interrupt(job.thread, SoftTimeLimitExceeded())
        self._tell(lambda: job.on_timeout(True, job.soft_limit))

    def _time_out(self, child: Child, job: Job) -> None:
        """Kill a run that meets its hard time limit."""
        if self._main.is_dead or child.process.is_dead or job.is_over or child.process is self._main:
            return
        job.is_over = True
        self._tell(lambda: job.on_error(error_info(TimeLimitExceeded(job.limit))))
        self._tell(lambda: job.on_timeout(False, job.limit))
        self._world.after(0.01, lambda: self._end_child(child))
        self._world.after(0.5, lambda: self._notice(child))


def error_info(exc: BaseException) -> ExceptionInfo:
    """Return what the pool hands on of an exception."""
    try:
        raise exc
    except type(exc):
        return ExceptionInfo()
