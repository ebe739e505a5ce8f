"""A process that forks, as web servers do that load the app first, while another thread uses the connections."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from redbeat_lite import Schedules
from tests.support.cases import together


@together(
    "ask",
    [list, Schedules.incidents, lambda schedules: list(schedules.backfills), lambda schedules: schedules.runs()],
    ids=["names", "incidents", "backfills", "runs"],
)
def test_a_child_does_not_wait_for_its_parents_threads(schedules: Schedules, ask: Callable[[Schedules], Any]) -> None:
    ask(schedules)
    pool = schedules._store.backend.client.connection_pool
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._lock:
            held.set()
            forked.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)  # ends a child that hangs
        ask(schedules)
        os._exit(0)
    forked.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
