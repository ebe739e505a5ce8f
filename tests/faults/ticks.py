"""Makes a beat turn many times, and prints how much memory it uses on the way.

``python -m tests.faults.ticks URL TICKS CUTS`` cuts its connections CUTS times on the way. It
prints a line per tenth of the way: ticks made, messages sent, kilobytes resident.
"""

from __future__ import annotations

import os
import subprocess
import sys

import redis
from celery import Celery

from redbeat_lite import Entry, Scheduler, Schedules, every


def resident() -> int:
    """Return the kilobytes of memory that this process uses."""
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    return int(subprocess.run(command, capture_output=True, text=True).stdout)


def cut_connections(client: redis.Redis) -> None:
    """Cut all connections to the server except this one."""
    for kind in ("normal", "pubsub"):
        client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def main(url: str, ticks: int, cuts: int) -> None:
    app = Celery("ticks", broker=url, set_as_current=False)
    Schedules(app).add_many([Entry(f"e{n}", "add", every(0.05), args=(n,)) for n in range(20)])
    beat = Scheduler(app)
    # Turn after turn, without a pause.
    beat._parts.wakeup.wait = lambda *args, **kwargs: None  # type: ignore[method-assign]
    client = redis.Redis.from_url(url)
    sent = 0
    # Many turns fit into the time until the first entries are due.
    while not client.llen("celery"):
        beat.tick()
    for tick in range(1, ticks + 1):
        if tick % (ticks // cuts) == 0:
            cut_connections(client)
        beat.tick()
        if tick % (ticks // 10) == 0:
            sent += client.llen("celery")
            client.delete("celery")
            print(tick, sent, resident(), flush=True)
    beat.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
