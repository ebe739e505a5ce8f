"""Signs of life of runs: they tell a run that goes on from one whose worker was killed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery.utils.log import get_logger

from ...clock import elapsed
from ...errors import text_of
from ...runs.keys import RunKeys
from ...runs.row import LIFE_MS, sign_of
from ...storage.replies import server_ms
from ..runtime import Runtime
from ..store import DOWN

logger = get_logger(__name__)

#: Seconds between two signs; shorter runs give none.
_PERIOD = 1.0


class SignsOfLife:
    """Vouches for the runs of entries that one worker has under way, for one lease at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._client = runtime.store.client
        self._key = RunKeys(runtime.settings.key_prefix).alive
        self._members = set[str]()
        self._not_before = float("-inf")

    def renew(self, requests: Iterable[Any]) -> None:
        """Vouch for the runs of these requests once a second, and no longer for those that have ended."""
        if elapsed() < self._not_before:
            return
        self._not_before = elapsed() + _PERIOD
        attempts = [self._runtime.attempt(request.request_dict) for request in requests]
        members = {sign_of(attempt.task_id, attempt.number) for attempt in attempts if attempt}
        ended = self._members - members
        try:
            if members:
                until = server_ms(self._client) + round(1000 * self._runtime.settings.once_lease)
                self._client.zadd(self._key, dict.fromkeys(members, until))
                self._client.pexpire(self._key, LIFE_MS)
            if ended:
                self._client.zrem(self._key, *ended)
            self._members = members
        except DOWN as exc:
            logger.debug("Signs of life of runs failed, trying again: %s", text_of(exc))
