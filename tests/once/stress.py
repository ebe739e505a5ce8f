"""The processes of the stress: each takes jobs from a list and runs them under locks, badly.

It crashes inside some runs, publishes some messages twice and loses some wake-ups. The runs note themselves in the
history, which is audited.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
import uuid
from contextlib import suppress
from typing import Any

import redis

from redbeat_lite.once.claims import Hold
from redbeat_lite.once.lock_store import LockStore
from tests.harness.history import HistoryLog

#: Nobody renews: a process that stands still for longer than this loses its lock, and rightly so. Where eight of them
#: start at once on two cores, half a second of that was seen.
LEASE_MS = 2_000
RESEND_MS = 200

#: The chances: a message comes twice, a run dies, a wake-up is lost.
DUPLICATE, CRASH, LOST = 0.05, 0.01, 0.02


class Chaos:
    def __init__(self, socket: str, seed: int) -> None:
        self.client = redis.Redis(unix_socket_path=socket, decode_responses=True)
        self.store = LockStore(self.client, "s")
        self.random = random.Random(seed)
        self.reaped = 0.0

    def publish(self, message: str) -> None:
        self.client.lpush("jobs", message)
        if self.random.random() < DUPLICATE:
            self.client.incr("duplicates")
            self.client.lpush("jobs", message)

    def run(self) -> None:
        while not self.client.exists("stop"):
            popped = self.client.brpop(["jobs"], timeout=0.1)
            if popped:
                self.job(popped[1])
            if time.monotonic() - self.reaped > 0.1:
                self.reap()

    def job(self, message: str) -> None:
        job = json.loads(message)
        held = Hold(uuid.uuid4().hex, job["id"], 0, LEASE_MS, key=job["key"], life_ms=600_000, on_conflict="wait")
        word = self.store.begin(held).word
        if word == "encode":
            # In its place before the message is gone from the list: what a late acknowledgement does.
            word = self.store.begin(held, message).word
            if word == "parked":
                self.note_place(job)
        if word == "run":
            self.inside(job, held, message)

    def note_place(self, job: dict[str, Any]) -> None:
        place = self.client.zscore(self.store.keys.waiters(job["key"]), job["id"])
        if place is not None:
            self.client.hset("places", job["id"], f"{place:.0f}")

    def inside(self, job: dict[str, Any], held: Hold, message: str) -> None:
        place = self.client.hget("places", job["id"])
        self.client.hdel("places", job["id"])
        waited = None if place is None else int(place)
        body = HistoryLog.of_environment().body(job["id"], job["key"], fence=held.fence, place=waited)
        if self.random.random() < CRASH:
            # A broker delivers it again, for it was never acknowledged.
            body.lives()
            self.client.lpush("jobs", message)
            os._exit(1)
        time.sleep(self.random.random() * 0.004)
        body.ends()
        self.client.incr("ended")
        ended = self.store.end(held)
        if ended.waiters:
            self.wake(job["key"])

    def wake(self, key: str) -> None:
        turn = self.store.wake(key, RESEND_MS)
        if turn is None:
            return
        if self.random.random() < LOST:
            self.client.incr("lost")
        else:
            self.publish(turn[0])

    def reap(self) -> None:
        keys, ids = self.store.due()
        for key in keys:
            self.wake(key)
        for task_id in ids:
            message = self.store.wake_standby(task_id, RESEND_MS)
            if message is not None:
                self.publish(message)
        self.reaped = time.monotonic()


def main(socket: str, processes: int) -> None:
    """Keep so many at work until they are told to stop: one that has crashed is replaced."""
    for seed in itertools.count(1):
        if seed > processes and not os.wait()[1]:
            break
        if not os.fork():
            code = 1
            try:
                Chaos(socket, seed).run()
                code = 0
            finally:
                os._exit(code)
    with suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
