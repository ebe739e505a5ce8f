"""The laws of task bodies and of pipelines, for `tests.support.audit`.

Records of these kinds are read here, beside ``fault``:

``body``
    A task ran: ``id``, ``key`` (or ``null``), ``began``, ``ended`` (at its end or its death) and
    ``done``. All more fields are optional:
    ``finished``: it came to its end, perhaps without its worker hearing of it;
    ``fence``: the number that its lock gave it;
    ``place``: its place among those that waited for the key;
    ``holds``: ms for which it may keep the key;
    ``lost``: it knew that its lock was lost;
    ``pid``: the id of its process;
    ``copies``: copies of its message may run as well;
    ``run``, ``step``, ``stage`` and ``succeeded``: it ran as a step of a pipeline.
``task``
    A task was sent that has to run to its end: ``id``.
``clear``
    Somebody removed the lock of a ``key`` ``at`` this instant, although a body may have held it.
``run``
    A pipeline was started: ``id``, ``steps`` (name -> stage, from 0). Optional are
    ``at_once``: the number of its steps that may run at a time;
    ``line``: no two runs of a line may run at a time;
    ``fails``: the test lets it fail or cancels it, so its bodies may run on after it has ended.
``success``
    The package reported that a ``step`` of a ``run`` succeeded ``at`` this instant.

A fault that lists ``pids`` froze these processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Record = dict[str, Any]
Line = tuple[int, Record]


class Violation(NamedTuple):
    """A law that does not hold, for which entry, key or task, and the lines that show it."""

    law: str
    about: str
    lines: tuple[int, ...]
    what: str

    def __str__(self) -> str:
        text = f"{self.law}: {self.about}: {self.what}"
        if not self.lines:
            return text
        lines = ", ".join(map(str, self.lines))
        return f"{text} (lines {lines})"


class Work:
    """All that a history says of bodies and pipelines."""

    KINDS = ("body", "task", "clear", "run", "success")

    #: Milliseconds within which even a busy machine has written the end of a body to the server.
    WRITTEN = 2000

    def __init__(self) -> None:
        self.bodies: list[Line] = []
        self.tasks: list[Line] = []
        self.clears: list[Line] = []
        self.runs: list[Line] = []
        self.successes: list[Line] = []
        self.faults: list[Record] = []
        #: When a process, or the main process of its worker, was killed.
        self.deaths: dict[int, int] = {}

    def take(self, line: int, record: Record) -> None:
        """Add a record of one of these kinds."""
        lists = (self.bodies, self.tasks, self.clears, self.runs, self.successes)
        lists[self.KINDS.index(record["kind"])].append((line, record))

    def by(self, field: str) -> dict[str, list[Line]]:
        """Group the bodies that have this field by its value, in the order in which they began."""
        groups: dict[str, list[Line]] = defaultdict(list)
        for line, body in sorted(self.bodies, key=lambda item: int(item[1]["began"])):
            if body.get(field) is not None:
                groups[body[field]].append((line, body))
        return groups

    def held_until(self, body: Record) -> int:
        """Return the instant up to which a body holds its key."""
        instants = [int(body["ended"])]
        if body.get("holds") is not None:
            instants.append(body["began"] + body["holds"])
        for _, clear in self.clears:
            if clear["key"] == body["key"] and clear["at"] >= body["began"]:
                instants.append(clear["at"])
        return min(instants)

    def knows_its_loss(self, body: Record, until: int) -> bool:
        """Return whether the body knows that a fault up to this instant took its lock from it."""
        return bool(body.get("lost")) and bool(self.faults_of(body, until))

    def was_frozen(self, body: Record, until: int) -> bool:
        """Return whether the process of the body was frozen at some instant up to this one."""
        faults = self.faults_of(body, until)
        return any(body.get("pid") in fault.get("pids", ()) for fault in faults)

    def faults_of(self, body: Record, until: int) -> list[Record]:
        """Return the faults during the body, up to this instant."""
        began_in_time = [fault for fault in self.faults if fault["began"] <= until]
        return [fault for fault in began_in_time if body["began"] <= fault["ended"]]

    def was_killed(self, body: Record) -> bool:
        """Return whether its process was killed in the body, or before it had written the end."""
        death = self.deaths.get(body.get("pid", 0), 0)
        return bool(body["ended"] <= death <= body["ended"] + self.WRITTEN)

    def was_away(self, body: Record) -> bool:
        """Return whether its process could not write the end to the server."""
        ended = body["ended"]
        away = [fault for fault in self.faults if fault.get("away")]
        return any(fault["began"] - self.WRITTEN <= ended <= fault["ended"] for fault in away)


# -- keys and tasks --------------------------------------------------------------------------------


def one_per_key(work: Work) -> Iterator[Violation]:
    """One body of a key at a time.

    If a fault kept a body from renewing its lock, another body may begin, but the first one has to
    notice that it lost the lock.
    """
    for key, bodies in work.by("key").items():
        last_line, last = bodies[0]
        for line, body in bodies[1:]:
            overlaps = body["began"] < work.held_until(last)
            if overlaps and not work.knows_its_loss(last, body["began"]):
                what = f"{body['id']} began while {last['id']} ran"
                yield Violation("one per key", key, (last_line, line), what)
            if work.held_until(body) >= work.held_until(last):
                last_line, last = line, body


def rising_fences(work: Work) -> Iterator[Violation]:
    """The fence of a key rises with each task that gets its lock."""
    for key, bodies in work.by("key").items():
        with_fence = [item for item in bodies if item[1].get("fence") is not None]
        for (last_line, last), (line, body) in pairwise(with_fence):
            is_same_lock = (body["id"], body["fence"]) == (last["id"], last["fence"])
            if body["fence"] <= last["fence"] and not is_same_lock:
                what = f"{body['id']} got {body['fence']} after {last['fence']}"
                yield Violation("rising fences", key, (last_line, line), what)


def waiters_in_order(work: Work) -> Iterator[Violation]:
    """Tasks that wait for a key get it in the order in which they came."""
    for key, bodies in work.by("key").items():
        waiters = [item for item in bodies if item[1].get("place") is not None]
        for (last_line, last), (line, body) in pairwise(waiters):
            if body["place"] < last["place"]:
                what = f"{last['id']} overtook {body['id']}"
                yield Violation("waiters in order", key, (last_line, line), what)


def one_per_task(work: Work) -> Iterator[Violation]:
    """One body for a task id: none runs again once one is done, and no two run at a time.

    A task that is done may run again if its worker could not write that.
    """
    for task, bodies in work.by("id").items():
        guarded = [item for item in bodies if not item[1].get("copies")]
        for (last_line, last), (line, body) in pairwise(guarded):
            began = body["began"]
            if work.was_frozen(last, began) or work.knows_its_loss(last, began):
                continue
            if last.get("done") and (work.was_killed(last) or work.was_away(last)):
                continue
            if last.get("done"):
                what = f"ran again at {body['began']} though it was done"
                yield Violation("one per task", task, (last_line, line), what)
            elif body["began"] < last["ended"]:
                yield Violation("one per task", task, (last_line, line), "ran twice at a time")


def tasks_run(work: Work) -> Iterator[Violation]:
    """Each task that has to run to its end does."""
    ended = {body["id"] for _, body in work.bodies if body.get("done") or body.get("finished")}
    for line, task in work.tasks:
        if task["id"] not in ended:
            yield Violation("tasks run", task["id"], (line,), "never came to its end")


# -- pipelines -------------------------------------------------------------------------------------


class Pipeline(NamedTuple):
    """One run of a pipeline."""

    line: int
    record: Record
    bodies: list[Line]
    succeeded: dict[str, int]  #: step -> the instant at which it first succeeded

    @property
    def id(self) -> str:
        return str(self.record["id"])


def pipelines(work: Work) -> Iterator[Pipeline]:
    """Yield the runs of pipelines, in the order in which they were started."""
    bodies = work.by("run")
    reported: dict[str, dict[str, int]] = defaultdict(dict)
    for _, success in work.successes:
        times = reported[success["run"]]
        times[success["step"]] = min(success["at"], times.get(success["step"], success["at"]))
    for line, record in work.runs:
        of_run = bodies.get(record["id"], [])
        succeeded = successes_of(of_run) | reported[record["id"]]
        yield Pipeline(line, record, of_run, succeeded)


def successes_of(bodies: Sequence[Line]) -> dict[str, int]:
    """Return when each step first succeeded, as its body says."""
    times: dict[str, int] = {}
    for _, body in bodies:
        if body.get("succeeded"):
            times[body["step"]] = min(body["ended"], times.get(body["step"], body["ended"]))
    return times


def stages_in_order(work: Work) -> Iterator[Violation]:
    """A stage begins only after all steps of the one before it succeeded."""
    for run in pipelines(work):
        stages = run.record["steps"]
        for line, body in run.bodies:
            before = [step for step, stage in stages.items() if stage == body["stage"] - 1]
            never = body["began"] + 1
            open_steps = [step for step in before if run.succeeded.get(step, never) > body["began"]]
            if open_steps:
                what = f"{body['step']} began before {', '.join(open_steps)} had succeeded"
                yield Violation("stages in order", run.id, (run.line, line), what)


def steps_succeed_once(work: Work) -> Iterator[Violation]:
    """A step that has succeeded does not run again."""
    for run in pipelines(work):
        for line, body in run.bodies:
            if body["began"] > run.succeeded.get(body["step"], body["began"]):
                what = f"{body['step']} began again after its success"
                yield Violation("steps succeed once", run.id, (run.line, line), what)


def steps_at_once(work: Work) -> Iterator[Violation]:
    """No more steps of a run run at a time than it allows."""
    for run in pipelines(work):
        limit = run.record.get("at_once")
        if limit is None:
            continue
        for line, body in run.bodies:
            began = body["began"]
            spans = [(other["began"], other["ended"], other["step"]) for _, other in run.bodies]
            running = {step for since, until, step in spans if since <= began < until}
            if len(running) > limit:
                what = f"{len(running)} ran at {began}, and the limit is {limit}"
                yield Violation("steps at once", run.id, (run.line, line), what)


def one_run_at_a_time(work: Work) -> Iterator[Violation]:
    """No two runs of a line run at a time, unless one of them may fail."""
    lines: dict[str, list[Pipeline]] = defaultdict(list)
    for run in pipelines(work):
        about = run.record.get("line")
        if about is not None and run.bodies and not run.record.get("fails"):
            lines[about].append(run)
    for about, runs in lines.items():
        runs.sort(key=lambda run: int(run.bodies[0][1]["began"]))
        for last, run in pairwise(runs):
            last_ended = max(body["ended"] for _, body in last.bodies)
            if run.bodies[0][1]["began"] < last_ended:
                what = f"{run.id} began while {last.id} ran"
                yield Violation("one run at a time", about, (last.line, run.line), what)


WORK_LAWS: Sequence[Callable[[Work], Iterator[Violation]]] = (
    one_per_key,
    rising_fences,
    waiters_in_order,
    one_per_task,
    tasks_run,
    stages_in_order,
    steps_succeed_once,
    steps_at_once,
    one_run_at_a_time,
)
