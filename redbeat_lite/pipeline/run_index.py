"""Which runs there are: those that have not ended, for the sweeper, and the latest of those that have, for people."""

from __future__ import annotations

import time
from typing import Any

from ..storage.replies import server_ms, text, texts
from .keys import ended_key, index_key

#: Runs that have ended of which it is remembered that they were, the latest ones.
MAX_ENDED = 10_000

#: Seconds for which the difference between the server's clock and ours is believed.
_CLOCK_LIFE = 60.0


class Index:
    """The runs under one prefix, by id.

    Parameters:
        period: seconds between two looks of the sweeper at one run.
    """

    def __init__(self, client: Any, prefix: str, period: float) -> None:
        self._client = client
        self._open, self._ended = index_key(prefix), ended_key(prefix)
        self.period = period
        self._clock = (0, float("-inf"))

    def look_again(self, run_id: str) -> None:
        """Have the sweeper look at a run after its period."""
        self._client.zadd(self._open, {run_id: self._now() + round(1000 * self.period)})

    def reopen(self, run_id: str) -> None:
        """The same of a run that has ended, and is to go on."""
        self.look_again(run_id)
        self._client.zrem(self._ended, run_id)

    def due(self, limit: int) -> list[str]:
        """Runs to be looked at now. What is no id of a run leaves the index, or it would take their places for good."""
        found = self._client.zrangebyscore(self._open, "-inf", self._now(), start=0, num=limit)
        foreign = [each for each in found if text(each).encode() != each]
        if foreign:
            self._client.zrem(self._open, *foreign)
        return [text(each) for each in found if each not in foreign]

    def ended(self, run_id: str) -> None:
        """The sweeper need not look at this run any more; it is among the latest that have ended."""
        pipe = self._client.pipeline(transaction=False)
        # Told twice, it ended the first time.
        pipe.zadd(self._ended, {run_id: self._now()}, nx=True)
        pipe.zremrangebyrank(self._ended, 0, -MAX_ENDED - 1)
        pipe.zrem(self._open, run_id)
        pipe.execute()

    def forget(self, run_id: str) -> None:
        """There is no such run any more."""
        self._client.zrem(self._open, run_id)
        self._client.zrem(self._ended, run_id)

    def latest(self, limit: int) -> list[str]:
        """So many runs that have not ended, any of them, and of those that have the latest; in one round trip."""
        pipe = self._client.pipeline(transaction=False)
        pipe.zrange(self._open, 0, limit - 1)
        pipe.zrevrange(self._ended, 0, limit - 1)
        open_, ended = pipe.execute()
        return list(dict.fromkeys(texts([*open_, *ended])))

    def _now(self) -> int:
        """The server's time in ms, asked for once a minute: here a second more or less is nothing."""
        elapsed = time.monotonic()
        if elapsed - self._clock[1] > _CLOCK_LIFE:
            self._clock = (server_ms(self._client), elapsed)
        return self._clock[0] + round(1000 * (elapsed - self._clock[1]))
