"""What tasks did: each run of a body, from its start to its end; and the judgement on all of them."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import redis

from redbeat_lite.entries.state import EntryState, task_id
from redbeat_lite.once.keys import OnceKeys


class Body(NamedTuple):
    """One run of a body, from its first sign of life to its last, in seconds on the machine's monotonic clock; and its
    process, where that is of interest."""

    key: str
    id: str
    start: float
    end: float
    done: bool = True
    pid: int = 0


class Journal:
    """A file to which processes add lines, each in one step of the system.

    Who is killed notes nothing, so bodies note that they live again and again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, key: str, id: str, start: float, *, done: bool = False) -> None:
        """Note that the run of a body lives, which began then, or that it is done."""
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{json.dumps([key, id, os.getpid(), start, time.monotonic(), done])}\n".encode())
        os.close(file)

    def bodies(self) -> list[Body]:
        """All runs so far, in the order in which they began."""
        found: dict[tuple[str, int, float], Body] = {}
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            key, id, pid, start, now, done = json.loads(line)
            found[id, pid, start] = Body(key, id, start, now, done, pid)
        return sorted(found.values(), key=lambda body: body.start)


class Locks:
    """Looks at the once-locks all the time.

    Parameters:
        connect: opens a client of their server; asked again after each loss of the connection.
    """

    def __init__(self, connect: Callable[[], redis.Redis]) -> None:
        #: When the lock of each run was last seen, by its task id; on the monotonic clock.
        self.seen: dict[str, float] = {}
        self._connect = connect
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.1):
            with suppress(redis.RedisError), self._connect() as client:  # the server is killed, too
                while not self._stopped.wait(0.1):
                    self._look(client)

    def _look(self, client: redis.Redis) -> None:
        pipe, now = client.pipeline(transaction=False), time.monotonic()
        for key in client.scan_iter(OnceKeys("redbeat-lite").lock("*"), count=1000):
            pipe.hmget(key, "state", "task")
        self.seen.update({task.decode(): now for state, task in pipe.execute() if state == b"running"})

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(5)


@dataclass
class Work:
    """What became of entries of which one run at a time may be.

    Parameters:
        runs: occurrences that ran.
        left_out: those that the beat left out, as its counters say, because the last one was queued or running …
        refused: … and those that a worker did.
        vanished: the ids of those that a worker received that was there to the end, and that are in none of these.
        unfinished: those that began to run, never came to their end, and were not refused either when they came again,
            because the next one ran by then.
        taken: those that no such worker has heard of. Between taking a message from the queue and noting that it has
            it, a worker that is killed loses it, also if it had come back from another one; that is kombu's Redis
            transport.
        overlaps: bodies that began before another one of their key had ended.
        stuck: the longest time in seconds for which the lock of a run outlived it.
    """

    runs: int = 0
    left_out: int = 0
    refused: int = 0
    vanished: list[str] = field(default_factory=list)
    unfinished: int = 0
    taken: int = 0
    overlaps: int = 0
    stuck: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """What is published of it."""
        return {**vars(self), "vanished": len(self.vanished), "stuck": round(self.stuck, 2)}


def judge_work(
    before: Mapping[str, EntryState],
    after: Mapping[str, EntryState],
    period: int,
    bodies: Iterable[Body],
    output: str,
    stayed: str,
    locked: Mapping[str, float],
    away: Sequence[tuple[float, float]] = (),
) -> Work:
    """Judge entries that fire every ``period`` milliseconds.

    Parameters:
        before: what the schedule said of each entry once, …
        after: … and when the last beat had ended.
        output: all that workers said …
        stayed: … and of that, what those said that were there to the end and always had their broker.
        locked: when the lock of each run was last seen, by its task id.
        away: when nobody could give back a lock, from and to.
    """
    work = Work()
    of_key: dict[str, list[Body]] = defaultdict(list)
    for body in bodies:
        of_key[body.key].append(body)
    outlived: dict[str, float] = {}
    refused = set(re.findall(r"Skipped proj\.work\[([-0-9a-f]+)\]", output))
    heard = set(re.findall(r"proj\.work\[([-0-9a-f]+)\] received", stayed))
    for name, last in after.items():
        first = (before[name].nominal or 0) - period * (before[name].count + before[name].skipped)
        nominals = range(first, last.nominal or 0, period)
        ids = {task_id(name, last.generation, nominal) for nominal in nominals}
        ran = {body.id for body in of_key[name]}
        assert ran <= ids, "a run of nothing that was due"
        work.runs += len(ran)
        work.unfinished += len(ran - {body.id for body in of_key[name] if body.done} - refused)
        work.refused += len((refused - ran) & ids)
        work.left_out += last.skipped
        work.vanished += sorted((heard & ids) - ran - refused)
        work.taken += len(ids) - last.skipped - len((heard | ran | refused) & ids)
        end = of_key[name][0].start
        for body in of_key[name]:
            work.overlaps += body.start < end
            end = max(end, body.end)
            seen = locked.get(body.id, 0.0)
            if seen > body.start and not any(start <= seen and body.end <= end for start, end in away):
                outlived[body.id] = seen - body.end
    work.stuck = max([0.0, *outlived.values()])
    return work
