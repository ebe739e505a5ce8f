"""What the guard tells of the tasks of steps: one lives while its worker renews its record there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..once.keys import OnceKeys
from ..storage.replies import server_ms


class Guards:
    """The guard's records under one prefix, as the pipelines read them."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._client, self._keys = client, OnceKeys(prefix)

    def alive(self, task_ids: Sequence[str]) -> dict[str, bool]:
        """For each task, whether the guard believes that it runs."""
        if not task_ids:
            return {}
        now, guards = self._read(task_ids, "state", "until")
        return {
            task_id: state == b"running" and float(until or 0) > now
            for task_id, (state, until) in zip(task_ids, guards, strict=True)
        }

    def over(self, tasks: Mapping[str, int]) -> set[str]:
        """Those tasks of which the guard remembers that this attempt, or a later one, has ended: no copy would run."""
        if not tasks:
            return set()
        _, guards = self._read(list(tasks), "state", "attempt")
        return {
            task_id
            for (task_id, attempt), (state, seen) in zip(tasks.items(), guards, strict=True)
            if state is not None and (int(seen or 0), state == b"done") >= (attempt, True)
        }

    def _read(self, task_ids: Sequence[str], *fields: str) -> tuple[int, list[list[bytes | None]]]:
        """The server's time in ms, and these fields of each task's record."""
        # Not in the pipeline: a cluster's takes no command without a key. Asked first: nobody looks dead for it.
        now = server_ms(self._client)
        pipe = self._client.pipeline(transaction=False)
        for task_id in task_ids:
            pipe.hmget(self._keys.guard(task_id), *fields)
        guards = pipe.execute()
        return now, guards
