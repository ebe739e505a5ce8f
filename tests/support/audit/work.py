"""The laws of task bodies and of pipelines: what may run at a time, and in which order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.support.audit.history import Broken, History, Line, Record

#: Milliseconds within which even a busy machine has written the end of a body to the server.
WRITTEN = 2000


def bodies_by(history: History, field: str) -> dict[str, list[Line]]:
    """Group the bodies that have this field by its value, in the order in which they began."""
    groups: dict[str, list[Line]] = defaultdict(list)
    for item in sorted(history.lines("body"), key=lambda item: int(item[1]["began"])):
        value = item[1].get(field)
        if value is not None:
            groups[value].append(item)
    return groups


# -- what excuses a body ---------------------------------------------------------------------------


def faults_of(history: History, body: Record, until: int) -> list[Record]:
    """Return the faults during the body, up to this instant."""
    began_in_time = [fault for fault in history.faults if fault["began"] <= until]
    return [fault for fault in began_in_time if body["began"] <= fault["ended"]]


def knows_its_loss(history: History, body: Record, until: int) -> bool:
    """Return whether the body knows that a fault up to this instant took its lock from it."""
    return bool(body.get("lost")) and bool(faults_of(history, body, until))


def was_frozen(history: History, body: Record, until: int) -> bool:
    """Return whether the process of the body was frozen at some instant up to this one."""
    faults = faults_of(history, body, until)
    return any(body.get("pid") in fault.get("pids", ()) for fault in faults)


def was_killed(history: History, body: Record) -> bool:
    """Return whether its process was killed in the body, or before it had written the end."""
    ended = body["ended"]
    deaths = [death["at"] for death in history.records("death") if death["pid"] == body.get("pid")]
    return any(ended <= death <= ended + WRITTEN for death in deaths)


def was_away(history: History, body: Record) -> bool:
    """Return whether its process could not write the end to the server."""
    return history.is_away(body["ended"], body["ended"] + WRITTEN)


# -- keys and tasks --------------------------------------------------------------------------------


def one_per_key(history: History) -> Iterator[Broken]:
    """One body of a key at a time.

    If a fault kept a body from renewing its lock, another body may begin, but the first one has to
    notice that it lost the lock.
    """
    for key, bodies in bodies_by(history, "key").items():
        holder = bodies[0]
        for item in bodies[1:]:
            last_line, last = holder
            line, body = item
            overlaps = body["began"] < held_until(history, last)
            if overlaps and not knows_its_loss(history, last, body["began"]):
                yield key, (last_line, line), f"{body['id']} began while {last['id']} ran"
            if held_until(history, body) >= held_until(history, last):
                holder = item


def held_until(history: History, body: Record) -> int:
    """Return the instant up to which a body holds its key."""
    instants = [int(body["ended"])]
    if body.get("holds") is not None:
        instants.append(body["began"] + body["holds"])
    for clear in history.records("clear"):
        if clear["key"] == body["key"] and clear["at"] >= body["began"]:
            instants.append(clear["at"])
    return min(instants)


def rising_fences(history: History) -> Iterator[Broken]:
    """The fence of a key rises with each task that gets its lock."""
    for key, bodies in bodies_by(history, "key").items():
        with_fence = [item for item in bodies if item[1].get("fence") is not None]
        for (last_line, last), (line, body) in pairwise(with_fence):
            is_same_lock = (body["id"], body["fence"]) == (last["id"], last["fence"])
            if body["fence"] <= last["fence"] and not is_same_lock:
                what = f"{body['id']} got {body['fence']} after {last['fence']}"
                yield key, (last_line, line), what


def waiters_in_order(history: History) -> Iterator[Broken]:
    """Tasks that wait for a key get it in the order in which they came."""
    for key, bodies in bodies_by(history, "key").items():
        waiters = [item for item in bodies if item[1].get("place") is not None]
        for (last_line, last), (line, body) in pairwise(waiters):
            if body["place"] < last["place"]:
                what = f"{last['id']} overtook {body['id']}"
                yield key, (last_line, line), what


def one_per_task(history: History) -> Iterator[Broken]:
    """One body for a task id: none runs again once one is done, and no two run at a time.

    A task that is done may run again if its worker could not write that.
    """
    for task, bodies in bodies_by(history, "id").items():
        guarded = [item for item in bodies if not item[1].get("copies")]
        for (last_line, last), (line, body) in pairwise(guarded):
            began = body["began"]
            if was_frozen(history, last, began) or knows_its_loss(history, last, began):
                continue
            if not last.get("done"):
                if began < last["ended"]:
                    yield task, (last_line, line), "ran twice at a time"
            elif not was_killed(history, last) and not was_away(history, last):
                what = f"ran again at {began} though it was done"
                yield task, (last_line, line), what


def tasks_run(history: History) -> Iterator[Broken]:
    """Each task that has to run to its end does."""
    bodies = history.records("body")
    ended = {body["id"] for body in bodies if body.get("done") or body.get("finished")}
    for line, task in history.lines("task"):
        if task["id"] not in ended:
            yield task["id"], (line,), "never came to its end"


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


def pipelines(history: History) -> Iterator[Pipeline]:
    """Yield the runs of pipelines, in the order in which they were started.

    The package's report of a success counts more than what the body says.
    """
    bodies = bodies_by(history, "run")
    for line, record in history.lines("run"):
        succeeded: dict[str, int] = {}
        for _, body in bodies[record["id"]]:
            if body.get("succeeded"):
                note_first(succeeded, body["step"], body["ended"])
        reported: dict[str, int] = {}
        for success in history.records("success"):
            if success["run"] == record["id"]:
                note_first(reported, success["step"], success["at"])
        yield Pipeline(line, record, bodies[record["id"]], succeeded | reported)


def note_first(times: dict[str, int], step: str, at: int) -> None:
    """Note when a step succeeded, unless it did so earlier."""
    times[step] = min(at, times.get(step, at))


def stages_in_order(run: Pipeline) -> Iterator[Broken]:
    """A stage begins only after all steps of the one before it succeeded."""
    stages = run.record["steps"]
    for line, body in run.bodies:
        before = [step for step, stage in stages.items() if stage == body["stage"] - 1]
        never = body["began"] + 1
        open_steps = [step for step in before if run.succeeded.get(step, never) > body["began"]]
        if open_steps:
            what = f"{body['step']} began before {', '.join(open_steps)} had succeeded"
            yield run.id, (run.line, line), what


def steps_succeed_once(run: Pipeline) -> Iterator[Broken]:
    """A step that has succeeded does not run again."""
    for line, body in run.bodies:
        if body["began"] > run.succeeded.get(body["step"], body["began"]):
            yield run.id, (run.line, line), f"{body['step']} began again after its success"


def steps_at_once(run: Pipeline) -> Iterator[Broken]:
    """No more steps of a run run at a time than it allows."""
    limit = run.record.get("at_once")
    bodies = [body for _, body in run.bodies]
    for line, body in run.bodies:
        at = body["began"]
        running = {other["step"] for other in bodies if other["began"] <= at < other["ended"]}
        if limit is not None and len(running) > limit:
            what = f"{len(running)} ran at {at}, and the limit is {limit}"
            yield run.id, (run.line, line), what


def one_run_at_a_time(history: History) -> Iterator[Broken]:
    """No two runs of a line run at a time, unless one of them may fail."""
    runs_of_lines: dict[str, list[Pipeline]] = defaultdict(list)
    for run in pipelines(history):
        name = run.record.get("line")
        if name is not None and run.bodies and not run.record.get("fails"):
            runs_of_lines[name].append(run)
    for name, runs in runs_of_lines.items():
        runs.sort(key=lambda run: int(run.bodies[0][1]["began"]))
        for last, run in pairwise(runs):
            last_ended = max(body["ended"] for _, body in last.bodies)
            if run.bodies[0][1]["began"] < last_ended:
                what = f"{run.id} began while {last.id} ran"
                yield name, (last.line, run.line), what


WORK_LAWS: tuple[Callable[[History], Iterator[Broken]], ...] = (
    one_per_key,
    rising_fences,
    waiters_in_order,
    one_per_task,
    tasks_run,
    one_run_at_a_time,
)

PIPELINE_LAWS: tuple[Callable[[Pipeline], Iterator[Broken]], ...] = (
    stages_in_order,
    steps_succeed_once,
    steps_at_once,
)
