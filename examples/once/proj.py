"""Once-locks at work. In one shell: ``celery -A proj worker -c 4 -l INFO``; in another: ``python proj.py``.

Needs a Redis or Valkey at redis://localhost:6379/0, or the address in ``BROKER_URL``.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

import redbeat_lite
from redbeat_lite import Once, OnceSkipped

URL = os.environ.get("BROKER_URL", "redis://localhost:6379/0")

app = Celery("proj", broker=URL, backend=URL, task_cls="redbeat_lite:Task")
redbeat_lite.install(app)


@app.task(bind=True, once=Once(key="{account}", on_conflict="wait", lease=10))
def book(self: Any, account: str, amount: int) -> str:
    """One booking of an account at a time; the others wait, and hold no slot of the worker."""
    time.sleep(1)
    return f"{account}: {amount}, fencing number {self.once.fence}"


@app.task(once=Once(lease=10))
def reindex() -> str:
    """A second one while it runs adds nothing."""
    time.sleep(2)
    return "indexed"


def main() -> None:
    bookings = [book.delay("alice", amount) for amount in (1, 2, 3)]
    first, second = reindex.delay(), reindex.delay()
    for booking in bookings:
        print(booking.get(timeout=30))
    for result in (first, second):
        try:
            print(result.get(timeout=30))
        except OnceSkipped as exc:
            print("skipped:", exc)


if __name__ == "__main__":
    main()
