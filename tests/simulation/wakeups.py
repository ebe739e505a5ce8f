"""Wake-ups of tasks that wait in line for a once-lock."""

from __future__ import annotations

import json
from typing import Any

from redbeat_lite.store.scripts import _sha

#: Milliseconds until a waiter that was woken and has not begun is woken again, at the earliest.
AGAIN_MS = 5000


class Wakeups:
    """Watches the scripts that wake waiters: none is woken again before its message counts as lost."""

    def __init__(self) -> None:
        self._wake = _sha("once/wake").encode()
        self._begin = _sha("once/begin").encode()
        #: When each waiter was woken that has not begun since, epoch ms of the server.
        self._woken: dict[str, int] = {}

    def forget(self) -> None:
        """Note that the server has lost what it knew of wake-ups."""
        self._woken.clear()

    def observe(self, command: list[bytes], reply: Any, now: int) -> str | None:
        """Look at one call of a script; say which waiter was woken too early, if one was."""
        if command[1] == self._begin:
            _, task_id = command[3 + int(command[2]) :][:2]
            self._woken.pop(task_id.decode(), None)
        if command[1] != self._wake or not isinstance(reply, list) or reply[1]:
            return None
        task_id = json.loads(reply[0])["headers"]["id"]
        before = self._woken.get(task_id)
        self._woken[task_id] = now
        if before is None or now - before >= AGAIN_MS:
            return None
        return f"task {task_id} was woken again after {now - before} ms, and had not begun"
