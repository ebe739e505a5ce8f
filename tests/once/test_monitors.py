"""What Flower and others see who listen to the events of workers."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.once.client import OnceClient
from tests.once.pools import Stage
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(60)


@contextmanager
def listening(proj: OnceClient) -> Iterator[dict[str, list[str]]]:
    """The types of events by task id, and those of workers under an empty one, from when it can hear them."""
    seen: dict[str, list[str]] = defaultdict(list)
    with proj.app.connection() as connection:

        def keep(event: dict[str, Any]) -> None:
            seen[event.get("uuid", "")].append(event["type"])

        receiver = proj.app.events.Receiver(connection, handlers={"*": keep})
        thread = threading.Thread(target=receiver.capture, kwargs={"limit": None, "wakeup": False})
        thread.start()
        try:
            yield seen
        finally:
            receiver.should_stop = True
            thread.join(20)


def test_monitors_see_the_end_of_a_task_that_is_skipped(stages: Any, proj: OnceClient) -> None:
    def play(stage: Stage) -> None:
        stage.worker(conf={"worker_send_task_events": True})
        first = stage.send("skip", how="until")
        proj.started(stage.key)
        eventually(lambda: seen[""], what="the receiver hears")
        second = stage.send("skip")
        eventually(lambda: seen[second.id] and seen[second.id][-1] == "task-revoked")
        assert second.state == "REVOKED"
        proj.go(stage.key)
        assert first.get(timeout=60) == stage.key
        eventually(lambda: seen[first.id] and seen[first.id][-1] == "task-succeeded")
        assert "task-revoked" not in seen[first.id]

    with listening(proj) as seen:
        stages(["prefork"], play)
