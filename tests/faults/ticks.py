"""Turns the beat's loop many times in a process of its own, and prints how much memory it uses on the way.

``python ticks.py URL TICKS CUTS``; all its connections are cut so often on the way. A line per tenth
of the way: ticks made, messages sent, kilobytes resident.
"""

from __future__ import annotations

import os
import subprocess
import sys

import redis
from celery import Celery

from redbeat_lite import Entry, Scheduler, Schedules, every


def resident() -> int:
    """Kilobytes of memory that this process has in use."""
    return int(subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, text=True).stdout)


def main(url: str, ticks: int, cuts: int) -> None:
    app = Celery("ticks", broker=url, set_as_current=False)
    Schedules(app).add_many([Entry(f"e{n}", "add", every(0.05), args=(n,)) for n in range(20)])
    beat, client, sent = Scheduler(app), redis.Redis.from_url(url), 0
    beat._wakeup.wait = lambda *args, **kwargs: None  # type: ignore[method-assign]  # turn after turn
    while not client.llen("celery"):  # many turns fit into what the first ones to be due have to wait
        beat.tick()
    for tick in range(1, ticks + 1):
        if tick % (ticks // cuts) == 0:
            for kind in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        beat.tick()
        if tick % (ticks // 10) == 0:
            sent += client.llen("celery")
            client.delete("celery")
            print(tick, sent, resident(), flush=True)
    beat.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
